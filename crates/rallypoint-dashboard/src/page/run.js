// One run: what goes on, who is missing, its nodes, its past.

import { askToClose, tellOver } from "./close.js";
import { el, moment, now, say, span, speak } from "./dom.js";
import { Grid } from "./grid.js";
import { badge } from "./runs.js";
import { NodeTable } from "./table.js";
import { TimelinePicture } from "./timeline.js";

/** Events that are in the page at first. */
const EVENTS = 60;

export class RunPage {
  #id;
  #head = null;
  #nodes = new Map();
  #events = [];
  #writable = false;
  #shown = EVENTS;

  #badge = el("span", { class: "state" });
  #name = el("h1", { tabIndex: -1 }, el("bdi"));
  #headline = el("p", { class: "headline" }, "Asking etcd …");
  #close = el("button", { type: "button", class: "danger quiet" }, "Close run …");
  #missing = el("section", { class: "card missing", "aria-labelledby": "missing-title" });
  #ended = el("section", { class: "card ended", "aria-labelledby": "ended-title" });
  #unreadable = el("section", { class: "card unreadable", "aria-label": "What cannot be read" });
  #figures = el("dl", { class: "figures" });
  #detail = el("aside", { class: "detail", "aria-label": "The chosen node" });
  #search = el("input", { type: "search", id: "search", placeholder: "Filter: name, rank, state, rack", "aria-label": "Filter the nodes by name, rank, state or rack" });
  #matches = el("span", { class: "count", role: "status" });
  #legend = el("ul", { class: "legend", "aria-label": "Legend of the nodes" });
  #boxes = el("p", { class: "boxes" });
  #nobody = el("p", { class: "nobody soft" });
  #list = el("ol", { class: "events", "aria-label": "Events, newest first", reversed: true });
  #earlier = el("button", { type: "button", class: "more" }, "Show earlier events");
  #grid = new Grid((node) => this.#describe(node));
  #table = new NodeTable();
  #picture = new TimelinePicture((event) => this.#find(event));
  #asGrid = el("button", { type: "button", "aria-pressed": "true" }, "Grid");
  #asTable = el("button", { type: "button", "aria-pressed": "false" }, "Table");

  constructor(id) {
    this.#id = id;
    this.#name.firstChild.textContent = id.length > 120 ? `${id.slice(0, 120)}…` : id;
    for (const section of [this.#missing, this.#ended, this.#unreadable, this.#close, this.#table.root, this.#nobody]) section.hidden = true;
    this.#close.addEventListener("click", () => askToClose(this.#id, this.#name.textContent, this.#nodes.size, this.#name));
    this.#search.addEventListener("input", () => this.#filter());
    this.#asGrid.addEventListener("click", () => this.#lay(false));
    this.#asTable.addEventListener("click", () => this.#lay(true));
    this.#earlier.addEventListener("click", () => {
      this.#shown += 5 * EVENTS;
      this.#listEvents();
    });
    const views = el("div", { class: "views", role: "group", "aria-label": "How the nodes are shown" }, this.#asGrid, this.#asTable);
    this.root = el(
      "div",
      { class: "run" },
      el("div", { class: "title" }, el("div", { class: "words" }, el("div", { class: "named" }, this.#name, this.#badge), this.#headline), this.#close),
      this.#missing,
      this.#ended,
      this.#unreadable,
      this.#figures,
      el("section", { class: "card", "aria-labelledby": "timeline-title" }, el("h2", { id: "timeline-title" }, "Timeline"), this.#picture.root),
      el(
        "div",
        { class: "columns" },
        el(
          "section",
          { class: "card nodes", "aria-labelledby": "nodes-title" },
          el("div", { class: "bar" }, el("h2", { id: "nodes-title" }, "Nodes"), this.#search, this.#matches, views),
          this.#nobody,
          el("div", { class: "stage" }, this.#grid.root, this.#detail),
          this.#table.root,
          this.#boxes,
          this.#legend,
        ),
        el("section", { class: "card past", "aria-labelledby": "events-title" }, el("h2", { id: "events-title" }, "Events"), this.#list, this.#earlier),
      ),
    );
    this.#describe(null);
    this.#earlier.hidden = true;
  }

  hello({ writable }) {
    this.#writable = writable;
    this.#showClose();
  }

  /** All of it: at first, and after the stream was cut. */
  show({ head, timeline, nodes = [], events = [] }) {
    const names = new Set(nodes.map((node) => node.node));
    const gone = [...this.#nodes.keys()].filter((name) => !names.has(name));
    this.change({ head, timeline, nodes, gone, events, afresh: true });
  }

  change({ head, timeline, nodes = [], gone = [], events = [], afresh = false }) {
    for (const name of gone) this.#nodes.delete(name);
    for (const node of nodes) this.#nodes.set(node.node, node);
    if (afresh) this.#events = [];
    this.#events.push(...events);
    this.#events.splice(0, this.#events.length - 1000);
    const before = this.#head;
    if (head) this.#showHead(head);
    this.#grid.update(this.#head, this.#nodes, nodes, gone);
    this.#showNodes();
    if (!this.#table.root.hidden) this.#fill();
    if (afresh || events.length) this.#listEvents();
    if (timeline) this.#picture.show(timeline, new Map(this.#events.map((event) => [event.id, event.text])));
    this.#showFigures();
    if (nodes.length + gone.length && this.#search.value) this.#filter();
    this.#tell(before, afresh ? [] : events);
  }

  tick() {
    if (!this.#picture.open) return;
    this.#picture.draw();
    this.#showFigures();
  }

  /** To a screen reader: only what changes the picture. */
  #tell(before, events) {
    const loud = events.filter((event) => event.loud).at(-1);
    if (loud) speak(loud.text);
    else if (before && before.word !== this.#head.word) speak(`${this.#head.word}. ${this.#head.headline}`);
  }

  #showHead(head) {
    this.#head = head;
    say(this.#name.firstChild, head.run_id);
    if (this.#badge.textContent !== head.word) this.#badge.replaceChildren(badge(head));
    say(this.#headline, head.headline);
    document.title = `${head.word} · ${head.run_id.slice(0, 60)} – Rallypoint`;
    this.#showClose();
    this.#showMissing(head.missing);
    this.#showEnd(head);
    this.#unreadable.hidden = head.unreadable?.length ? false : true;
    this.#unreadable.replaceChildren(
      el("h2", {}, "Cannot be read"),
      el("ul", {}, ...(head.unreadable ?? []).map(({ key, problem }) => el("li", {}, el("code", {}, key), ` ${problem}`))),
    );
  }

  /** Around the grid: what is in it, and that nothing is. */
  #showNodes() {
    const head = this.#head;
    say(this.#nobody, head.nobody ?? "");
    this.#nobody.hidden = this.#nodes.size > 0;
    this.#search.hidden = this.#asGrid.parentElement.hidden = this.#grid.isEmpty;
    const asTable = this.#asTable.getAttribute("aria-pressed") === "true";
    this.#grid.root.parentElement.hidden = asTable || this.#grid.isEmpty;
    this.#table.root.hidden = !asTable || !this.#nodes.size;
    say(this.#boxes, asTable ? "" : this.#grid.boxes);
    this.#showLegend(head);
  }

  #showClose() {
    if (this.#head) tellOver(this.#id, this.#head.is_over);
    this.#close.hidden = !this.#writable || !this.#head || this.#head.is_over;
  }

  #showMissing(missing) {
    this.#missing.hidden = !missing;
    if (!missing) return;
    // What the heading says of all of them is not said again of each.
    const isTold = missing.why && missing.nodes.every(({ node }) => missing.text.includes(node));
    const rows = isTold ? [] : missing.nodes.map(({ node, why }) => el("li", {}, el("strong", {}, el("bdi", {}, node)), why && !missing.why ? el("span", { class: "why" }, el("bdi", {}, why)) : null));
    this.#missing.replaceChildren(
      el("h2", { id: "missing-title" }, missing.text),
      missing.why ? el("p", { class: "known" }, el("bdi", {}, missing.why)) : "",
      rows.length ? el("ul", { class: missing.why ? "names" : "" }, ...rows) : "",
    );
  }

  #showEnd({ ended, failure }) {
    this.#ended.hidden = !ended && !failure;
    const text = JSON.stringify([ended, failure]);
    // What is there stays, with how far it is read.
    if (this.#ended.hidden || this.#ended.text === text) return;
    this.#ended.text = text;
    this.#ended.classList.toggle("loud", Boolean(ended?.loud));
    const before = this.#ended.querySelector("details");
    const open = before?.dataset.at === String(failure?.at_ms) ? before.open : true;
    const parts = [];
    if (ended) parts.push(el("h2", { id: "ended-title" }, ended.title), el("p", { class: "cause" }, el("bdi", {}, ended.text), moment(ended.at_ms)));
    for (const also of ended?.also ?? []) {
      if (also.text !== failure?.text) parts.push(el("p", { class: "cause also" }, el("bdi", {}, also.text), moment(also.at_ms)));
    }
    if (ended?.more) parts.push(el("p", { class: "soft" }, ended.more));
    if (failure) {
      if (failure.text !== ended?.text) {
        parts.push(el("h3", ended ? {} : { id: "ended-title" }, failure.title), el("p", { class: "cause" }, el("bdi", {}, failure.text), moment(failure.at_ms)));
      }
      if (failure.message && !failure.text.includes(failure.message)) parts.push(el("p", { class: "message" }, failure.message));
      if (failure.traceback) {
        const details = traceback(failure.traceback, open);
        details.dataset.at = failure.at_ms;
        parts.push(details);
      }
    }
    this.#ended.replaceChildren(...parts);
  }

  #showFigures() {
    const head = this.#head;
    // Who is gone cannot be shown among the nodes.
    const there = (node) => (this.#nodes.has(node) ? node : undefined);
    const figures = [
      ["Round", head.round ? String(head.round) : "–", ""],
      ["Nodes", head.here, [head.needs ? `needs ${head.needs}` : "", head.late ? `${head.late} waiting` : ""].filter(Boolean).join(", ")],
      ["Spares", String(head.spares), ""],
      ...this.#times(),
    ];
    if (head.master) figures.push(["Master ★", head.master.node || "rank 0", head.master.address, there(head.master.node), "wide"]);
    if (head.leader) figures.push(["Leader ◆", head.leader, "plans the rounds", there(head.leader), "wide"]);
    const names = figures.map(([name, , , node]) => `${name} ${node ?? ""}`).join();
    if (this.#figures.dataset.names !== names) {
      this.#figures.dataset.names = names;
      const shown = figures.map(([name, value, , node, wide = ""]) => el("div", { class: wide }, el("dt", {}, name), el("dd", {}, node ? this.#jump(node, value) : el("bdi"), el("small", {}, el("bdi")))));
      this.#figures.replaceChildren(...shown);
    }
    figures.forEach(([, value, note, node], index) => {
      const [figure, small] = this.#figures.children[index].lastChild.children;
      if (!node) say(figure, value);
      say(small.firstChild, note);
    });
  }

  /** What the time went into, with what goes on now. */
  #times() {
    const { summary } = this.#head;
    if (!summary) return [];
    const open = this.#picture.open;
    const more = (kind) => (open?.kind === kind ? Math.max(0, now() - open.from_ms) : 0);
    const [forming, regaining, working] = ["forming", "regaining", "working"].map((kind) => summary[`${kind}_ms`] + more(kind));
    const total = forming + regaining + working;
    const share = (working / total) * 100;
    const rounded = share > 99.94 || share < 10 ? share.toFixed(0) : share.toFixed(1);
    return [
      ["At work", total && this.#head.round ? `${rounded} %` : "–", working ? span(working) : ""],
      ["Time lost", span(forming + regaining), regaining ? `${span(regaining)} to meet again` : ""],
      ["Deaths", String(summary.deaths), ""],
      ["Failures", String(summary.failures), ""],
    ];
  }

  #jump(node, text) {
    const button = el("button", { type: "button", class: "jump", "aria-label": `Show ${text} among the nodes` }, el("bdi", {}, text));
    button.dataset.node = node;
    button.addEventListener("click", () => {
      this.#lay(false);
      if (this.#grid.choose(node)) this.#grid.root.focus();
    });
    return button;
  }

  #showLegend(head) {
    const present = this.#grid.states;
    const order = ["member", "joining", "waiting", "spare", "leaving", "missing"];
    const rest = [...present].filter((state) => !order.includes(state));
    // Two states can have one word.
    const keys = new Map();
    for (const state of [...order, ...rest]) {
      const word = head.words?.[state];
      if (word && present.has(state) && ![...keys.values()].includes(word)) keys.set(state, word);
    }
    const items = [...keys].map(([state, word]) => el("li", {}, el("span", { class: `swatch ${state}`, "aria-hidden": "true" }), word));
    const glyph = (sign, word) => items.push(el("li", {}, el("span", { class: "glyph", "aria-hidden": "true" }, sign), word));
    const isThere = [this.#nodes.has(head.master?.node), this.#nodes.has(head.leader)];
    if (isThere[0]) glyph("★", "master");
    if (isThere[1]) glyph("◆", "leader");
    const text = [...keys.values(), ...isThere].join();
    if (this.#legend.dataset.text !== text) {
      this.#legend.dataset.text = text;
      this.#legend.replaceChildren(...items);
    }
  }

  #describe(node) {
    if (!node) {
      this.#detail.replaceChildren(el("p", { class: "empty" }, "Choose a node, with the mouse or the arrow keys, to see more of it."));
      return;
    }
    const row = (name, value) => (value === "" || value === undefined ? [] : [el("dt", {}, name), el("dd", {}, typeof value === "string" ? el("bdi", {}, value) : value)]);
    this.#detail.replaceChildren(
      el("h3", {}, el("bdi", {}, node.node)),
      el(
        "dl",
        {},
        ...row("State", this.#grid.words(node)),
        ...row("Rank", node.rank === undefined ? "" : String(node.rank)),
        ...row("Address", node.address),
        ...row("Rack", node.rack),
        ...row(node.state === "missing" ? "Why" : "About", node.about),
        ...row("Started", node.since ? moment(node.since * 1000) : ""),
      ),
    );
  }

  #lay(asTable) {
    this.#asGrid.setAttribute("aria-pressed", String(!asTable));
    this.#asTable.setAttribute("aria-pressed", String(asTable));
    if (this.#head) this.#showNodes();
    if (asTable) this.#fill();
  }

  #fill() {
    this.#table.show(this.#nodes.values(), this.#search.value, (node) => this.#grid.words(node));
  }

  #filter() {
    const count = this.#grid.filter(this.#search.value);
    say(this.#matches, this.#search.value.trim() ? `${count} ${count === 1 ? "match" : "matches"}` : "");
    if (!this.#table.root.hidden) this.#fill();
  }

  /** Newest first. What is there already stays as it is. */
  #listEvents() {
    const wanted = this.#events.slice(-this.#shown).reverse();
    const there = new Map([...this.#list.children].map((item) => [item.dataset.event, item]));
    this.#list.replaceChildren(...wanted.map((event) => there.get(event.id) ?? item(event)));
    this.#earlier.hidden = this.#events.length <= this.#shown;
    if (!wanted.length) this.#list.replaceChildren(el("li", { class: "empty" }, "Nothing has been told yet."));
  }

  #find(id) {
    const at = this.#events.findIndex((event) => event.id === id);
    if (at >= 0 && this.#events.length - at > this.#shown) {
      this.#shown = this.#events.length - at;
      this.#listEvents();
    }
    const item = [...this.#list.children].find((one) => one.dataset.event === id);
    if (!item) return;
    item.tabIndex = -1;
    item.focus();
    item.scrollIntoView({ block: "center" });
  }
}

function traceback(text, open) {
  return el("details", { open }, el("summary", {}, "Traceback"), el("pre", { tabIndex: 0, role: "region", "aria-label": "Traceback" }, text));
}

function item(event) {
  const round = event.round ? `round ${event.round}` : "";
  const by = event.by ? el("span", { class: "by" }, "by ", el("bdi", {}, event.by)) : null;
  const made = el(
    "li",
    { class: event.look },
    el("p", { class: "what" }, el("bdi", {}, event.text)),
    el("p", { class: "when" }, moment(event.at_ms), round ? el("span", { class: "round" }, round) : null, by),
    event.traceback ? traceback(event.traceback, false) : null,
  );
  made.dataset.event = event.id;
  return made;
}
