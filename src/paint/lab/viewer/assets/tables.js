// The page of advice, comparisons and bakes: what was found, intervals, tables.

const UNITS = {
  "%": percent,
  hundredths,
  points,
  "": (value) => number(value),
  signed: (value) => number(value),
};

function drawn(chart) {
  const rows = Object.entries(chart.rows).map(([label, interval]) => ({ label, ...interval }));
  return intervalChart({
    title: chart.title,
    note: `${chart.note ? `${chart.note}, ` : ""}${intervalNote(rows)}`,
    rows,
    format: UNITS[chart.unit],
  });
}

function build(report) {
  return (section) =>
    section.append(
      ...[
        report.lines.length
          ? el(
              "ul",
              {},
              report.lines.map((line) => el("li", {}, readable(line))),
            )
          : null,
        report.charts.length ? el("div.charts.wide", {}, report.charts.map(drawn)) : null,
        ...report.tables.flatMap(tableOf),
      ].filter(Boolean),
    );
}

tabs(
  DATA.name,
  "",
  Object.fromEntries(
    DATA.reports.map((report) => [report.name, { title: report.name, build: build(report) }]),
  ),
);
document.documentElement.dataset.ready = "true";
