"use strict";
// Shared by all pages: data, elements, untrusted text, address, theme.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  return filled(made, attributes, children);
}

function svg(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElementNS(SVG, tag);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  return filled(made, attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined)
      made.setAttribute(key, key === "title" || key === "aria-label" ? clean(value) : value);
  }
  const shown = children
    .flat(9)
    .filter((child) => child !== null && child !== undefined && child !== false);
  made.append(...shown.map((child) => (child instanceof Node ? child : clean(child))));
  return made;
}

// Arrays of numbers come as base64 of little-endian bytes; each is unpacked once.
const unpacked = new WeakMap();
const KINDS_OF_ARRAYS = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
function unpack(packed) {
  if (!packed) return null;
  if (!unpacked.has(packed)) {
    const [kind, text] = Object.entries(packed)[0];
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    unpacked.set(packed, new KINDS_OF_ARRAYS[kind](bytes.buffer));
  }
  return unpacked.get(packed);
}

// Untrusted text becomes text nodes. Control characters, direction marks and invisible characters
// are shown by name.
const UNSEEN = new RegExp(
  String.raw`[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4` +
    String.raw`\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufe00-\ufe0f` +
    String.raw`\ufeff\ufff9-\ufffb\ud800-\udfff]|\udb40[\udc00-\udfff]`,
);
const isUnseen = (letter) => {
  const code = letter.codePointAt(0);
  return (code <= 0xffff || code >= 0xe0000) && UNSEEN.test(letter);
};
const unseenName = (letter) => `U+${hex(letter.codePointAt(0), 4)}`;
// Names in headings, labels and tables: without marks, in one text.
function clean(text) {
  const whole = String(text);
  return UNSEEN.test(whole)
    ? Array.from(whole, (letter) => (isUnseen(letter) ? unseenName(letter) : letter)).join("")
    : whole;
}
function visible(text, { breaks = true } = {}) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) {
      nodes.push(document.createTextNode(plain));
      plain = "";
    }
  };
  const mark = (kind, shown) => {
    flush();
    nodes.push(el(`span.${kind}`, {}, shown));
  };
  for (const letter of text) {
    const code = letter.codePointAt(0);
    if (letter === " ") mark("w", "\u00b7");
    else if (letter === "\n") {
      mark("w", "\u21b5");
      if (breaks) plain += "\n";
    } else if (letter === "\t") mark("w", "\u21e5");
    else if (code >= 0xdc80 && code <= 0xdcff) mark("odd", hex(code - 0xdc00, 2));
    else if (code < 0x20) mark("odd", String.fromCodePoint(0x2400 + code));
    else if (code === 0x7f) mark("odd", "\u2421");
    else if (isUnseen(letter)) mark("odd", unseenName(letter));
    else plain += letter;
  }
  flush();
  return nodes;
}
// The same for longer texts, without marks for blanks.
function readable(text) {
  const nodes = [];
  for (const part of text.split(/([^\S\n\t]?[ \n\t]+)/)) {
    if (/^[ \n\t]*$/.test(part)) nodes.push(document.createTextNode(part));
    else nodes.push(...visible(part));
  }
  return nodes;
}
const hex = (code, digits) => code.toString(16).toUpperCase().padStart(digits, "0");

// As Python rounds, which writes the tables: of an exact half to the even digit. toFixed rounds it
// up.
function fixed(value, digits) {
  const rounded = value.toFixed(digits),
    rest = value.toFixed(100).split(".")[1].slice(digits);
  const isUp = /^50*$/.test(rest) && Number(rounded.at(-1)) % 2 === 1;
  return isUp ? (2 * value - Number(rounded)).toFixed(digits) : rounded;
}
function precise(value, digits) {
  const decimals = digits - 1 - Number(value.toExponential(digits - 1).split("e")[1]);
  return decimals < 0 ? value.toPrecision(digits) : fixed(value, decimals);
}
function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4)
    return value
      .toExponential(digits - 1)
      .replace("e+", "e")
      .replace("-", "\u2212");
  const shown =
    size >= 1000
      ? Number(fixed(value, 0)).toLocaleString("en")
      : String(Number(precise(value, digits)));
  return shown.replace("-", "\u2212");
}
const percent = (value, digits = 1) =>
  value === null || value === undefined ? "\u2013" : `${fixed(100 * value, digits)} %`;
const points = (value, digits = 1) =>
  value === null || value === undefined
    ? "\u2013"
    : `${value >= 0 ? "+" : "\u2212"}${fixed(100 * Math.abs(value), digits)}`;
// Rewards are shown in hundredths, as the tables have them.
const hundredths = (value) =>
  value === null || value === undefined ? "\u2013" : fixed(100 * value, 1).replace("-", "\u2212");
const countOf = (count, one, several = `${one}s`) => `${count} ${count === 1 ? one : several}`;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);

// The address holds the current selection, so that links open it.
const address = {
  get() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  },
  set(changes, { replace = true } = {}) {
    const next = { ...this.get(), ...changes };
    for (const key of Object.keys(next))
      if (next[key] === null || next[key] === undefined || next[key] === "") delete next[key];
    const hash = `#${new URLSearchParams(next)}`;
    if (hash === location.hash) return;
    if (replace) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
  },
};

// Theme: light, dark, or the system's.
function isDark() {
  const asked = document.documentElement.dataset.theme;
  return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
const themeListeners = [];
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  themeListeners.forEach((f) => f()),
);
function themeButton() {
  const button = el(
    "button",
    {
      type: "button",
      id: "theme",
      title: "Light or dark",
      onclick: () => {
        document.documentElement.dataset.theme = isDark() ? "light" : "dark";
        button.textContent = isDark() ? "Light" : "Dark";
        themeListeners.forEach((f) => f());
      },
    },
    isDark() ? "Light" : "Dark",
  );
  return button;
}

// Tabs of the page; a view is built when it is first opened.
function tabs(title, subtitle, views) {
  const top = document.getElementById("top"),
    main = document.getElementById("main");
  const built = new Map(),
    buttons = new Map();
  const show = (name, move = true) => {
    if (!Object.hasOwn(views, name ?? "")) name = Object.keys(views)[0];
    for (const [key, button] of buttons) button.setAttribute("aria-selected", key === name);
    if (!built.has(name)) {
      const section = el("section", { "data-view": name, role: "tabpanel" });
      built.set(name, section);
      main.append(section);
      views[name].build(section);
    }
    for (const [key, section] of built) section.hidden = key !== name;
    if (move) address.set({ view: name });
    views[name].shown?.();
  };
  top.append(el("h1", { title }, title), el("span.soft", {}, subtitle), el("span.gap"));
  const bar = el("div", { role: "tablist" });
  for (const [name, view] of Object.entries(views)) {
    const button = el(
      "button",
      { type: "button", role: "tab", onclick: () => show(name) },
      view.title,
    );
    buttons.set(name, button);
    bar.append(button, " ");
  }
  top.append(bar, themeButton());
  addEventListener("hashchange", () => show(address.get().view, false));
  show(address.get().view, false);
  return show;
}

// A conversation, role by role.
function turnsOf(turns) {
  const shown = turns.map(([role, text]) =>
    el("div.turn", { "data-role": role }, el("b", {}, role), el("div.text", {}, readable(text))),
  );
  return el("div.chat", {}, shown);
}

// What evaluations say of a run, each with a link to its page, or how to make that.
function evaluationLinks(evaluations) {
  return evaluations.flatMap(({ text, folder, link }) => [
    link ? el("a", { href: link }, text) : text,
    link ? "" : el("span.soft", {}, ` (paint show ${folder})`),
    ". ",
  ]);
}

function settingsTable(settings, columns) {
  return el(
    "div.scroll.settings",
    {},
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["setting", ...columns].map((c) => el("th.left", {}, c)),
        ),
      ),
      el(
        "tbody",
        {},
        settings.map((row) =>
          el(
            "tr",
            {},
            row.map((cell) => el("td.left.mono", {}, readable(String(cell)))),
          ),
        ),
      ),
    ),
  );
}

// A table of results, with its title. Columns without a name are labels.
function tableOf(table) {
  const kind = (tag, i) => (table.columns[i] ? tag : `${tag}.left`);
  return [
    el("h2", {}, table.title),
    el(
      "div.scroll.results",
      {},
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            table.columns.map((column, i) => el(kind("th", i), {}, column)),
          ),
        ),
        el(
          "tbody",
          {},
          table.rows.map((row) =>
            el(
              "tr",
              {},
              row.map((cell, i) => el(kind("td", i), { "data-head": table.columns[i] }, cell)),
            ),
          ),
        ),
      ),
    ),
  ];
}
