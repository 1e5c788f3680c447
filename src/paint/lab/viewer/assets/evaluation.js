// The page of evaluations: scores of policies, samples by problem, and reasons of failures.

const POLICIES = DATA.policies,
  SETS = DATA.benchmarks;
const setNamed = (name) => SETS.find((set) => set.name === name) ?? SETS[0];
const measured = (policy, set, metric) =>
  DATA.rows.find(
    (r) =>
      r.policy === policy && r.benchmark === set && r.metric === metric && !r.against && !r.group,
  );
const gradedOf = (answers) => answers.filter((a) => a.correct !== null);
const countRight = (answers) => answers.filter((a) => a.correct).length;
// The mean reward of the answers that have one; a verdict is 1 or 0.
const scoreOf = (answers) => {
  const graded = gradedOf(answers ?? []);
  return graded.length ? mean(graded.map((a) => a.reward)) : null;
};

const IS_REWARD = DATA.metric === "reward";
const FORMAT = IS_REWARD ? hundredths : percent;

// Problems without a graded sample of every policy that was asked.
function ungradedNote(name) {
  const of = SETS.filter((set) => name === "macro" || set.name === name).flatMap((s) => s.problems);
  const without = of.filter((p) => Object.values(p.answers).some((a) => !gradedOf(a).length));
  return without.length ? `; ${without.length} of ${of.length} problems have no reward` : "";
}

function scoreChart(name) {
  const rows = POLICIES.map((p) => measured(p, name, DATA.metric))
    .filter(Boolean)
    .map((r) => ({ ...r, label: r.policy }));
  const what = IS_REWARD ? "in hundredths" : "share of right samples";
  const score = IS_REWARD ? "Mean reward" : `Avg@${setNamed(name).k}`;
  return intervalChart({
    title: name === "macro" ? `${score}, mean over benchmarks` : `${score} on ${name}`,
    note: `${what}, ${intervalNote(rows)}${ungradedNote(name)}`,
    rows,
    format: FORMAT,
  });
}

function differenceChart(name) {
  const rows = DATA.rows
    .filter((r) => r.against && r.benchmark === name)
    .map((r) => ({ ...r, label: `${r.policy} (p ${number(r.p, 1)})` }));
  const what = IS_REWARD ? "the mean reward, in hundredths" : "Avg@k";
  return intervalChart({
    title: name,
    note: `paired difference of ${what}, ${intervalNote(rows)}`,
    rows,
    format: points,
  });
}

function buildFigures(section) {
  const names = [...SETS.map((set) => set.name), "macro"];
  const there = names.filter((name) => POLICIES.some((p) => measured(p, name, DATA.metric)));
  section.append(
    el("h2", {}, IS_REWARD ? "Mean reward" : "Accuracy"),
    there.length
      ? el("div.charts.wide", {}, there.map(scoreChart))
      : el("p.note", {}, "No sample has a reward: the grader failed, or said nothing."),
  );
  const compared = new Set(DATA.rows.filter((r) => r.against).map((r) => r.benchmark));
  if (compared.size)
    section.append(
      el("h2", {}, `Difference to ${POLICIES[0]}, on the same problems`),
      el("div.charts.wide", {}, [...compared].map(differenceChart)),
    );
  section.append(...DATA.tables.flatMap(tableOf));
}

// --- problem by problem ---

let set = setNamed(address.get().set),
  chosen = null,
  sort = { key: "id", down: false };
const wanted = { text: "", kind: "" };
const pair = [POLICIES[0], POLICIES[POLICIES.length - 1]];
const body = el("tbody"),
  answersBox = el("div", { id: "answers" }),
  head = el("thead"),
  countedProblems = el("span.soft");

const KINDS_OF_PROBLEMS = {
  "": ["all problems", () => true],
  gained: ["better in the second of the two", (p) => isBetter(p, pair[1], pair[0])],
  lost: ["worse in the second of the two", (p) => isBetter(p, pair[0], pair[1])],
  never: [
    "never right",
    (p) => Object.values(p.answers).every((a) => gradedOf(a).length && !countRight(a)),
  ],
  always: [
    "always right",
    (p) =>
      Object.values(p.answers).every(
        (a) => gradedOf(a).length && countRight(a) === gradedOf(a).length,
      ),
  ],
  cut: [
    "with truncated answers",
    (p) =>
      Object.values(p.answers)
        .flat()
        .some((a) => a.truncated),
  ],
  ungraded: [
    "with answers that are not graded",
    (p) => Object.values(p.answers).some((a) => gradedOf(a).length < a.length),
  ],
  doubt: ["gold answer with a warning", (p) => p.doubt !== null],
};
// Those that the page can have: few rewards of a judge are 1.
const hasNumbers = SETS.some((each) => each.has_numbers);
if (hasNumbers) for (const kind of ["never", "always"]) delete KINDS_OF_PROBLEMS[kind];
for (const kind of ["ungraded", "doubt"])
  if (!SETS.some((each) => each.problems.some(KINDS_OF_PROBLEMS[kind][1])))
    delete KINDS_OF_PROBLEMS[kind];

function isBetter(problem, policy, other) {
  const [a, b] = [policy, other].map((name) => scoreOf(problem.answers[name]));
  return a !== null && b !== null && a > b;
}

// A problem's answers in the list: a square for each verdict, or the mean of rewards.
function cells(answers) {
  if (!answers) return "";
  if (set.has_numbers) {
    const score = scoreOf(answers);
    return score === null ? "\u2013" : fixed(score, 2);
  }
  const squares = answers.map((a) =>
    el(["i", a.correct && "yes", a.truncated && "cut"].filter(Boolean).join("."), {
      title: a.reason,
    }),
  );
  return [
    el("span.cells", { "aria-hidden": "true" }, squares),
    ` ${countRight(answers)}/${gradedOf(answers).length}`,
  ];
}

const has = (text, wantedText) => text.toLowerCase().includes(wantedText);
const isNamed = (problem, text) =>
  has(problem.id, text) ||
  has(problem.problem, text) ||
  problem.turns.some((turn) => has(turn[1], text)) ||
  Object.values(problem.answers)
    .flat()
    .some((a) => has(a.text, text) || a.turns.some((turn) => has(turn[1], text)));

function drawProblems() {
  const text = wanted.text.toLowerCase(),
    keep = KINDS_OF_PROBLEMS[wanted.kind][1];
  const value = sort.key === "id" ? null : (p) => scoreOf(p.answers[sort.key]) ?? -Infinity;
  const rows = set.problems.filter((p) => keep(p) && (!text || isNamed(p, text)));
  if (value) rows.sort((a, b) => (sort.down ? -1 : 1) * (value(a) - value(b)));
  else if (sort.down) rows.reverse();
  countedProblems.textContent = `${rows.length} of ${countOf(set.problems.length, "problem")}`;
  const heads = [["id", "problem"], ...POLICIES.map((p) => [p, p])];
  head.replaceChildren(
    el(
      "tr",
      {},
      heads.map(([key, title]) =>
        el(
          key === "id" ? "th.left" : "th",
          {},
          el(
            "button",
            {
              type: "button",
              title,
              onclick: () => {
                sort = { key, down: sort.key === key ? !sort.down : false };
                drawProblems();
              },
            },
            title,
          ),
        ),
      ),
    ),
  );
  body.replaceChildren(
    ...rows.map((problem) => {
      const open = () => choose(problem);
      return el(
        "tr",
        {
          tabindex: 0,
          "data-problem": problem.id,
          "aria-selected": problem === chosen,
          onclick: open,
          onkeydown: (e) => {
            if (e.key === "Enter") open();
          },
        },
        el(
          "td.left",
          {},
          readable(problem.id),
          problem.doubt ? el("span.bad", { title: problem.doubt }, " doubt") : null,
        ),
        POLICIES.map((p) => {
          return el("td", {}, cells(problem.answers[p]));
        }),
      );
    }),
  );
}

function choose(problem, { move = true } = {}) {
  chosen = problem;
  for (const line of body.children)
    line.setAttribute("aria-selected", line.dataset.problem === problem.id);
  if (move) address.set({ set: set.name, problem: problem.id });
  const select = (n) =>
    el(
      "select",
      {
        "aria-label": n ? "second policy" : "first policy",
        onchange: (e) => {
          pair[n] = e.target.value;
          drawProblems();
          choose(chosen);
        },
      },
      POLICIES.map((p) => el("option", { value: p, selected: p === pair[n] }, p)),
    );
  const shown = pair[0] === pair[1] ? [pair[0]] : pair;
  answersBox.replaceChildren(
    el("h2", {}, "Problem ", readable(problem.id)),
    problem.turns.length ? turnsOf(problem.turns) : el("div.text", {}, readable(problem.problem)),
    el(
      "div.facts",
      {},
      problem.golds.length
        ? el(
            "span",
            {},
            "gold ",
            problem.golds.map((gold) => el("b.mono", {}, visible(gold), " ")),
          )
        : null,
      Object.entries(problem.labels).map(([name, value]) => el("span", {}, `${name} ${value}`)),
    ),
    ...[
      problem.doubt
        ? el(
            "div.note",
            {},
            "Look at this gold answer: it may be misread, or does not parse. ",
            readable(problem.doubt),
          )
        : null,
    ].filter(Boolean),
    ...[
      problem.solution
        ? el(
            "details.panel",
            {},
            el("summary", {}, "Reference solution"),
            el("pre", {}, readable(problem.solution)),
          )
        : null,
    ].filter(Boolean),
    POLICIES.length > 1 ? el("div.bar-row", {}, "side by side ", select(0), select(1)) : "",
    el(
      "div.grid2",
      {},
      shown.map((p) =>
        el(
          "div",
          { "data-policy": p },
          el("h3", {}, p),
          (problem.answers[p] ?? []).map((answer, i) => answerPanel(answer, i)),
        ),
      ),
    ),
  );
}

const WHY = {
  right: "right",
  wrong: "another answer than the gold one",
  "no box": "no answer in a box",
  "unclosed thought": "the thought was never closed, so nothing after it counts",
  truncated: "cut at the token limit before an answer",
  "unparsable gold": "the gold answer does not parse",
  "timed out": "the comparison took too long",
};
function verdictOf(answer) {
  if (answer.correct === null) return el("b.soft", {}, `not graded: ${answer.reason}`);
  if (set.has_numbers) return el("b", {}, `reward ${number(answer.reward)}`);
  return answer.correct
    ? el("b.good", {}, "\u2713 right")
    : el("b.bad", {}, `\u2717 ${answer.reason || "wrong"}`);
}

function answerPanel(answer, i) {
  const extra = [
    `${number(answer.tokens)} tokens`,
    ...Object.entries(answer.rewards).map(([name, value]) => `${name} ${number(value, 2)}`),
    ...Object.entries(answer.metrics)
      .filter(([, value]) => value !== Number(answer.correct))
      .map(([name, value]) => `${name} ${number(value, 2)}`),
    answer.truncated ? "truncated" : null,
    answer.looping ? "repeating" : null,
  ].filter(Boolean);
  const why = Object.hasOwn(WHY, answer.reason) ? WHY[answer.reason] : answer.reason;
  const isExplained = why && answer.correct !== null && (set.has_numbers || !answer.correct);
  return el(
    "details.panel",
    { open: i === 0, "data-sample": i },
    el(
      "summary",
      {},
      `#${i} `,
      verdictOf(answer),
      " ",
      answer.answer === null ? "" : el("span.mono", {}, visible(answer.answer, { breaks: false })),
      el("span.soft", {}, `  ${extra.join(" \u00b7 ")}`),
    ),
    isExplained
      ? el("p.soft.reason", {}, "Why: ", readable(why), why.endsWith(".") ? "" : ".")
      : null,
    answer.turns.length ? turnsOf(answer.turns) : el("pre", {}, readable(answer.text)),
    answer.feedback
      ? el("div.remark", {}, el("b", {}, "Remark"), el("div.text", {}, readable(answer.feedback)))
      : null,
  );
}

function buildProblems(section) {
  const list = el(
    "div.list",
    {},
    el(
      "div.filters",
      { id: "filters" },
      SETS.length > 1
        ? el(
            "select",
            {
              "aria-label": "benchmark",
              onchange: (e) => {
                set = setNamed(e.target.value);
                drawProblems();
                choose(set.problems[0]);
              },
            },
            SETS.map((s) => el("option", { value: s.name, selected: s === set }, s.name)),
          )
        : null,
      el(
        "select",
        {
          name: "kind",
          "aria-label": "which problems",
          onchange: (e) => {
            wanted.kind = e.target.value;
            drawProblems();
          },
        },
        Object.entries(KINDS_OF_PROBLEMS).map(([key, [name]]) =>
          el("option", { value: key }, name),
        ),
      ),
      el("input", {
        type: "search",
        name: "text",
        placeholder: "text of problems and answers, or an id",
        "aria-label": "search in texts",
        oninput: (e) => {
          wanted.text = e.target.value;
          drawProblems();
        },
      }),
      countedProblems,
    ),
    el("div.scroll", {}, el("table", { id: "problems" }, head, body)),
  );
  section.append(el("div.split.evaluation", {}, list, answersBox));
  drawProblems();
  choose(set.problems.find((p) => p.id === address.get().problem) ?? set.problems[0], {
    move: false,
  });
}

function buildSettings(section) {
  const rows = POLICIES.flatMap((p) =>
    Object.entries(DATA.settings[p]).flatMap(([name, settings]) =>
      Object.entries(settings).map(([key, value]) => [
        `${p}, ${name}: ${key}`,
        JSON.stringify(value),
      ]),
    ),
  );
  section.append(el("h2", {}, "Evaluation settings"), settingsTable(rows, ["value"]));
}

addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select") || event.ctrlKey || event.metaKey || !chosen) return;
  const lines = [...body.children],
    at = lines.findIndex((line) => line.dataset.problem === chosen.id),
    next = lines[at + ({ j: 1, k: -1 }[event.key] ?? 0)];
  if (next && (event.key === "j" || event.key === "k")) {
    choose(set.problems.find((p) => p.id === next.dataset.problem));
    next.scrollIntoView({ block: "nearest" });
  }
});
addEventListener("hashchange", () => {
  const found = set.problems.find((p) => p.id === address.get().problem);
  if (found && found !== chosen) choose(found);
});

const sizes = SETS.map((s) => `${s.name} (${countOf(s.problems.length, "problem")}, k = ${s.k})`);
tabs(DATA.name, `${countOf(POLICIES.length, "policy", "policies")}, ${sizes.join(", ")}`, {
  figures: { title: IS_REWARD ? "Rewards" : "Accuracy", build: buildFigures },
  problems: { title: "Problems", build: buildProblems },
  settings: { title: "Protocol", build: buildSettings },
});
document.documentElement.dataset.ready = "true";
