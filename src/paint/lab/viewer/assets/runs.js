// The page of several runs: each chosen metric of all in one chart, and the settings that differ.

const RUNS = DATA.runs;
const listed = (name) => (address.get()[name] ?? "").split("|").filter(Boolean);
const hidden = new Set(listed("hide"));
let smoothing = Math.min(Math.max(Number(address.get().smooth) || 0, 0), 0.99);

// --- metrics: those of the steps, and a validation of each set of problems ---

const VALIDATION = "validation on ";
function metricNames() {
  const sets = RUNS.flatMap((run) => run.validation.map((v) => VALIDATION + v.benchmark));
  const described = DATA.charts.flatMap((chart) => chart.metrics);
  const logged = RUNS.flatMap((run) => Object.keys(run.metrics));
  const steps = [...described.filter((name) => logged.includes(name)), ...logged];
  return [...new Set([...sets, ...steps])].filter((name) => name !== "step");
}

// The first metrics to look at: whether answers improve, and what is learned.
function usualMetrics() {
  const names = metricNames();
  const first = (...choices) => choices.find((name) => names.includes(name));
  const wanted = [
    names.find((name) => name.startsWith(VALIDATION)),
    first("reward", "accuracy"),
    first("kl", "loss"),
    first("completion_tokens"),
  ];
  return wanted.filter(Boolean);
}
const asked = listed("metrics").filter((name) => metricNames().includes(name));
const chosen = asked.length ? asked : usualMetrics();

function describe(name) {
  if (name.startsWith(VALIDATION)) {
    const of = RUNS.flatMap((run) => run.validation).find((v) => VALIDATION + v.benchmark === name);
    const isReward = of.metric === "reward";
    const score = isReward ? "mean reward" : `Avg@${of.k}`;
    return {
      note: `${score} of ${countOf(of.problems, "problem")}, with 95 % interval`,
      format: isReward ? number : percent,
    };
  }
  const chart = DATA.charts.find((each) => each.metrics.includes(name));
  if (!chart) return { note: "", format: number };
  const note = [chart.title, chart.note].filter(Boolean).join(": ");
  return { note, format: chart.format === "percent" ? percent : number };
}

// Exponential moving average, of which the first values weigh no more than their share.
function smoothed(values) {
  let sum = 0,
    weight = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = smoothing * sum + (1 - smoothing) * value;
    weight = smoothing * weight + (1 - smoothing);
    return sum / weight;
  });
}

function seriesOf(run, name) {
  if (name.startsWith(VALIDATION)) {
    const points = run.validation.filter((v) => VALIDATION + v.benchmark === name);
    const pick = (key) => points.map((point) => point[key]);
    return { x: pick("step"), y: pick("mean"), low: pick("low"), high: pick("high") };
  }
  const raw = run.metrics[name] ?? [];
  const x = run.metrics.step ?? [];
  return smoothing ? { x, y: smoothed(raw), raw } : { x, y: raw };
}

function chartOf(name) {
  const drawn = RUNS.map((run, color) => ({ name: run.name, color, ...seriesOf(run, name) }));
  const there = drawn.filter((s) => !hidden.has(s.name) && s.y.some((y) => y !== null));
  const steps = [...new Set(there.flatMap((s) => s.x))].sort((a, b) => a - b);
  // Runs need not have the same steps: a step that one lacks is no gap in its line.
  const onSteps = (s, values) => {
    const at = new Map(s.x.map((step, i) => [step, values[i]]));
    return steps.map((step) => at.get(step) ?? null);
  };
  const series = there.map((s) => ({
    name: s.name,
    color: s.color,
    y: onSteps(s, s.y),
    low: s.low && onSteps(s, s.low),
    high: s.high && onSteps(s, s.high),
    raw: s.raw && onSteps(s, s.raw),
  }));
  const { note, format } = describe(name);
  const isSmooth = smoothing && !name.startsWith(VALIDATION);
  const figure = lineChart({
    title: name,
    note: [note, isSmooth ? `smoothed by ${smoothing}, raw values pale` : ""]
      .filter(Boolean)
      .join("; "),
    x: steps,
    series,
    zero: format !== percent,
    format,
    bridge: true,
    least: RUNS.length > 1 ? 1 : 2,
    width: 400,
    height: 250,
  });
  figure.querySelector("h3").append(
    el(
      "button.close",
      {
        type: "button",
        title: `Remove ${name}`,
        "aria-label": `remove ${name}`,
        onclick: remove,
      },
      "\u00d7",
    ),
  );
  function remove() {
    chosen.splice(chosen.indexOf(name), 1);
    draw();
  }
  return figure;
}

// --- the page ---

const grid = el("div.charts.large", { id: "charts" });
const table = el("div.scroll.results", { id: "runs" });
const more = el("select", { "aria-label": "add a metric", id: "add", onchange: add });

function add() {
  if (more.value) chosen.push(more.value);
  draw();
}

function draw() {
  charts.length = 0; // those that are replaced
  address.set({
    metrics: chosen.join("|"),
    hide: [...hidden].join("|"),
    smooth: smoothing || null,
  });
  grid.replaceChildren(...chosen.map(chartOf));
  const others = metricNames().filter((name) => !chosen.includes(name));
  more.replaceChildren(
    el("option", { value: "" }, "add a metric \u2026"),
    ...others.map((name) => el("option", { value: name }, name)),
  );
  drawTable();
}

function drawTable() {
  const settings = Object.keys(RUNS[0].settings);
  const heads = ["", "state", ...settings];
  table.replaceChildren(
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el(head ? "th" : "th.left", {}, head)),
        ),
      ),
      el(
        "tbody",
        {},
        RUNS.map((run, n) => lineOf(run, n, settings)),
      ),
    ),
  );
}

function lineOf(run, n, settings) {
  const change = (event) => {
    if (event.target.checked) hidden.delete(run.name);
    else hidden.add(run.name);
    draw();
  };
  const shown = el("input", { type: "checkbox", checked: !hidden.has(run.name), onchange: change });
  const step = (run.metrics.step ?? []).at(-1) ?? 0;
  return el(
    "tr",
    { "data-run": run.name },
    el("td.left", { "data-head": "" }, el("label", {}, shown, " ", keyOf(run.name, n))),
    el("td", { "data-head": "state" }, `${run.state} ${step}/${run.steps}`),
    settings.map((name) =>
      el("td.mono", { "data-head": name }, run.settings[name] === null ? "" : valueText(run, name)),
    ),
  );
}
const valueText = (run, name) => {
  const value = run.settings[name];
  return Array.isArray(value) ? value.join(", ") : String(value);
};

function sentencesOf(run, n) {
  return el(
    "p",
    { "data-run": run.name },
    keyOf(run.name, n),
    ...evaluationLinks(run.evaluations),
    run.change || (run.evaluations.length ? "" : "no finished step yet"),
  );
}

function buildRuns(section) {
  const slider = el("input", {
    type: "range",
    id: "smooth",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: smoothing,
    oninput: (event) => {
      smoothing = Number(event.target.value);
      read.textContent = smoothing.toFixed(2);
      draw();
    },
  });
  const read = el("output", {}, smoothing.toFixed(2));
  section.append(
    el("div.bar-row", {}, more, el("label", {}, "smoothing ", slider, " ", read), live),
    el("div.split.runs", {}, el("div", {}, table, ...RUNS.map(sentencesOf)), grid),
  );
  draw();
}

// --- new steps, of a page that is served ---

const live = el("span.soft", { id: "live", role: "status" }, DATA.live ? "waits for steps" : "");

function append(run, rows) {
  const columns = run.metrics;
  for (const row of rows) {
    const length = (columns.step ?? []).length;
    for (const name of Object.keys(row)) columns[name] ??= Array(length).fill(null);
    for (const [name, column] of Object.entries(columns)) column.push(row[name] ?? null);
  }
}

if (DATA.live) {
  const counts = RUNS.map((run) => (run.metrics.step ?? []).length);
  const events = new EventSource(`events?from=${counts}&version=${DATA.version}`);
  events.addEventListener("message", (event) => {
    const { run, rows } = JSON.parse(event.data);
    append(RUNS[run], rows);
    draw();
    live.textContent = `live: ${RUNS[run].name} did step ${rows.at(-1).step}`;
  });
  events.addEventListener("reload", () => location.reload());
  events.addEventListener("error", () => {
    live.textContent = "the server does not answer; the page asks again";
  });
}

tabs(DATA.name, countOf(RUNS.length, "run"), { runs: { title: "Runs", build: buildRuns } });
document.documentElement.dataset.ready = "true";
