// The page of a run: its curves, its rollouts, its settings.

const M = DATA.metrics,
  STEPS = M.step || [];
const stepsThere = new Map(DATA.steps.map((step) => [step.step, step]));

// --- the run ---

// Of each: title, metrics, a note, and how numbers are written (paint.config.metric_records).
const FORMATS = { number, percent };
const CURVES = DATA.charts.map(({ title, metrics, note, format }) => [
  title,
  metrics,
  note,
  FORMATS[format],
]);
const LARGE = { width: 400, height: 290 };

function openStep(step) {
  address.set({ step, row: null, token: null });
  showView("rollouts");
  selectRow(ROWS.find((row) => row.step === step) ?? null, { step });
}

function drawCurve([title, names, note, format], size = {}) {
  const series = names.filter((name) => M[name]).map((name) => ({ name, y: M[name] }));
  return lineChart({
    title,
    note,
    x: STEPS,
    series,
    zero: format !== percent,
    format,
    onpick: openStep,
    ...size,
  });
}

function secondsCurve() {
  const names = Object.keys(M).filter(
    (name) => name.startsWith("seconds_") && name !== "seconds_left",
  );
  const series = names.map((name) => ({ name: name.slice(8), y: M[name] }));
  return series.length
    ? lineChart({
        title: "Seconds a step",
        note: "wall time by phase",
        x: STEPS,
        series,
        zero: true,
        onpick: openStep,
      })
    : null;
}

function validationChart(set, size) {
  const points = DATA.validation.filter((v) => v.benchmark === set),
    first = points[0];
  const isReward = first.metric === "reward",
    name = isReward ? "mean reward" : `Avg@${first.k}`;
  const pick = (key) => points.map((v) => v[key]);
  const lost = Math.max(...pick("ungraded"));
  const without = lost ? `; up to ${lost} of them have no reward` : "";
  return lineChart({
    title: `Validation on ${set}`,
    note: `${name} of ${countOf(first.problems, "problem")}, ${intervalNote(points)}${without}`,
    x: points.map((v) => v.step),
    series: [{ name, y: pick("mean"), low: pick("low"), high: pick("high") }],
    format: isReward ? number : percent,
    ...size,
  });
}

// Three curves tell most runs: whether answers improve, whether the student learns, and whether it
// collapses. The last is the metric of the first collapse warning, else the length.
function chosenCurves() {
  const has = (curve) => curve[1].some((name) => M[name]);
  const of = (metric) => CURVES.find((curve) => curve[1].includes(metric) && has(curve));
  const warned = DATA.warnings.length ? of(DATA.warnings[0].metric) : null;
  const ends = M.accuracy || M.reward ? of("completion_tokens") : of("student_entropy");
  const wanted = [
    of("reward") ?? of("accuracy"),
    of("kl") ?? of("loss"),
    warned,
    ends,
    of("student_entropy"),
    of("gradient_norm"),
  ];
  return [...new Set(wanted.filter(Boolean))];
}

function buildRun(section) {
  const [change, ...details] = DATA.change.split("; ");
  const evaluated = evaluationLinks(DATA.evaluations);
  if (change || evaluated.length)
    section.append(
      el(
        "p.change",
        {},
        evaluated.length ? el("b", {}, evaluated) : null,
        evaluated.length ? change : el("b", {}, change),
        details.length ? `; ${details.join("; ")}` : "",
      ),
    );
  if (!STEPS.length) section.append(el("p.note", {}, "This run has no finished step yet."));
  if (DATA.warnings.length)
    section.append(
      el("h2", {}, "Collapse warnings"),
      el(
        "ul.warnings",
        {},
        DATA.warnings.map(({ step, warning, text }) =>
          el("li", {}, `step ${step}, ${warning}: ${text}`),
        ),
      ),
    );

  const sets = [...new Set(DATA.validation.map((v) => v.benchmark))];
  const validated = sets.map((set) => validationChart(set, LARGE));
  const first = chosenCurves().filter(
    (curve) => !validated.length || !["accuracy", "reward"].includes(curve[1][0]),
  );
  const large = first.slice(0, Math.max(3 - validated.length, 1));
  section.append(
    el(
      "div.charts.large",
      {},
      validated,
      large.map((curve) => drawCurve(curve, LARGE)),
    ),
  );
  if (!STEPS.length) return;

  const shown = new Set(large.flatMap((curve) => curve[1]));
  const rest = CURVES.filter((curve) => curve[1].some((name) => M[name] && !shown.has(name)));
  section.append(
    el(
      "p.soft",
      {},
      "Hover a curve, or focus it and use \u2190 \u2192: all curves read the same step. " +
        "A click (Enter) leads to that step's rollouts.",
    ),
    el(
      "details",
      { id: "more" },
      el("summary", {}, `All metrics: ${countOf(rest.length + 1, "further chart")}`),
      el(
        "div.charts",
        {},
        rest.map((curve) => drawCurve(curve)),
        secondsCurve(),
      ),
    ),
  );
}

// --- one rollout, and where to look ---

let current = null,
  token = null,
  quantity = usable[0],
  spans = [],
  order = [],
  compared = "ratio";
const listBody = el("tbody"),
  detail = el("div", { id: "rollout" });
const filters = {
  correct: "",
  truncated: false,
  looping: false,
  step: "",
  text: "",
  kl: "",
  overlap: "",
};
let sortBy = { key: "place", down: false };

const averages = new WeakMap();
function average(row, name) {
  if (!averages.has(row)) averages.set(row, {});
  const known = averages.get(row);
  if (!(name in known)) {
    const column = values(row)[name];
    known[name] = column?.length ? mean(Array.from(column)) : null;
  }
  return known[name];
}
function highest(row, name) {
  const column = values(row)[name];
  return column?.length ? column.reduce((a, b) => Math.max(a, b), -Infinity) : null;
}

const COLUMNS = [
  ["place", "step.row", (r) => r.step * 1e6 + r.row, (r) => `${r.step}.${r.row}`],
  [
    "correct",
    "right",
    (r) => (r.correct ? 1 : 0),
    (r) =>
      el(
        r.correct == null ? "span.soft" : r.correct ? "span.good" : "span.bad",
        {},
        r.correct == null ? "\u2013" : r.correct ? "\u2713" : "\u2717",
        r.truncated ? " cut" : "",
        r.looping ? " \u21bb" : "",
      ),
  ],
  ["tokens", "tokens", lengthOf, (r) => number(lengthOf(r))],
  ["kl", "KL", (r) => average(r, "kl"), (r) => number(average(r, "kl"), 2)],
  ["klmax", "max", (r) => highest(r, "kl"), (r) => number(highest(r, "kl"), 2)],
  ["loss", "loss", (r) => average(r, "loss"), (r) => number(average(r, "loss"), 2)],
  ["overlap", "overlap", (r) => r.overlap ?? r.reward, (r) => number(r.overlap ?? r.reward, 2)],
];
// A reward that is no verdict stands beside the overlap.
if (
  ROWS.some(
    (r) =>
      r.overlap !== undefined &&
      typeof r.reward === "number" &&
      (r.boxed === undefined || r.reward % 1),
  )
)
  COLUMNS.splice(2, 0, ["reward", "reward", (r) => r.reward, (r) => number(r.reward, 2)]);

function wantedRows() {
  const wanted = filters.text.toLowerCase();
  const holds = (text) => text.toLowerCase().includes(wanted);
  const kept = ROWS.filter(
    (r) =>
      (filters.correct === "" || r.correct === (filters.correct === "right")) &&
      (!filters.truncated || r.truncated) &&
      (!filters.looping || r.looping) &&
      (filters.step === "" || r.step === Number(filters.step)) &&
      (filters.kl === "" || average(r, "kl") >= Number(filters.kl)) &&
      (filters.overlap === "" || (r.overlap ?? 0) <= Number(filters.overlap)) &&
      (wanted === "" || [r.problem, r.problem_id, textOf(r)].some(holds)),
  );
  const value = COLUMNS.find(([key]) => key === sortBy.key)[2],
    sign = sortBy.down ? -1 : 1;
  return kept.sort(
    (a, b) =>
      sign * ((value(a) ?? -Infinity) - (value(b) ?? -Infinity)) ||
      a.step - b.step ||
      a.row - b.row,
  );
}

const counted = el("span.soft");
function drawList() {
  order = wantedRows();
  counted.textContent = `${order.length} of ${ROWS.length} rollouts`;
  listBody.replaceChildren(
    ...order.map((row) => {
      const open = () => selectRow(row);
      const line = el(
        "tr",
        {
          tabindex: 0,
          "data-row": `${row.step}.${row.row}`,
          "aria-selected": row === current,
          onclick: open,
          onkeydown: (event) => {
            if (event.key === "Enter") open();
          },
        },
        COLUMNS.map(([, , , cell]) => el("td", {}, cell(row))),
      );
      return line;
    }),
  );
}

function buildList() {
  const set = (key, read) => (event) => {
    filters[key] = read(event.target);
    drawList();
  };
  const text = (target) => target.value,
    on = (target) => target.checked;
  const heads = COLUMNS.map(([key, title]) =>
    el(
      "th",
      {},
      el(
        "button",
        {
          type: "button",
          "data-sort": key,
          onclick: () => {
            sortBy = { key, down: sortBy.key === key ? !sortBy.down : key !== "place" };
            drawList();
          },
        },
        title,
      ),
    ),
  );
  const steps = [...stepsThere.keys()];
  return el(
    "div.list",
    {},
    el(
      "div.filters",
      { id: "filters" },
      el(
        "select",
        { "aria-label": "right or wrong", name: "correct", onchange: set("correct", text) },
        [
          ["", "right and wrong"],
          ["right", "right"],
          ["wrong", "wrong"],
        ].map(([value, name]) => el("option", { value }, name)),
      ),
      steps.length > 1
        ? el(
            "select",
            { "aria-label": "step", name: "step", onchange: set("step", text) },
            el("option", { value: "" }, "all steps"),
            steps.map((s) => el("option", { value: s }, `step ${s}`)),
          )
        : null,
      el(
        "label",
        {},
        el("input", { type: "checkbox", name: "truncated", onchange: set("truncated", on) }),
        " truncated",
      ),
      el(
        "label",
        {},
        el("input", { type: "checkbox", name: "looping", onchange: set("looping", on) }),
        " repeating",
      ),
      el(
        "label",
        {},
        "KL \u2265 ",
        el("input", { type: "number", step: "any", name: "kl", oninput: set("kl", text) }),
      ),
      el(
        "label",
        {},
        "overlap \u2264 ",
        el("input", {
          type: "number",
          step: "any",
          min: 0,
          max: 1,
          name: "overlap",
          oninput: set("overlap", text),
        }),
      ),
      el("input", {
        type: "search",
        placeholder: "text of problem or completion, id",
        name: "text",
        "aria-label": "search in texts",
        oninput: set("text", text),
      }),
      counted,
    ),
    el(
      "div.scroll",
      {},
      el("table", { id: "rows" }, el("thead", {}, el("tr", {}, heads)), listBody),
    ),
  );
}

function buildRollouts(section) {
  if (!ROWS.length) {
    section.append(el("p.note", {}, "No step is finished."));
    return;
  }
  section.append(el("div.split", {}, buildList(), detail));
  drawList();
  goTo(address.get());
}

function goTo({ step, row, token: at, color }) {
  if (color) quantity = usable.find((q) => q.key === color) ?? quantity;
  const asked = step !== undefined ? Number(step) : null;
  const found = ROWS.find(
    (r) => (asked === null || r.step === asked) && (row === undefined || r.row === Number(row)),
  );
  if (asked !== null && !found) {
    selectRow(null, { step: asked });
    return;
  }
  selectRow(found ?? order[0] ?? ROWS[0], { move: asked !== null });
  if (at !== undefined && found) focusToken(Number(at));
}

function selectRow(row, { step = null, move = true } = {}) {
  current = row;
  token = null;
  hideTip();
  for (const line of listBody.children)
    line.setAttribute("aria-selected", line.dataset.row === (row ? `${row.step}.${row.row}` : ""));
  listBody.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  if (!row) {
    detail.replaceChildren(missingStep(step));
    return;
  }
  if (!has(row, quantity)) quantity = usable.find((q) => has(row, q));
  if (move) address.set({ step: row.step, row: row.row, token: null });
  drawRollout();
}

function missingStep(step) {
  const last = Math.max(...DATA.stored_steps, 0);
  const is = DATA.stored_steps.includes(step);
  return el(
    "div.note",
    {},
    is
      ? [
          "The rollouts of step ",
          String(step),
          " are stored, and not on this page. ",
          el("code", {}, `paint show RUN --steps ${step}`),
          " writes a page with all of them.",
        ]
      : `No rollouts of step ${step} are stored (the last is ${last}).`,
  );
}

function drawRollout() {
  const row = current;
  const facts = [
    ["tokens", number(lengthOf(row))],
    ["KL", number(average(row, "kl"))],
    ["loss", number(average(row, "loss"))],
    ["overlap", number(row.overlap)],
    ["mask ratio", number(row.mask_ratio)],
    ["reward", row.reward === undefined ? null : number(row.reward)],
    ["advantage", row.advantage === undefined ? null : number(row.advantage)],
  ].filter(([, value]) => value !== null && value !== "\u2013");
  const verdict =
    row.correct == null
      ? el("b.soft", {}, "not graded")
      : row.correct
        ? el("b.good", {}, "\u2713 right")
        : el("b.bad", {}, "\u2717 wrong");
  spans = tokenSpans(row);
  const box = el(
    "div.tokens",
    { id: "tokens", role: "listbox", "aria-label": "tokens of the completion" },
    spans,
  );
  box.addEventListener("mouseover", (event) => {
    const span = event.target.closest(".t");
    if (span) showTip(span, tokenCard(row, Number(span.dataset.i)));
  });
  box.addEventListener("mouseleave", () => {
    if (token === null) hideTip();
    else showTip(spans[token], tokenCard(row, token));
  });
  box.addEventListener("click", (event) => {
    const span = event.target.closest(".t");
    if (span) focusToken(Number(span.dataset.i));
  });

  const choice = el(
    "select",
    {
      id: "quantity",
      "aria-label": "colour by",
      onchange: (event) => {
        quantity = usable.find((q) => q.key === event.target.value);
        address.set({ color: quantity.key });
        recolour();
      },
    },
    usable
      .filter((q) => has(row, q))
      .map((q) => el("option", { value: q.key, selected: q === quantity }, q.name)),
  );
  detail.replaceChildren(
    ...[
      el("h2", {}, `Step ${row.step}, row ${row.row} `, el("span.soft", {}, row.problem_id)),
      el(
        "div.facts",
        {},
        verdict,
        row.truncated ? el("b.bad", {}, "truncated") : null,
        row.looping ? el("b.bad", {}, "repeating") : null,
        row.boxed === undefined
          ? null
          : el(
              "span",
              {},
              "its box ",
              el("b.mono", {}, row.boxed === null ? "none" : visible(row.boxed)),
            ),
        row.answer ? el("span", {}, "gold ", el("b.mono", {}, visible(row.answer))) : null,
        facts.map(([name, value]) => el("span", {}, `${name} `, el("b", {}, value))),
      ),
      row.reason && !["right", "wrong"].includes(row.reason)
        ? el("p.reason", {}, "Reason: ", readable(row.reason))
        : null,
      row.feedback
        ? el(
            "details.panel.feedback",
            { open: true },
            el("summary", {}, "Feedback"),
            el("pre", {}, readable(row.feedback)),
          )
        : null,
      row.turns.length
        ? el(
            "details.panel",
            { open: true, id: "conversation" },
            el("summary", {}, "The conversation"),
            turnsOf(row.turns),
          )
        : null,
      origin(row),
      el(
        "div.bar-row",
        {},
        el("label", {}, "colour by ", choice),
        el("span", { id: "legend" }),
        el(
          "button",
          { type: "button", id: "next", title: "n", onclick: () => nextHigh(1) },
          "next high token",
        ),
        el(
          "button",
          {
            type: "button",
            title: "Copy the address of this rollout",
            onclick: () => navigator.clipboard?.writeText(location.href),
          },
          "copy link",
        ),
        el("button", { type: "button", onclick: () => help.showModal() }, "keys"),
      ),
      box,
      el(
        "p.soft",
        {},
        "underlined: selected for interpolation \u00b7 line on top: an entry is clipped " +
          "\u00b7 \u00b7 blank, \u21b5 line end",
      ),
      solutionPanel(row),
      contextsPanel(row),
      promptsPanel(row),
    ].filter(Boolean),
  );
  recolour();
}

function origin(row) {
  const step = row.at,
    said = [];
  if (row.is_kept) said.push("Values: those of the step itself, logged during training.");
  else if (row.entries) said.push("Values: rescored; none were logged for this row.");
  const nats = `by at most ${number(row.moved, 2)} nats`;
  if (row.entries && step.is_exact) {
    const moved = row.moved === 0 ? "are the kept ones" : `differ from the kept ones ${nats}`;
    const note = row.moved === undefined ? "" : ` (its log-probs ${moved})`;
    said.push(`Most likely tokens: rescored with the student before this step${note}.`);
  } else if (row.entries) {
    const note = row.moved === undefined ? "" : ` (its log-probs differ ${nats})`;
    said.push(
      "Likeliest tokens and pushes are not those of the step's own student: they are scored with " +
        `the checkpoint after step ${step.student}, and the step's student stood after step ` +
        `${row.step - 1}${note}.`,
    );
  }
  return el(
    row.entries && !step.is_exact ? "div.note" : "p.soft",
    { id: "origin" },
    said.join(" "),
  );
}

function recolour() {
  if (!current) return;
  const row = current,
    v = values(row);
  spans.forEach((span, i) => paintToken(span, quantity, quantity.of(v, i)));
  document.getElementById("legend")?.replaceChildren(legend(quantity));
  const choice = document.getElementById("quantity");
  if (choice) choice.value = quantity.key;
  recolourContexts();
}
themeListeners.push(recolour);

function focusToken(i, { scroll = true } = {}) {
  if (!spans[i]) return;
  if (token !== null && spans[token]) {
    spans[token].classList.remove("at");
    spans[token].tabIndex = -1;
  }
  token = i;
  const span = spans[i];
  span.classList.add("at");
  span.tabIndex = 0;
  span.focus({ preventScroll: true });
  if (scroll) {
    const box = span.getBoundingClientRect();
    if (box.top < 80 || box.bottom > innerHeight - 260) span.scrollIntoView({ block: "center" });
  }
  address.set({ step: current.step, row: current.row, token: i });
  showTip(span, tokenCard(current, i));
}

// The next token among the strongest of the page: over the value that one token in thirty passes.
function nextHigh(direction) {
  const sizes = (row) => series(row, quantity).map(Math.abs);
  const all = ROWS.filter((row) => has(row, quantity))
    .flatMap(sizes)
    .sort((a, b) => a - b);
  const bound = Math.max(all[Math.floor(0.967 * (all.length - 1))], 1e-9);
  let place = order.indexOf(current),
    from = token ?? (direction > 0 ? -1 : Infinity);
  for (let tried = 0; tried <= order.length; tried++) {
    const row = order[place];
    if (row && has(row, quantity)) {
      const high = sizes(row)
        .map((value, i) => [value, i])
        .filter(([value, i]) => value >= bound && (direction > 0 ? i > from : i < from))
        .map(([, i]) => i);
      if (high.length) {
        if (row !== current) selectRow(row);
        focusToken(direction > 0 ? high[0] : high[high.length - 1]);
        return;
      }
    }
    place = (place + direction + order.length) % order.length;
    from = direction > 0 ? -1 : Infinity;
  }
}

// --- the solution ---

function solutionPanel(row) {
  const solution = row.solution;
  if (!solution)
    return row.context === undefined
      ? null
      : el(
          "details.panel",
          {},
          el("summary", {}, "What the teacher was shown"),
          el("pre", {}, row.context === null ? "nothing" : readable(row.context)),
        );
  const anchors = solution.anchors,
    cuts = new Set([0, solution.text.length, ...(solution.hidden ?? [])]);
  anchors.forEach((a) => a.place?.forEach((at) => cuts.add(at)));
  const edges = [...cuts].sort((a, b) => a - b),
    text = el("div.text", { id: "solution" });
  for (let n = 0; n + 1 < edges.length; n++) {
    const [start, end] = [edges[n], edges[n + 1]],
      over = anchors.filter((a) => a.place && a.place[0] <= start && a.place[1] >= end);
    const met = over.find((a) => a.found),
      part = el(
        "span",
        {
          title: over.length
            ? over.map((a) => `${a.found ? "found" : "missing"}: ${a.text}`).join("\n")
            : null,
        },
        readable(solution.text.slice(start, end)),
      );
    if (over.length) part.classList.add(met ? "a-found" : "a-missing");
    if (solution.hidden && solution.hidden[0] <= start && solution.hidden[1] >= end && end > start)
      part.classList.add("hidden-part");
    if (met?.tokens) {
      part.style.cursor = "pointer";
      part.addEventListener("click", () => showAnchor(met));
    }
    text.append(part);
  }
  const placeOf = (a) => {
    if (!a.found) return "missing in the completion";
    return a.tokens ? `found at token ${a.tokens[0]}` : "found";
  };
  const chips = anchors.map((a) =>
    el(
      a.found ? "button.chip.found" : "span.chip.missing",
      {
        type: a.found ? "button" : null,
        "data-anchor": a.text,
        title: `${a.boxed ? "boxed answer, " : ""}${placeOf(a)}`,
        onclick: () => {
          if (a.tokens) showAnchor(a);
        },
      },
      a.found ? "\u2713 " : "\u2717 ",
      visible(a.text, { breaks: false }),
      a.boxed ? " \u25a1" : "",
    ),
  );
  const found = anchors.filter((a) => a.found).length;
  let hidden = "the hidden part cannot be determined (docs/how-to/inspect-rollouts.md)";
  if (!solution.is_masked) hidden = "nothing was hidden";
  else if (solution.hidden) {
    const share = (solution.hidden[1] - solution.hidden[0]) / (solution.text.length || 1);
    hidden = `the hatched part, ${percent(share)}, was hidden from the teacher`;
  }
  if (!solution.has_anchors)
    return el("details.panel", { open: true }, el("summary", {}, `The solution: ${hidden}`), text);
  return el(
    "details.panel",
    { open: true },
    el("summary", {}, `The solution: ${found} of ${anchors.length} anchors found, ${hidden}`),
    text,
    el("div.chips", {}, chips),
    el(
      "p.soft",
      {},
      "\u2713 found in the completion (click: where), \u2717 missing, \u25a1 what a box holds",
    ),
  );
}

function showAnchor(anchor) {
  spans.forEach((span, i) =>
    span.classList.toggle("met", i >= anchor.tokens[0] && i <= anchor.tokens[1]),
  );
  focusToken(anchor.tokens[0]);
}

function promptsPanel(row) {
  const titles = {
    student: "The student's prompt, as it was read",
    teacher: "The teacher's prompt, as it was read",
  };
  return el(
    "div.grid2",
    {},
    Object.entries(row.prompts).map(([name, text]) =>
      el(
        "details.panel",
        { open: true, "data-prompt": name },
        el("summary", {}, titles[name]),
        el("pre", {}, readable(text)),
      ),
    ),
    row.rationale
      ? el(
          "details.panel",
          { open: true },
          el("summary", {}, "The teacher's rationale"),
          el("pre", {}, readable(row.rationale)),
        )
      : null,
  );
}

// --- the same completion under other contexts ---

const CONTEXTS = {
  solution: "its own solution",
  neighbour: "the nearest problem's solution",
  none: "no solution",
  other: "another problem's solution",
  answer: "the answer alone",
  wrong_answer: "a wrong answer",
};
const COMPARED = {
  ratio: {
    key: "c-ratio",
    name: "log p_T \u2212 log p_S",
    unit: "nats",
    both: true,
    of: (v, c, none, i) => c.teacher_log_prob[i] - v.student_log_prob[i],
  },
  knows: {
    key: "c-knows",
    name: "log p_T less that with no solution",
    unit: "nats",
    both: true,
    of: (v, c, none, i) => c.teacher_log_prob[i] - none.teacher_log_prob[i],
  },
  kl: { key: "c-kl", name: "KL without clip", unit: "nats", of: (v, c, none, i) => c.kl[i] },
};
let columns = [];

function contextsPanel(row) {
  const names = Object.keys(row.contexts ?? {});
  columns = [];
  if (!names.length) return null;
  const read = (context) =>
    Object.fromEntries(
      Object.entries(context.values).map(([name, packed]) => [name, unpack(packed)]),
    );
  const none = row.contexts.none ? read(row.contexts.none) : null,
    choices = Object.keys(COMPARED).filter((key) => key !== "knows" || none);
  if (!choices.includes(compared)) compared = "ratio";
  const v = { ...values(row) };
  columns = names.map((name) => {
    const c = read(row.contexts[name]),
      made = tokenSpans(row);
    const box = el("div.tokens", { "data-context": name }, made);
    box.addEventListener("mouseover", (event) => {
      const span = event.target.closest(".t");
      if (span) sameToken(Number(span.dataset.i), span);
    });
    box.addEventListener("mouseleave", () => {
      sameToken(null);
    });
    const lift = mean(Array.from(c.teacher_log_prob, (x, i) => x - v.student_log_prob[i]));
    return {
      name,
      c,
      none,
      v,
      spans: made,
      node: el(
        "div",
        {},
        el(
          "h3",
          {},
          CONTEXTS[name] ?? name,
          row.contexts[name].is_the_runs ? el("span.soft", {}, " (as in the run)") : null,
        ),
        el(
          "div.facts",
          {},
          el("span", {}, "KL ", el("b", {}, number(mean(Array.from(c.kl))))),
          el("span", {}, "log p_T \u2212 log p_S ", el("b", {}, number(lift))),
        ),
        box,
        el(
          "details",
          {},
          el("summary.soft", {}, "what it shows"),
          el(
            "pre",
            {},
            row.contexts[name].context === null ? "nothing" : readable(row.contexts[name].context),
          ),
        ),
      ),
    };
  });
  const choice = el(
    "select",
    {
      id: "compared",
      onchange: (event) => {
        compared = event.target.value;
        recolourContexts();
      },
    },
    choices.map((key) =>
      el("option", { value: key, selected: key === compared }, COMPARED[key].name),
    ),
  );
  return el(
    "details.panel",
    { open: true, id: "contexts" },
    el("summary", {}, "What the solution does: the same completion under other contexts"),
    el(
      "div.bar-row",
      {},
      el("label", {}, "colour by ", choice),
      el("span", { id: "legend-contexts" }),
    ),
    el(
      "div.contexts",
      {},
      columns.map((column) => column.node),
    ),
    el(
      "p.soft",
      {},
      "KL that also appears with another problem's solution is caused by having any reference, " +
        "not by its content; what appears only with its own is what the teacher knows from it.",
    ),
  );
}

function recolourContexts() {
  if (!columns.length) return;
  const q = COMPARED[compared];
  const all = columns
    .flatMap(({ v, c, none, spans: made }) => made.map((_, i) => Math.abs(q.of(v, c, none, i))))
    .sort((a, b) => a - b);
  scales.set(q.key, all[Math.floor(0.98 * (all.length - 1))] || 1);
  for (const { v, c, none, spans: made } of columns)
    made.forEach((span, i) => paintToken(span, q, q.of(v, c, none, i)));
  document.getElementById("legend-contexts")?.replaceChildren(legend(q));
}

function sameToken(i, span) {
  for (const column of columns)
    column.spans.forEach((other, n) => other.classList.toggle("same", n === i));
  if (i === null) {
    hideTip();
    return;
  }
  const v = values(current),
    rows = columns.map(({ name, c }) =>
      el(
        "tr",
        {},
        el("td", {}, CONTEXTS[name] ?? name),
        el("td", {}, number(Math.exp(c.teacher_log_prob[i]), 3)),
        el("td", {}, number(c.teacher_log_prob[i] - v.student_log_prob[i], 3)),
        el("td", {}, number(c.kl[i], 3)),
        el("td", {}, number(c.teacher_entropy[i], 3)),
      ),
    );
  showTip(span, [
    el(
      "div",
      {},
      el(
        "b.mono",
        {},
        "\u201c",
        visible(DATA.vocabulary[idsOf(current)[i]], { breaks: false }),
        "\u201d",
      ),
      el(
        "span.soft",
        {},
        `  token ${i}; the student gives it ${number(Math.exp(v.student_log_prob[i]), 3)}`,
      ),
    ),
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["the teacher reads", "p_T", "log p_T \u2212 log p_S", "KL", "H_T"].map((c) =>
            el("th", {}, c),
          ),
        ),
      ),
      el("tbody", {}, rows),
    ),
  ]);
}

// --- settings ---

function buildSettings(section) {
  section.append(
    el("h2", {}, "Settings"),
    el("p.soft", {}, "In the recipe's order; \u2022 differs from the default."),
    settingsTable(
      DATA.settings.map(([name, value, differs]) => [(differs ? "\u2022 " : "  ") + name, value]),
      ["value"],
    ),
    el("h2", {}, "Made by"),
    settingsTable(Object.entries(DATA.run_info), ["value"]),
  );
}

// --- keys ---

const KEYS = [
  ["\u2190 \u2192", "token before, token after"],
  ["n, p", "next, previous token with a high value, in whichever rollout"],
  ["j, k", "rollout below, above in the list"],
  ["1 \u2026 9", "colour by another quantity"],
  ["a", "next anchor that was found"],
  ["t", "light or dark"],
  ["Esc", "leave the token"],
  ["?", "these keys"],
];
const help = el(
  "dialog",
  {},
  el("h2", {}, "Keys"),
  el(
    "table",
    {},
    el(
      "tbody",
      {},
      KEYS.map(([key, does]) =>
        el("tr", {}, el("td.left", {}, el("kbd", {}, key)), el("td.left", {}, does)),
      ),
    ),
  ),
  el("form", { method: "dialog" }, el("p", {}, el("button", {}, "Close"))),
);
document.body.append(help);
addEventListener("keydown", (event) => {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.target.closest?.("input, select, dialog, svg") ||
    document.querySelector('section[data-view="rollouts"]')?.hidden !== false
  )
    return;
  const place = order.indexOf(current),
    anchors = current?.solution?.anchors.filter((a) => a.tokens) ?? [];
  const actions = {
    ArrowRight: () => focusToken(token === null ? 0 : Math.min(token + 1, spans.length - 1)),
    ArrowLeft: () => focusToken(Math.max((token ?? 0) - 1, 0)),
    n: () => nextHigh(1),
    p: () => nextHigh(-1),
    j: () => order[place + 1] && selectRow(order[place + 1]),
    k: () => order[place - 1] && selectRow(order[place - 1]),
    a: () => {
      const next = anchors.find((x) => x.tokens[0] > (token ?? -1)) ?? anchors[0];
      if (next) showAnchor(next);
    },
    t: () => document.getElementById("theme").click(),
    Escape: () => {
      spans[token]?.classList.remove("at");
      token = null;
      hideTip();
    },
    "?": () => help.showModal(),
  };
  const q = /^[1-9]$/.test(event.key) ? usable[Number(event.key) - 1] : null;
  if (q && current && has(current, q)) {
    quantity = q;
    address.set({ color: q.key });
    recolour();
  } else if (actions[event.key]) actions[event.key]();
  else return;
  event.preventDefault();
});
addEventListener("hashchange", () => {
  if (ROWS.length && order.length) goTo(address.get());
});

const showView = tabs(
  DATA.name,
  `${DATA.method}, ${STEPS.length} of ${DATA.run_info.steps} steps, model ${DATA.run_info.model}`,
  {
    run: { title: "Run", build: buildRun },
    rollouts: { title: "Rollouts", build: buildRollouts },
    settings: { title: "Settings", build: buildSettings },
  },
);
document.documentElement.dataset.seconds = performance.now() / 1000;
document.documentElement.dataset.ready = "true";
