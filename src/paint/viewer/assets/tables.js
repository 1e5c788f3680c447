// The page of advice, comparisons and bakes: what was found, intervals, tables.

const UNITS = { "%": percent, points, "": (value) => number(value), signed: (value) => number(value) };

function drawn(chart) {
  const rows = Object.entries(chart.rows).map(([label, interval]) => ({ label, ...interval }));
  return intervalChart({ title: chart.title, note: `${chart.note ? `${chart.note}, ` : ""}with 95 % interval`, rows, format: UNITS[chart.unit] });
}

function tableOf(table) {
  const kind = (tag, i) => (table.columns[i] ? tag : `${tag}.left`);
  return [el("h2", {}, table.title), el("div.scroll", {}, el("table", {},
    el("thead", {}, el("tr", {}, table.columns.map((column, i) => el(kind("th", i), {}, column)))),
    el("tbody", {}, table.rows.map((row) => el("tr", {}, row.map((cell, i) => el(kind("td", i), {}, cell)))))))];
}

function build(report) {
  return (section) => section.append(...[
    report.lines.length ? el("ul", {}, report.lines.map((line) => el("li", {}, readable(line)))) : null,
    report.charts.length ? el("div.charts.wide", {}, report.charts.map(drawn)) : null,
    ...report.tables.flatMap(tableOf),
  ].filter(Boolean));
}

tabs(DATA.name, "", Object.fromEntries(DATA.reports.map((report) => [report.name, { title: report.name, build: build(report) }])));
document.documentElement.dataset.ready = "true";
