// The tokens of a rollout: coloured by a quantity, with details of each.

const RAMPS = {
  light: {
    up: ["#ffffff", "#d9f0c2", "#7fcdbb", "#2c8fb8", "#24459b", "#081d58"],
    both: ["#7f3b08", "#e08214", "#fee0b6", "#ffffff", "#c6dbef", "#4393c3", "#08306b"],
  },
  dark: {
    up: ["#14161b", "#2b3f73", "#23768a", "#3fae74", "#b5d334", "#fde725"],
    both: ["#ffb95c", "#b0660f", "#4d3314", "#14161b", "#173a5c", "#2f80c0", "#9fd3ff"],
  },
};
const rgb = (hexed) => [1, 3, 5].map((i) => parseInt(hexed.slice(i, i + 2), 16));
function ramp(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1),
    i = Math.min(Math.floor(place), stops.length - 2);
  const [a, b] = [rgb(stops[i]), rgb(stops[i + 1])];
  return a.map((v, n) => Math.round(v + (b[n] - v) * (place - i)));
}
function luminance(channels) {
  const [r, g, b] = channels.map((v) => {
    const s = v / 255;
    return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
// Black or white, whichever is read better: the contrast is 4.5 or more on every colour.
const inkOn = (channels) => (luminance(channels) > 0.179 ? "#000000" : "#ffffff");

// Quantities that colour tokens. `of` takes the unpacked values of a row and a place.
const QUANTITIES = [
  { key: "kl", name: "KL without clip", unit: "nats", needs: ["kl"], of: (v, i) => v.kl[i] },
  {
    key: "loss",
    name: "loss (with clip)",
    unit: "nats",
    needs: ["loss"],
    both: true,
    of: (v, i) => v.loss[i],
  },
  {
    key: "ratio",
    name: "log p_T \u2212 log p_S",
    unit: "nats",
    needs: ["teacher_log_prob", "student_log_prob"],
    both: true,
    of: (v, i) => v.teacher_log_prob[i] - v.student_log_prob[i],
  },
  {
    key: "push",
    name: "push on the sampled token",
    unit: "\u2212dD/dz",
    needs: ["slope"],
    both: true,
    of: (v, i) => -v.slope[i],
  },
  {
    key: "hs",
    name: "H_S, student's entropy",
    unit: "nats",
    needs: ["student_entropy"],
    of: (v, i) => v.student_entropy[i],
  },
  {
    key: "ht",
    name: "H_T, teacher's entropy",
    unit: "nats",
    needs: ["teacher_entropy"],
    of: (v, i) => v.teacher_entropy[i],
  },
  {
    key: "r",
    name: "R = H_T / H_S (log\u2081\u2080)",
    unit: "",
    needs: ["entropy_ratio"],
    both: true,
    of: (v, i) => Math.log10(Math.max(v.entropy_ratio[i], 1e-12)),
  },
  {
    key: "selected",
    name: "selected",
    unit: "",
    needs: ["selected"],
    flag: true,
    of: (v, i) => v.selected[i],
  },
  {
    key: "clipped",
    name: "clipped",
    unit: "",
    needs: ["clipped"],
    flag: true,
    of: (v, i) => v.clipped[i],
  },
  {
    key: "pa",
    name: "1 \u2212 P_A, clipped target mass",
    unit: "",
    needs: ["unclipped_mass"],
    of: (v, i) => Math.max(1 - v.unclipped_mass[i], 0),
  },
  {
    key: "gap",
    name: "engine gap",
    unit: "nats",
    needs: ["engine_log_prob", "student_log_prob"],
    of: (v, i) => Math.abs(v.engine_log_prob[i] - v.student_log_prob[i]),
  },
  {
    key: "nll",
    name: "\u2212log p_S",
    unit: "nats",
    needs: ["student_log_prob"],
    of: (v, i) => -v.student_log_prob[i],
  },
];

const ROWS = DATA.steps.flatMap((step) =>
  step.rows.map((row) => ({ ...row, step: step.step, at: step })),
);
const valuesOf = new WeakMap();
function values(row) {
  if (!valuesOf.has(row))
    valuesOf.set(
      row,
      Object.fromEntries(
        Object.entries(row.values).map(([name, packed]) => [name, unpack(packed)]),
      ),
    );
  return valuesOf.get(row);
}
const idsOf = (row) => unpack(row.ids);
const lengthOf = (row) => idsOf(row).length;
// A completion's text, of its tokens: bytes of one letter may lie in several.
const texts = new WeakMap();
function textOf(row) {
  if (!texts.has(row)) {
    const pieces = Array.from(idsOf(row), (id) => DATA.vocabulary[id]).join("");
    const bytes = (odd) => Uint8Array.from(odd, (letter) => letter.charCodeAt(0) - 0xdc00);
    const whole = pieces.replace(/[\udc80-\udcff]+/g, (odd) =>
      new TextDecoder().decode(bytes(odd)),
    );
    texts.set(row, whole);
  }
  return texts.get(row);
}
const has = (row, quantity) => quantity.needs.every((name) => name in row.values);
const usable = QUANTITIES.filter((q) => ROWS.some((row) => has(row, q)));
const series = (row, quantity) =>
  Array.from({ length: lengthOf(row) }, (_, i) => quantity.of(values(row), i));

// One scale for all rows, up to what one token in two hundred passes. Small values are spread by a
// square root, or nothing but the largest would be seen.
const scales = new Map();
function scale(quantity) {
  if (!scales.has(quantity.key)) {
    const all = ROWS.filter((row) => has(row, quantity))
      .flatMap((row) => series(row, quantity))
      .map(Math.abs)
      .filter(Number.isFinite)
      .sort((a, b) => a - b);
    const high = quantity.flag
      ? 1
      : all[Math.floor(0.995 * (all.length - 1))] || all[all.length - 1] || 1;
    scales.set(quantity.key, high);
  }
  const high = scales.get(quantity.key);
  return (value) => {
    const share = Math.sign(value) * Math.sqrt(Math.min(Math.abs(value) / high, 1));
    return quantity.both ? (share + 1) / 2 : share;
  };
}
function colour(quantity, value) {
  const stops = RAMPS[isDark() ? "dark" : "light"][quantity.both ? "both" : "up"];
  return ramp(stops, quantity.flag ? value * 0.55 : scale(quantity)(value));
}

function legend(quantity) {
  const canvas = el("canvas", { width: 190, height: 12, "aria-hidden": "true" }),
    context = canvas.getContext("2d");
  const stops = RAMPS[isDark() ? "dark" : "light"][quantity.both ? "both" : "up"];
  for (let x = 0; x < 190; x++) {
    context.fillStyle = `rgb(${ramp(stops, x / 189)})`;
    context.fillRect(x, 0, 1, 12);
  }
  scale(quantity);
  const high = scales.get(quantity.key);
  if (quantity.flag) return el("span.legend", {}, `filled: ${quantity.name}`);
  const low = quantity.both ? number(-high, 2) : "0";
  return el(
    "span.legend",
    { title: "square-root scale, the same for all rows; stronger values keep the last colour" },
    low,
    canvas,
    `${number(high, 2)} ${quantity.unit}`,
    quantity.both
      ? el(
          "span",
          {},
          quantity.key === "push"
            ? "(orange: less likely, blue: likelier)"
            : "(orange: negative, blue: positive)",
        )
      : null,
  );
}

function paintToken(span, quantity, value) {
  if (!Number.isFinite(value)) {
    span.style.background = "";
    span.style.color = "";
    return;
  }
  const made = colour(quantity, value);
  span.style.background = `rgb(${made})`;
  span.style.color = inkOn(made);
}

function tokenSpans(row) {
  const ids = idsOf(row),
    v = values(row);
  return Array.from(ids, (id, i) => {
    const span = el(
      "span.t",
      { "data-i": i, tabindex: i ? -1 : 0, role: "option" },
      visible(DATA.vocabulary[id]),
    );
    if (DATA.special[id]) span.classList.add("special");
    if (v.selected?.[i]) span.classList.add("selected");
    if (v.clipped?.[i]) span.classList.add("clipped");
    return span;
  });
}

function isClipped(i, v, value) {
  const o = DATA.objective;
  if (o.clip_mode === "none") return false;
  return (o.clip_mode === "pointwise" ? value : Math.abs(v.kl[i])) > o.clip;
}

// The entries of a token: the sampled one first, then from likely to unlikely.
function entriesAt(row, i) {
  if (!row.entries) return [];
  const e = row.entries,
    edges = unpack(e.edges),
    ids = unpack(e.ids);
  const [s, t, g, term] = ["student", "teacher", "target", "term"].map((name) => unpack(e[name]));
  const made = [];
  for (let j = edges[i]; j < edges[i + 1]; j++) {
    made.push({
      text: DATA.vocabulary[ids[j]],
      sampled: j === edges[i],
      student: Math.exp(s[j]),
      teacher: Math.exp(t[j]),
      target: Math.exp(g[j]),
      summand: term[j],
      clipped: isClipped(i, values(row), term[j]),
    });
  }
  return made;
}

function pushWords(row, i, entries) {
  const v = values(row);
  if (!v.slope) return null;
  const slope = v.slope[i],
    sampled = entries[0];
  const skipped = i < DATA.objective.skip_tokens;
  if (skipped)
    return el("div.push", {}, "This token is left out of the loss (objective.skip_tokens).");
  const words =
    Math.abs(slope) < 1e-6
      ? "\u25cf The loss leaves the sampled token where it is"
      : slope < 0
        ? "\u25b2 The loss makes the sampled token likelier"
        : "\u25bc The loss makes the sampled token less likely";
  const why = [];
  // The other clips scale the gradient of the whole token, and keep its direction.
  const clipsEntries = DATA.objective.clip_mode === "pointwise";
  if (clipsEntries && sampled?.clipped && slope > 0)
    why.push(
      ` The teacher wants it higher, but its summand ` +
        `${number(sampled.summand, 2)} is over the clip ${DATA.objective.clip}: ` +
        `its own pull is cut, and what is left pushes it down (docs/fidelity.md, D1).`,
    );
  else if (clipsEntries && entries.some((e) => e.clipped && !e.sampled)) {
    const wanted = entries
      .filter((e) => e.clipped && !e.sampled)
      .sort((a, b) => b.summand - a.summand)[0];
    why.push(
      " What the teacher prefers, ",
      el("span.mono", {}, "\u201c", visible(wanted.text, { breaks: false }), "\u201d"),
      ", is clipped: its pull is cut.",
    );
  }
  return el(
    slope < -1e-6 ? "div.push.good" : slope > 1e-6 ? "div.push.bad" : "div.push",
    {},
    `${words} (dD/dz = ${number(slope, 3)}).`,
    el("span.soft", {}, why),
  );
}

const LABELS = [
  ["loss", "loss"],
  ["kl", "KL"],
  ["student_entropy", "H_S"],
  ["teacher_entropy", "H_T"],
  ["entropy_ratio", "R"],
  ["unclipped_mass", "P_A"],
  ["student_log_prob", "log p_S"],
  ["teacher_log_prob", "log p_T"],
  ["engine_log_prob", "log p_engine"],
];

function tokenCard(row, i) {
  const v = values(row),
    id = idsOf(row)[i],
    entries = entriesAt(row, i);
  const said = LABELS.filter(([name]) => v[name]).map(([name, label]) =>
    el(
      "span",
      { "data-value": name, "data-exact": v[name][i] },
      `${label} `,
      el("b", {}, number(v[name][i], 4)),
    ),
  );
  if (v.slope) said.push(el("span", { "data-value": "slope", "data-exact": v.slope[i] }));
  const marks = [v.selected?.[i] ? "selected" : null, v.clipped?.[i] ? "clipped" : null].filter(
    Boolean,
  );
  const anySelected = v.selected?.[i];
  const table = entries.length
    ? el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            ["token", "student", "teacher", "target", "summand", ""].map((c) => el("th", {}, c)),
          ),
        ),
        el(
          "tbody",
          {},
          entries.map((e) =>
            el(
              e.sampled ? "tr.sampled" : "tr",
              { "data-entry": true },
              el(
                "td.mono",
                {},
                visible(e.text, { breaks: false }),
                e.sampled ? el("span.soft", {}, "  sampled") : null,
              ),
              [
                ["student", 0],
                ["teacher", 1],
                ["target", 2],
              ].map(([view, n]) => {
                const bar = el("i");
                bar.style.width = `${Math.max(100 * e[view], 0.4)}%`;
                return el(
                  `td.p.s${n}`,
                  { "data-view": view, "data-exact": e[view] },
                  probability(e[view]),
                  bar,
                );
              }),
              el("td", {}, number(e.summand, 2)),
              el("td.bad", {}, e.clipped ? "clipped" : ""),
            ),
          ),
        ),
      )
    : null;
  return [
    el(
      "div",
      {},
      el("b.mono", {}, "\u201c", visible(DATA.vocabulary[id], { breaks: false }), "\u201d"),
      el("span.soft", {}, `  ${[`token ${i} of ${lengthOf(row)}`, ...marks].join(" \u00b7 ")}`),
    ),
    el("div.values", {}, said),
    table,
    table
      ? el(
          "div.soft",
          {},
          `probabilities at temperature ${DATA.objective.temperature}; ` +
            `the target is ${anySelected ? "moved towards the student here" : "the teacher here"}`,
        )
      : null,
    pushWords(row, i, entries),
  ];
}
const probability = (p) =>
  p >= 0.9995 || p < 1e-4 ? number(p, 2) : p.toFixed(4).replace(/0$/, "");

const tip = el("div", { id: "tip", hidden: true, role: "status" });
document.body.append(tip);
function showTip(span, parts) {
  tip.replaceChildren(...parts.filter(Boolean));
  tip.hidden = false;
  const box = span.getClientRects()[0] || span.getBoundingClientRect(),
    width = tip.offsetWidth,
    height = tip.offsetHeight;
  const left = Math.min(Math.max(box.left, 12), innerWidth - width - 12);
  const below = box.bottom + 8 + height < innerHeight || box.top < height + 12;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(below ? box.bottom + 8 : box.top - height - 8) + scrollY}px`;
}
const hideTip = () => {
  tip.hidden = true;
};
