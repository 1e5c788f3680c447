// The page of evaluations: scores of policies, samples by problem, and reasons of failures.

const POLICIES = DATA.policies,
  SETS = DATA.benchmarks;
const setNamed = (name) => SETS.find((set) => set.name === name) ?? SETS[0];
const measured = (policy, set, metric) =>
  DATA.rows.find(
    (r) =>
      r.policy === policy && r.benchmark === set && r.metric === metric && !r.against && !r.group,
  );
const gradedOf = (answers) => answers.filter((a) => a.correct !== null).length;
const shareOf = (answers) => (answers ? answers.filter((a) => a.correct).length : null);

function buildFigures(section) {
  const grid = el("div.charts.wide");
  const sets = [
    ...SETS.map((set) => set.name),
    ...(POLICIES.some((p) => measured(p, "macro", "avg_at_k")) ? ["macro"] : []),
  ];
  for (const set of sets) {
    const rows = POLICIES.map((p) => measured(p, set, "avg_at_k"))
      .filter(Boolean)
      .map((r) => ({ ...r, label: r.policy }));
    const k = setNamed(set).k;
    grid.append(
      intervalChart({
        title: set === "macro" ? `Avg@${k}, mean over benchmarks` : `Avg@${k} on ${set}`,
        note: "share of right samples, with 95 % interval",
        rows,
      }),
    );
  }
  section.append(el("h2", {}, "Accuracy"), grid);
  const differences = DATA.rows.filter((r) => r.against);
  if (differences.length) {
    section.append(
      el("h2", {}, `Difference to ${POLICIES[0]}, on the same problems`),
      el(
        "div.charts.wide",
        {},
        [...new Set(differences.map((d) => d.benchmark))].map((set) =>
          intervalChart({
            title: set,
            note: "paired difference of Avg@k, with 95 % interval",
            rows: differences
              .filter((d) => d.benchmark === set)
              .map((d) => ({ ...d, label: `${d.policy} (p ${number(d.p, 1)})` })),
            format: points,
          }),
        ),
      ),
    );
  }
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
  gained: [
    "better in the second of the two",
    (p) => shareOf(p.answers[pair[1]]) > shareOf(p.answers[pair[0]]),
  ],
  lost: [
    "worse in the second of the two",
    (p) => shareOf(p.answers[pair[1]]) < shareOf(p.answers[pair[0]]),
  ],
  never: [
    "never right",
    (p) => Object.values(p.answers).every((a) => gradedOf(a) > 0 && shareOf(a) === 0),
  ],
  always: [
    "always right",
    (p) => Object.values(p.answers).every((a) => gradedOf(a) > 0 && shareOf(a) === gradedOf(a)),
  ],
  cut: [
    "with truncated answers",
    (p) =>
      Object.values(p.answers)
        .flat()
        .some((a) => a.truncated),
  ],
  doubt: ["gold answer with a warning", (p) => p.doubt !== null],
};

function cells(answers) {
  return el(
    "span.cells",
    { "aria-hidden": "true" },
    answers.map((a) =>
      el(["i", a.correct && "yes", a.truncated && "cut"].filter(Boolean).join("."), {
        title: a.reason,
      }),
    ),
  );
}

function drawProblems() {
  const text = wanted.text.toLowerCase(),
    keep = KINDS_OF_PROBLEMS[wanted.kind][1];
  const value = sort.key === "id" ? null : (p) => shareOf(p.answers[sort.key]) ?? -1;
  const rows = set.problems.filter(
    (p) => keep(p) && (p.id.toLowerCase().includes(text) || p.problem.toLowerCase().includes(text)),
  );
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
          const a = problem.answers[p];
          return el("td", {}, a ? [cells(a), ` ${shareOf(a)}/${gradedOf(a)}`] : "");
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
    el("div.text", {}, readable(problem.problem)),
    el(
      "div.facts",
      {},
      el(
        "span",
        {},
        "gold ",
        problem.golds.map((gold) => el("b.mono", {}, visible(gold), " ")),
      ),
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
function answerPanel(answer, i) {
  const verdict =
    answer.correct === null
      ? el("b.soft", {}, `not graded: ${answer.reason}`)
      : answer.correct
        ? el("b.good", {}, "\u2713 right")
        : el("b.bad", {}, `\u2717 ${answer.reason}`);
  const extra = [
    ...Object.entries(answer.metrics)
      .filter(([, value]) => value !== Number(answer.correct))
      .map(([name, value]) => `${name} ${number(value, 2)}`),
    answer.truncated ? "truncated" : null,
    answer.looping ? "repeating" : null,
  ].filter(Boolean);
  return el(
    "details.panel",
    { open: i === 0, "data-sample": i },
    el(
      "summary",
      {},
      `#${i} `,
      verdict,
      " ",
      answer.answer === null ? "" : el("span.mono", {}, visible(answer.answer, { breaks: false })),
      el("span.soft", {}, `  ${[`${number(answer.tokens)} tokens`, ...extra].join(" \u00b7 ")}`),
    ),
    el(
      "p.soft",
      {},
      answer.correct
        ? null
        : `Why: ${Object.hasOwn(WHY, answer.reason) ? WHY[answer.reason] : answer.reason}.`,
    ),
    el("pre", {}, readable(answer.text)),
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
        placeholder: "problem or its id",
        "aria-label": "search in problems",
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
  figures: { title: "Accuracy", build: buildFigures },
  problems: { title: "Problems", build: buildProblems },
  settings: { title: "Protocol", build: buildSettings },
});
document.documentElement.dataset.ready = "true";
