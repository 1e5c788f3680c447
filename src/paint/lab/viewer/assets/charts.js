// Plots as SVG: lines over steps, and intervals; hover and arrow keys show values.

const charts = []; // of one page: the same step is read in all of them

function ticks(low, high, count = 4, { whole = false } = {}) {
  const rough = (high - low) / count || 1,
    power = 10 ** Math.floor(Math.log10(rough));
  const fitting =
    [1, 2, whole ? 2 : 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough;
  const step = whole ? Math.max(Math.round(fitting), 1) : fitting; // there is no step 1.5
  const made = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    made.push(i * step);
  return made;
}

// The number of a tick: with as many digits as tell it from its neighbours.
function tickLabel(format) {
  const digits = (value) => Number((100 * value).toPrecision(4));
  if (format === percent) return (value) => `${digits(value)} %`;
  if (format === points)
    return (value) => `${value >= 0 ? "+" : "\u2212"}${digits(Math.abs(value))}`;
  return (value) => format(value);
}

function frame(
  width,
  height,
  margin,
  [x0, x1],
  [y0, y1],
  { xticks, yticks, xformat = number, yformat = number } = {},
) {
  const [left, right, top, bottom] = margin;
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const parts = [];
  for (const tick of yticks ?? ticks(y0, y1)) {
    parts.push(svg("line.axis", { x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    parts.push(svg("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, yformat(tick)));
  }
  for (const tick of xticks ?? ticks(x0, x1, 6))
    parts.push(
      svg("text", { x: x(tick), y: height - bottom + 15, "text-anchor": "middle" }, xformat(tick)),
    );
  if (y0 < 0 && y1 > 0)
    parts.push(svg("line.zero", { x1: left, x2: width - right, y1: y(0), y2: y(0) }));
  return { x, y, parts };
}

function extent(values, { zero = false, share = false } = {}) {
  const known = values.filter((v) => v !== null && v !== undefined && Number.isFinite(v));
  let low = Math.min(...known),
    high = Math.max(...known);
  if (!known.length) [low, high] = [0, 1];
  if (zero) {
    low = Math.min(low, 0);
    high = Math.max(high, 0);
  }
  const areShares = share && low >= 0 && high <= 1;
  if (low === high) {
    low -= Math.abs(low) * 0.1 || (zero ? 0 : 0.5);
    high += Math.abs(high) * 0.1 || 0.5;
  }
  return areShares ? [Math.max(low, 0), Math.min(high, 1)] : [low, high];
}

// Lines over x. series: {name, y, low?, high?, raw?, color?}; onpick(x) follows a click or Enter.
// raw is drawn pale below the line; bridge draws lines over steps without a value.
function lineChart({
  title,
  note,
  x: xs,
  series,
  zero = false,
  format = number,
  onpick,
  bridge = false,
  least = 2, // of so many lines on the names are shown
  width = 380,
  height = 178,
}) {
  const margin = [46, 10, 8, 22];
  const all = series.flatMap((s) => [
    ...s.y,
    ...(s.low || []),
    ...(s.high || []),
    ...(s.raw || []),
  ]);
  const [x0, x1] = extent(xs),
    whole = xs.every(Number.isInteger);
  const f = frame(
    width,
    height,
    margin,
    [x0, x1],
    extent(all, { zero, share: format === percent }),
    { xticks: ticks(x0, x1, 6, { whole }), yformat: tickLabel(format) },
  );
  const drawn = series.map((s, n) => {
    const placed = (values) =>
      xs.map((v, i) => [f.x(v), values[i] == null ? null : f.y(values[i])]);
    const points = placed(s.y),
      color = s.color ?? n;
    const group = svg(`g.s${color % 6}`);
    if (s.raw) group.append(svg("path.raw", { d: pathOf(placed(s.raw), bridge) }));
    if (s.low) {
      const there = xs
        .map((_, i) => i)
        .filter((i) => Number.isFinite(s.low[i]) && Number.isFinite(s.high[i]));
      const edge = (values, order) => order.map((i) => `${f.x(xs[i])},${f.y(values[i])}`).join("L");
      if (there.length > 1)
        group.append(
          svg("path.band", { d: `M${edge(s.high, there)}L${edge(s.low, [...there].reverse())}Z` }),
        );
      for (const i of there)
        group.append(
          svg("line.whisker", {
            x1: f.x(xs[i]),
            x2: f.x(xs[i]),
            y1: f.y(s.low[i]),
            y2: f.y(s.high[i]),
          }),
        );
    }
    group.append(
      svg("path.line", { d: pathOf(points, bridge), "stroke-dasharray": dashesOf(color) }),
    );
    if (xs.length < 40)
      for (const [px, py] of points)
        if (py !== null) group.append(svg("circle.dot", { cx: px, cy: py, r: 2.3 }));
    return group;
  });
  const cross = svg("line.cross", { y1: margin[2], y2: height - margin[3], visibility: "hidden" });
  const picture = svg(
    onpick ? "svg.pick" : "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `${title}, ${series.map((s) => s.name).join(", ")} over step`,
    },
    f.parts,
    drawn,
    cross,
  );
  const read = el("span.read", { "aria-live": "polite" });
  let at = null;
  const shown = (i) => {
    at = i;
    cross.setAttribute("visibility", i === null ? "hidden" : "visible");
    if (i === null) {
      read.textContent = "";
      return;
    }
    cross.setAttribute("x1", f.x(xs[i]));
    cross.setAttribute("x2", f.x(xs[i]));
    const said = series.map((s) => {
      const range =
        s.low && Number.isFinite(s.low[i]) ? ` [${format(s.low[i])}, ${format(s.high[i])}]` : "";
      return (series.length > 1 ? `${s.name} ` : "") + format(s.y[i]) + range;
    });
    read.textContent = clean(`step ${number(xs[i])}: ${said.join(" \u00b7 ")}`);
  };
  const tell = (i) => {
    for (const chart of charts) chart(i === null ? null : xs[i]);
  };
  charts.push((value) => {
    const i = value === null ? -1 : xs.indexOf(value);
    shown(i < 0 ? null : i);
  });
  const nearest = (event) => {
    const box = picture.getBoundingClientRect(),
      place = ((event.clientX - box.left) / box.width) * width;
    let best = 0;
    xs.forEach((v, i) => {
      if (Math.abs(f.x(v) - place) < Math.abs(f.x(xs[best]) - place)) best = i;
    });
    return best;
  };
  picture.addEventListener("mousemove", (event) => tell(nearest(event)));
  picture.addEventListener("mouseleave", () => tell(null));
  picture.addEventListener("blur", () => tell(null));
  picture.addEventListener("click", (event) => onpick?.(xs[nearest(event)]));
  picture.addEventListener("keydown", (event) => {
    const last = xs.length - 1;
    if (event.key === "ArrowRight") tell(Math.min((at ?? -1) + 1, last));
    else if (event.key === "ArrowLeft") tell(Math.max((at ?? last + 1) - 1, 0));
    else if (event.key === "Enter" && at !== null) onpick?.(xs[at]);
    else return;
    event.preventDefault();
  });
  return el(
    "figure",
    { "data-chart": title },
    el("h3", {}, title, read),
    keys(series, least),
    note ? el("p", {}, note) : null,
    picture,
  );
}

function pathOf(points, bridge) {
  let path = "",
    pen = "M";
  for (const [x, y] of points) {
    if (y === null) pen = bridge && path ? "L" : "M";
    else {
      path += `${pen}${x.toFixed(1)},${y.toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}

// Beyond six lines colours repeat, with other dashes.
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "", "4 4"];
const dashesOf = (n) => DASHES[(n + Math.floor(n / 6)) % 6];
const keyOf = (name, n) => el(`span.key.s${n % 6}`, {}, el("i"), name);

function keys(series, least) {
  if (series.length < least) return null;
  return el(
    "div",
    {},
    series.map((s, n) => keyOf(s.name, s.color ?? n)),
  );
}

// Rows with an interval each: {label, mean, low, high}; zero draws the line at 0.
// Values without a bound have an interval from ten problems on.
const intervalNote = (rows) =>
  rows.some((row) => Number.isFinite(row.low) || Number.isFinite(row.high))
    ? "with 95 % interval"
    : "too few problems for an interval";

function intervalChart({ title, note, rows, format = percent }) {
  // On a telephone labels stand above their intervals: beside them, both would be too small.
  const isNarrow = innerWidth < 600,
    most = isNarrow ? 44 : 32;
  const width = isNarrow ? 330 : 560,
    line = isNarrow ? 42 : 26,
    left = isNarrow ? 14 : 205,
    above = isNarrow ? 22 : 0;
  const height = rows.length * line + 34;
  const [x0, x1] = extent(
    rows.flatMap((r) => [r.mean, r.low, r.high]),
    { share: format === percent || format === hundredths },
  );
  const f = frame(width, height, [left, 16, 6, 24], [x0, x1], [0, rows.length], {
    xticks: ticks(x0, x1, isNarrow ? 4 : 6),
    yticks: [],
    xformat: tickLabel(format),
  });
  const parts = rows.map((row, i) => {
    const y = 6 + i * line + above + (line - above) / 2,
      label = row.label.length > most ? `${row.label.slice(0, most - 1)}\u2026` : row.label;
    const name = isNarrow
      ? svg("text", { x: 0, y: y - 13 }, label)
      : svg("text", { x: left - 10, y: y + 4, "text-anchor": "end" }, label);
    const value = isNarrow
      ? svg("text", { x: width, y: y - 13, "text-anchor": "end" }, format(row.mean))
      : svg(
          "text",
          { x: Math.min(f.x(row.mean), width - 90), y: y - 7, "text-anchor": "middle" },
          format(row.mean),
        );
    const hasInterval = intervalNote([row]).startsWith("with");
    const range = hasInterval ? ` [${format(row.low)}, ${format(row.high)}]` : "";
    return svg(
      "g.s0",
      {},
      name,
      svg("line.whisker", {
        x1: f.x(row.low ?? row.mean),
        x2: f.x(row.high ?? row.mean),
        y1: y,
        y2: y,
      }),
      svg(
        "circle.dot",
        { cx: f.x(row.mean), cy: y, r: 4.5 },
        svg("title", {}, `${row.label}: ${format(row.mean)}${range}`),
      ),
      value,
    );
  });
  if (x0 < 0 && x1 > 0)
    parts.push(svg("line.zero", { x1: f.x(0), x2: f.x(0), y1: 4, y2: height - 24 }));
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    f.parts,
    parts,
  );
  return el(
    "figure",
    { "data-chart": title },
    el("h3", {}, title),
    note ? el("p", {}, note) : null,
    picture,
  );
}
