// The run's time as a picture: bars for what its nodes did, marks for what happened. The table of rounds and the list of events say the same.

import { clock, el, exact, lasting, now, say, span, svg } from "./dom.js";

const HEIGHT = 64;
const TOP = 22;
const BAR = 24;
/** From one mark to another that does not cover it. */
const BESIDE = 16;
const WORDS = { forming: "forming", working: "at work", regaining: "meeting again" };
const MARKS = { died: "a node died or was killed", failed: "a worker failed", left: "a node left", closed: "closed" };
/** Up to so many times in which the nodes met again are told one by one. */
const SINGLE = 3;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];

export class TimelinePicture {
  #timeline = { bars: [], marks: [], rounds: [], note: "" };
  #texts = new Map();
  #waits = null;
  /** The event whose mark the Tab key stops at. */
  #stop = null;
  #picture = svg("svg", { class: "picture", role: "group", height: HEIGHT });
  #legend = el("ul", { class: "legend", "aria-label": "Legend of the timeline" });
  #note = el("p", { class: "soft" });
  #rows = el("tbody");
  #rounds;
  #onMark;

  constructor(onMark) {
    this.#onMark = onMark;
    this.#picture.addEventListener("click", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) onMark(mark.dataset.event);
    });
    this.#picture.addEventListener("keydown", (event) => this.#key(event));
    const head = ["Round", "Nodes", "Began", "Ended", "Worked for", "Lost after it", "Ended because"].map((text) => el("th", { scope: "col" }, text));
    const table = el("table", { class: "rounds", "aria-label": "Rounds, newest first" }, el("thead", {}, el("tr", {}, ...head)), this.#rows);
    this.#rounds = el("details", { class: "rounds" }, el("summary", {}, "Rounds as a table"), el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of the rounds" }, table));
    this.root = el("div", { class: "timeline" }, this.#note, this.#picture, this.#legend, this.#rounds);
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  /** `texts` has the sentence of each event by its id. */
  show(timeline, texts, waits) {
    this.#timeline = timeline;
    this.#waits = waits;
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

  #round({ round, is_forming, nodes, from_ms, to_ms, after, why, event }) {
    const cause = event ? el("button", { type: "button", class: "jump" }, el("bdi", {}, why)) : el("bdi", {}, why);
    if (event) {
      cause.dataset.event = event;
      cause.addEventListener("click", () => this.#onMark(event));
    }
    const time = (from, to) => (to === null ? lasting(from) : el("span", {}, span(to - from)));
    const at = (ms) => (ms === null ? "–" : el("time", { title: exact(ms) }, clock(ms)));
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, is_forming ? `${round}, being formed` : String(round)),
      el("td", {}, String(nodes ?? "–")),
      el("td", {}, is_forming ? "–" : at(from_ms)),
      el("td", {}, at(to_ms)),
      el("td", {}, is_forming ? "–" : time(from_ms, to_ms)),
      el("td", {}, after ? time(after.from_ms, after.to_ms) : "–"),
      el("td", {}, cause),
    );
  }

  /** The time in which no workers ran, by what it went into, and of how much. */
  lost(total) {
    const bars = this.#timeline.bars.filter((bar) => bar.kind !== "working");
    if (!bars.length) return "";
    const last = bars.at(-1).to_ms === null ? bars.pop() : null;
    const time = (bar) => (bar.to_ms ?? now()) - bar.from_ms;
    const of = (kind) => bars.filter((bar) => bar.kind === kind);
    const [forming, again] = [of("forming"), of("regaining")];
    const sum = (list) => span(list.reduce((all, bar) => all + time(bar), 0));
    const parts = forming.map((bar) => `forming: ${span(time(bar))}`);
    if (again.length > SINGLE) parts.push(`meeting again ${again.length} times: ${sum(again)}`);
    else for (const bar of again) parts.push(`after round ${bar.round - 1}: ${span(time(bar))}`);
    if (last) parts.push(`${this.#doing(last)}: ${span(time(last))}`);
    return `${parts.join(", ")}; of ${span(total)} in all`;
  }

  /** What is done in a bar, in words; in the one that goes on, for whom the others wait. */
  #doing(bar) {
    if (bar.kind !== "regaining" || bar.to_ms !== null || !this.#waits) return WORDS[bar.kind];
    return `waiting for ${this.#waits.count} ${this.#waits.count === 1 ? "node" : "nodes"}`;
  }

  /** What goes on now, if something does. */
  get open() {
    return this.#timeline.bars.find((bar) => bar.to_ms === null);
  }

  #marks() {
    return [...this.#picture.querySelectorAll(".mark")];
  }

  #key(event) {
    const marks = this.#marks();
    const at = marks.indexOf(document.activeElement);
    const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: marks.length - 1 };
    if (at >= 0 && ["Enter", " "].includes(event.key)) this.#onMark(marks[at].dataset.event);
    else if (at >= 0 && event.key in steps) {
      const next = marks[Math.min(marks.length - 1, Math.max(0, steps[event.key]))];
      this.#stop = next.dataset.event;
      marks[at].setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    } else return;
    event.preventDefault();
  }

  draw() {
    const { bars, marks } = this.#timeline;
    const width = Math.floor(this.root.clientWidth);
    if (!width || !bars.length) return;
    const from = bars[0]?.from_ms ?? 0;
    const to = Math.max(...bars.map((bar) => bar.to_ms ?? now()), ...marks.map((mark) => mark.at_ms), from + 1000);
    // The end has room beside what happened just before.
    const room = marks.some((mark) => mark.kind === "closed") ? BESIDE + 6 : 0;
    const x = (ms) => 1 + ((ms - from) / (to - from)) * (width - 2 - room);
    const parts = [];
    for (const bar of bars) {
      const end = bar.to_ms ?? now();
      const left = x(bar.from_ms);
      const wide = Math.max(2, x(end) - left - 1);
      const what = bar.kind === "working" ? `round ${bar.round}, at work` : this.#doing(bar);
      const label = `${what} for ${span(end - bar.from_ms)}, from ${exact(bar.from_ms)}`;
      parts.push(svg("rect", { class: `bar ${bar.kind}`, x: left, y: TOP, width: wide, height: BAR, rx: Math.min(3, wide / 2) }, title(label)));
      const text = bar.kind === "working" ? `round ${bar.round}` : this.#doing(bar);
      if (wide > 7 * text.length + 8) parts.push(svg("text", { class: `of ${bar.kind}`, x: left + wide / 2, y: TOP + BAR / 2 + 4 }, text));
    }
    // All marks are one stop of the Tab key, at first the newest, and arrows move among them.
    const stop = (marks.find((mark) => mark.event === this.#stop) ?? marks.at(-1))?.event;
    const focused = this.#picture.contains(document.activeElement) && document.activeElement.dataset.event;
    for (const mark of marks) {
      const symbol = shape(mark.kind, false);
      const isCovered = mark.kind === "closed" && marks.some((other) => other !== mark && Math.abs(x(other.at_ms) - x(mark.at_ms)) < BESIDE);
      const at = x(mark.at_ms) + (isCovered ? BESIDE : 0);
      symbol.setAttribute("transform", `translate(${Math.min(width - 8, Math.max(8, at))} 11)`);
      const text = `${this.#texts.get(mark.event) ?? MARKS[mark.kind]}, ${exact(mark.at_ms)}`;
      for (const [name, value] of Object.entries({ role: "button", "aria-label": text, tabindex: mark.event === stop ? 0 : -1, "data-event": mark.event })) symbol.setAttribute(name, value);
      symbol.append(title(text));
      parts.push(svg("line", { class: "thread", x1: x(mark.at_ms), x2: x(mark.at_ms), y1: 17, y2: TOP + BAR }), symbol);
    }
    parts.push(...ticks(from, to, width, x));
    this.#picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#picture.setAttribute("width", width);
    this.#picture.setAttribute("aria-label", describe(bars, marks, from, to));
    this.#picture.replaceChildren(...parts);
    if (focused) this.#marks().find((mark) => mark.dataset.event === focused)?.focus({ preventScroll: true });
  }
}

function describe(bars, marks, from, to) {
  if (!bars.length) return "Timeline: nothing has happened yet";
  const sums = {};
  for (const bar of bars) sums[bar.kind] = (sums[bar.kind] ?? 0) + (bar.to_ms ?? to) - bar.from_ms;
  const counted = Object.entries(sums).map(([kind, ms]) => `${WORDS[kind]} ${span(ms)}`);
  return `Timeline since ${clock(from)}: ${counted.join(", ")}; ${marks.length} marks. The table of rounds and the list of events tell the same in words; arrows move among the marks.`;
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
