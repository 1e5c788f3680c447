// The page of several runs: overlaid curves.

const NAMES = DATA.runs.map((run) => run.name);
const allSteps = [...new Set(DATA.runs.flatMap((run) => run.metrics.step ?? []))].sort((a, b) => a - b);
const FIRST = ["loss", "kl", "accuracy", "overlap", "mask_ratio", "clip_frac", "unclipped_mass", "student_entropy", "teacher_entropy", "completion_tokens", "truncated_frac"];
const SHARES = /_frac$|^accuracy$|^overlap|^mask_ratio$|^unclipped_mass$/;

function over(name) {
  const series = DATA.runs.map((run) => { const at = new Map((run.metrics.step ?? []).map((s, i) => [s, run.metrics[name]?.[i] ?? null])); return { name: run.name, y: allSteps.map((s) => at.get(s) ?? null) }; });
  return lineChart({ title: name, x: allSteps, series, format: SHARES.test(name) ? percent : number });
}

function buildCurves(section) {
  const names = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => !["step", "seconds_left", "learning_rate"].includes(name));
  const sets = [...new Set(DATA.runs.flatMap((run) => run.validation.map((v) => v.benchmark)))];
  for (const set of sets) {
    const steps = [...new Set(DATA.runs.flatMap((run) => run.validation.filter((v) => v.benchmark === set).map((v) => v.step)))].sort((a, b) => a - b);
    const series = DATA.runs.map((run) => { const at = new Map(run.validation.filter((v) => v.benchmark === set).map((v) => [v.step, v.metrics.reward ?? v.metrics.avg_at_k])); const pick = (key) => steps.map((s) => at.get(s)?.[key] ?? null); return { name: run.name, y: pick("mean"), low: pick("low"), high: pick("high") }; });
    section.append(el("h2", {}, `Validation on ${set}`), el("div.charts.wide", {}, lineChart({ title: `Avg@k on ${set}`, note: "share of right answers, or mean reward, with 95 % interval", x: steps, series, format: percent }), ...differenceCharts(set)));
  }
  const ordered = [...FIRST.filter((name) => names.includes(name)), ...names.filter((name) => !FIRST.includes(name))];
  section.append(el("h2", {}, "Steps"), el("div.charts", {}, ordered.map(over)));
}

function differenceCharts(set) {
  const rows = DATA.differences.filter((d) => d.benchmark === set);
  if (!rows.length) return [];
  return [intervalChart({ title: `Difference to ${NAMES[0]}, at the same step`, note: "paired difference of Avg@k on the same problems, in points, with 95 % interval", rows: rows.map((d) => ({ label: `${d.run}, step ${d.step}`, mean: d.mean, low: d.low, high: d.high })), format: points })];
}

tabs(`${NAMES.length} runs`, NAMES.join(" \u00b7 "), {
  curves: { title: "Curves", build: buildCurves },
  settings: { title: "Settings that differ", build: (section) => section.append(DATA.settings.length ? settingsTable(DATA.settings, NAMES) : el("p.note", {}, "All settings are the same.")) },
});
document.documentElement.dataset.ready = "true";
