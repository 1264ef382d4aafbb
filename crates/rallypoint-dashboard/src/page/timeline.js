// The run's time as a picture: bars for what its nodes did, marks for what happened. The table of rounds and the list of events say the same.

import { clock, el, now, say, span, svg } from "./dom.js";

const HEIGHT = 64;
const TOP = 22;
const BAR = 24;
const WORDS = { forming: "forming", working: "at work", regaining: "meeting again" };
const MARKS = { died: "a node died", failed: "a worker failed", left: "a node left", closed: "closed" };
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];

export class TimelinePicture {
  #timeline = { bars: [], marks: [], rounds: [], note: "" };
  #texts = new Map();
  #picture = svg("svg", { class: "picture", role: "img", height: HEIGHT });
  #legend = el("ul", { class: "legend", "aria-label": "Legend of the timeline" });
  #note = el("p", { class: "soft" });
  #rows = el("tbody");
  #rounds;
  #onMark;

  constructor(onMark) {
    this.#onMark = onMark;
    const head = ["Round", "Began", "Worked for", "Ended because"].map((text) => el("th", { scope: "col" }, text));
    const table = el("table", { class: "rounds", "aria-label": "Rounds, newest first" }, el("thead", {}, el("tr", {}, ...head)), this.#rows);
    this.#rounds = el("details", { class: "rounds" }, el("summary", {}, "Rounds as a table"), el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of the rounds" }, table));
    this.root = el("div", { class: "timeline" }, this.#note, this.#picture, this.#legend, this.#rounds);
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  /** `texts` has the sentence of each event by its id. */
  show(timeline, texts) {
    this.#timeline = timeline;
    this.#texts = texts;
    say(this.#note, timeline.note);
    this.#note.hidden = !timeline.note;
    this.#picture.toggleAttribute("hidden", !timeline.bars.length);
    this.#showLegend();
    this.#showRounds();
    this.draw();
  }

  /** Of what there is in the picture. */
  #showLegend() {
    const has = (list, kind) => list.some((one) => one.kind === kind);
    const bars = Object.entries(WORDS).filter(([kind]) => has(this.#timeline.bars, kind));
    const marks = Object.entries(MARKS).filter(([kind]) => has(this.#timeline.marks, kind));
    const swatch = (kind) => el("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
    this.#legend.replaceChildren(...bars.map(([kind, words]) => el("li", {}, swatch(kind), words)), ...marks.map(([kind, words]) => el("li", {}, shape(kind, true), words)));
    this.#legend.hidden = !this.#legend.children.length;
  }

  #showRounds() {
    const { rounds } = this.#timeline;
    this.#rounds.hidden = !rounds.length;
    const focused = this.#rows.contains(document.activeElement) ? document.activeElement.dataset.event : undefined;
    this.#rows.replaceChildren(...rounds.map((round) => this.#round(round)));
    if (focused) [...this.#rows.querySelectorAll("button")].find((button) => button.dataset.event === focused)?.focus();
  }

  #round({ round, from_ms, to_ms, why, event }) {
    const cause = event ? el("button", { type: "button", class: "jump" }, el("bdi", {}, why)) : el("bdi", {}, why);
    if (event) {
      cause.dataset.event = event;
      cause.addEventListener("click", () => this.#onMark(event));
    }
    const worked = el("td", {}, span((to_ms ?? now()) - from_ms));
    if (to_ms === null) worked.dataset.from = from_ms;
    return el("tr", {}, el("th", { scope: "row" }, String(round)), el("td", {}, clock(from_ms)), worked, el("td", {}, cause));
  }

  /** What goes on now, if something does. */
  get open() {
    return this.#timeline.bars.find((bar) => bar.to_ms === null);
  }

  draw() {
    const { bars, marks } = this.#timeline;
    const width = Math.floor(this.root.clientWidth);
    for (const open of this.#rows.querySelectorAll("[data-from]")) say(open, span(Math.floor((now() - open.dataset.from) / 1000) * 1000));
    if (!width || !bars.length) return;
    const from = bars[0]?.from_ms ?? 0;
    const to = Math.max(...bars.map((bar) => bar.to_ms ?? now()), ...marks.map((mark) => mark.at_ms), from + 1000);
    const x = (ms) => 1 + ((ms - from) / (to - from)) * (width - 2);
    const parts = [];
    for (const bar of bars) {
      const end = bar.to_ms ?? now();
      const left = x(bar.from_ms);
      const wide = Math.max(2, x(end) - left - 1);
      const what = bar.kind === "working" ? `round ${bar.round}, at work` : WORDS[bar.kind];
      const label = `${what} for ${span(end - bar.from_ms)}, from ${clock(bar.from_ms)}`;
      parts.push(svg("rect", { class: `bar ${bar.kind}`, x: left, y: TOP, width: wide, height: BAR, rx: Math.min(3, wide / 2) }, title(label)));
      const text = bar.kind === "working" ? `round ${bar.round}` : WORDS[bar.kind];
      if (wide > 7 * text.length + 8) parts.push(svg("text", { class: `of ${bar.kind}`, x: left + wide / 2, y: TOP + BAR / 2 + 4 }, text));
    }
    for (const mark of marks) {
      const symbol = shape(mark.kind, false);
      symbol.setAttribute("transform", `translate(${Math.min(width - 8, Math.max(8, x(mark.at_ms)))} 11)`);
      symbol.append(title(`${this.#texts.get(mark.event) ?? MARKS[mark.kind]}, ${clock(mark.at_ms)}`));
      symbol.addEventListener("click", () => this.#onMark(mark.event));
      parts.push(svg("line", { class: "thread", x1: x(mark.at_ms), x2: x(mark.at_ms), y1: 17, y2: TOP + BAR }), symbol);
    }
    parts.push(...ticks(from, to, width, x));
    this.#picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#picture.setAttribute("width", width);
    this.#picture.setAttribute("aria-label", describe(bars, marks, from, to));
    this.#picture.replaceChildren(...parts);
  }
}

function describe(bars, marks, from, to) {
  if (!bars.length) return "Timeline: nothing has happened yet";
  const sums = {};
  for (const bar of bars) sums[bar.kind] = (sums[bar.kind] ?? 0) + (bar.to_ms ?? to) - bar.from_ms;
  const counted = Object.entries(sums).map(([kind, ms]) => `${WORDS[kind]} ${span(ms)}`);
  return `Timeline since ${clock(from)}: ${counted.join(", ")}; ${marks.length} marks. The table of rounds and the list of events tell the same in words.`;
}

function title(text) {
  return svg("title", {}, text);
}

/** Each kind of mark has a shape of its own. */
function shape(kind, alone) {
  const paths = {
    died: "M-5-5 5 5M5-5-5 5",
    failed: "M0 5 6-5-6-5Z",
    left: "M-5 0 4-5 4 5Z",
    closed: "M-5-5h10v10h-10Z",
  };
  const mark = svg("g", { class: `mark ${kind}` }, svg("path", { d: paths[kind] ?? paths.left }));
  return alone ? svg("svg", { class: "symbol", width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark) : mark;
}

function ticks(from, to, width, x) {
  const most = Math.max(2, Math.floor(width / 110));
  const step = (STEPS.find((seconds) => (to - from) / 1000 / seconds <= most) ?? 604800 * 4) * 1000;
  const parts = [];
  const offset = new Date(from).getTimezoneOffset() * 60_000;
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) {
    const left = x(at);
    if (left < 28 || left > width - 28) continue;
    const date = new Date(at);
    const time = date.toTimeString().slice(0, step < 60_000 ? 8 : 5);
    const text = step >= 86_400_000 ? date.toISOString().slice(5, 10) : time;
    parts.push(svg("line", { class: "tick", x1: left, x2: left, y1: TOP + BAR + 2, y2: TOP + BAR + 5 }));
    parts.push(svg("text", { class: "time", x: left, y: HEIGHT - 2 }, text));
  }
  return parts;
}
