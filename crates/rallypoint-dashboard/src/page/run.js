// One run: what goes on, who is missing, its nodes, its past.

import { asked, keep } from "./address.js";
import { askToClose, askToExclude, askToInclude, tellOver } from "./ask.js";
import { clock, el, exact, lasting, moment, now, say, span, speak } from "./dom.js";
import { finder, found } from "./filter.js";
import { Grid } from "./grid.js";
import { badge, isWaiting } from "./runs.js";
import { NodeTable } from "./table.js";
import { TimelinePicture } from "./timeline.js";

/** Events that are in the page at first. */
const EVENTS = 60;
/** Nodes that are named in a line. */
const NAMED = 8;

export class RunPage {
  #id;
  #head = null;
  #nodes = new Map();
  #events = [];
  #timeline = null;
  #writable = false;
  #shown = EVENTS;
  /** The node that the address names, until it is shown. */
  #chosen = asked("node");

  #badge = el("span", { class: "state" });
  #name = el("h1", { tabIndex: -1 }, el("bdi"));
  #headline = el("p", { class: "headline" }, "Asking etcd …");
  #notBack = el("p", { class: "notback" });
  #close = el("button", { type: "button", class: "danger quiet" }, "Close run …");
  #missing = el("section", { class: "card missing", "aria-labelledby": "missing-title" });
  #unhealthy = el("section", { class: "card unhealthy", "aria-labelledby": "unhealthy-title" });
  #preempted = el("section", { class: "card preempted", "aria-labelledby": "preempted-title" });
  #excluded = el("section", { class: "card excluded", "aria-labelledby": "excluded-title" });
  #ended = el("section", { class: "card ended", "aria-labelledby": "ended-title" });
  #unreadable = el("section", { class: "card unreadable", "aria-label": "What cannot be read" });
  #figures = el("dl", { class: "figures" });
  #caveats = el("ul", { class: "caveats", "aria-label": "What is to be known of the figures" });
  #detail = el("aside", { class: "detail", "aria-label": "The chosen node" });
  #search = el("input", { type: "search", id: "search", placeholder: "Filter: name, host, rack, state", "aria-label": "Filter the nodes by name, rank, state, rack or host" });
  #matches = el("span", { class: "count", role: "status" });
  #legend = el("ul", { class: "legend", "aria-label": "Legend of the nodes" });
  #boxes = el("p", { class: "boxes" });
  #nobody = el("p", { class: "nobody soft" });
  #list = el("ol", { class: "events", "aria-label": "Events, newest first", reversed: true });
  #earlier = el("button", { type: "button", class: "more" }, "Show earlier events");
  #grid = new Grid((node) => this.#describe(node));
  #table = new NodeTable((node) => this.#facts(node));
  #picture = new TimelinePicture((event) => this.#find(event));
  #asGrid = el("button", { type: "button", "aria-pressed": "true" }, "Grid");
  #asTable = el("button", { type: "button", "aria-pressed": "false" }, "Table");

  #time = el("section", { class: "card", "aria-labelledby": "timeline-title" }, el("h2", { id: "timeline-title" }, "Timeline"), this.#picture.root);
  #columns = el("div", { class: "columns" });

  constructor(id) {
    this.#id = id;
    this.#name.firstChild.textContent = id.length > 120 ? `${id.slice(0, 120)}…` : id;
    for (const section of [this.#notBack, this.#missing, this.#unhealthy, this.#preempted, this.#excluded, this.#ended, this.#unreadable, this.#close, this.#table.root, this.#nobody]) section.hidden = true;
    this.#close.addEventListener("click", () => askToClose(this.#id, this.#name.textContent, this.#nodes.size, this.#name));
    this.#search.value = asked("filter");
    this.#search.addEventListener("input", () => {
      keep("filter", this.#search.value);
      this.#filter();
    });
    this.#press(asked("view") === "table");
    // On a phone what is known of a node stands below all of them.
    this.#grid.root.addEventListener("click", (event) => event.target.cell && this.#detail.scrollIntoView({ block: "nearest" }));
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
      el("div", { class: "title" }, el("div", { class: "words" }, el("div", { class: "named" }, this.#name, this.#badge), this.#headline, this.#notBack), this.#close),
      this.#missing,
      this.#unhealthy,
      this.#preempted,
      this.#excluded,
      this.#ended,
      this.#unreadable,
      this.#figures,
      this.#caveats,
      this.#time,
      this.#columns,
    );
    this.#columns.append(
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
    );
    this.#describe(null);
    this.#earlier.hidden = true;
  }

  hello({ writable }) {
    this.#writable = writable;
    this.#showClose();
    if (this.#head) this.#showExcluded(this.#head);
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
    if (timeline) this.#timeline = timeline;
    if (timeline || JSON.stringify(before?.waits) !== JSON.stringify(this.#head.waits)) this.#picture.show(this.#timeline, new Map(this.#events.map((event) => [event.id, event.text])), this.#head.waits);
    this.#showFigures();
    if ((head || nodes.length + gone.length) && this.#search.value) this.#filter();
    if (this.#chosen) this.#grid.choose(this.#chosen);
    this.#chosen = "";
    this.#tell(before, afresh ? [] : events);
  }

  tick() {
    this.#showBadge();
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
    this.#showBadge();
    // Of a run that is not there nothing is known.
    this.#figures.hidden = this.#time.hidden = this.#columns.hidden = !head.there;
    say(this.#headline, head.headline);
    document.title = `${head.word} · ${head.run_id.slice(0, 60)} – Rallypoint`;
    this.#showClose();
    this.#showMissing(head.missing, head.not_back ?? []);
    this.#showNotBack(head.missing ? [] : (head.not_back ?? []));
    this.#showUnhealthy(head.unhealthy ?? []);
    this.#showPreempted(head.preempted ?? []);
    this.#showExcluded(head);
    this.#showEnd(head);
    this.#unreadable.hidden = head.unreadable?.length ? false : true;
    this.#unreadable.replaceChildren(
      el("h2", {}, "Cannot be read"),
      el("ul", {}, ...(head.unreadable ?? []).map(({ key, problem }) => el("li", {}, el("code", {}, key), ` ${problem}`))),
    );
  }

  /** After some seconds it is told whom the others wait for. */
  #showBadge() {
    const head = this.#head;
    if (!head) return;
    const shown = JSON.stringify([head.word, head.look, isWaiting(head) && head.waits]);
    if (this.#badge.dataset.shown === shown) return;
    this.#badge.dataset.shown = shown;
    this.#badge.replaceChildren(badge(head));
  }

  /** Around the grid: what is in it, and that nothing is. */
  #showNodes() {
    const head = this.#head;
    say(this.#nobody, head.nobody ?? "");
    this.#nobody.hidden = !this.#grid.isEmpty;
    this.#search.hidden = this.#asGrid.parentElement.hidden = this.#grid.isEmpty;
    const asTable = this.#asTable.getAttribute("aria-pressed") === "true";
    this.#grid.root.parentElement.hidden = asTable || this.#grid.isEmpty;
    this.#table.root.hidden = !asTable || this.#grid.isEmpty;
    say(this.#boxes, asTable ? "" : this.#grid.boxes);
    this.#showLegend(head);
  }

  #showClose() {
    if (this.#head) tellOver(this.#id, this.#head.is_over);
    this.#close.hidden = !this.#writable || !this.#head || this.#head.is_over;
  }

  #showMissing(missing, lost) {
    this.#missing.hidden = !missing;
    const text = JSON.stringify([missing, lost]);
    // What is there stays, with the button that has the focus.
    if (!missing || this.#missing.dataset.text === text) return;
    this.#missing.dataset.text = text;
    // What the heading says of all of them is not said again of each.
    const isTold = missing.why && missing.nodes.every(({ node }) => missing.text.includes(node));
    const rows = isTold ? [] : missing.nodes.map(({ node, why }) => el("li", {}, el("strong", {}, el("bdi", {}, node)), why && !missing.why ? el("span", { class: "why" }, el("bdi", {}, why)) : null));
    const names = missing.named.flatMap((node, index) => [index ? ", " : "", this.#jump(node, node)]);
    const { since_ms: since, here } = missing;
    const known = [
      missing.why ? el("span", {}, el("bdi", {}, missing.why)) : null,
      since ? el("span", {}, "missing for ", lasting(since), " (since ", el("time", { title: exact(since) }, clock(since)), ")") : null,
      here ? el("span", {}, here) : null,
    ].filter(Boolean);
    this.#missing.replaceChildren(
      el("h2", { id: "missing-title" }, missing.lead, ...names, missing.rest),
      lost.length ? el("p", { class: "notback" }, ...notBack(lost)) : "",
      known.length ? el("p", { class: "known" }, ...known.flatMap((part, index) => [index ? "; " : "", part])) : "",
      rows.length ? el("ul", { class: missing.why ? "names" : "" }, ...rows) : "",
    );
  }

  /** Who was lost in any round and could come, while the others work without. */
  #showNotBack(lost) {
    this.#notBack.hidden = !lost.length;
    const text = JSON.stringify(lost);
    if (this.#notBack.dataset.text === text) return;
    this.#notBack.dataset.text = text;
    this.#notBack.replaceChildren(...notBack(lost));
  }

  /** Who stays away by itself, and why. */
  #showUnhealthy(nodes) {
    const title = nodes.length === 1 ? "1 node stays away: it fails its health checks" : `${nodes.length} nodes stay away: they fail their health checks`;
    const words = ({ node, problems, at_ms }) => el("li", {}, el("p", { class: "cause" }, el("span", {}, el("strong", {}, el("bdi", {}, node)), ": ", el("bdi", {}, problems.join("; "))), moment(at_ms)));
    this.#listNodes(this.#unhealthy, "unhealthy-title", title, nodes, words);
  }

  /** Who is going to be taken away, as long as it is there. */
  #showPreempted(nodes) {
    const title = nodes.length === 1 ? "1 node is preempted: its workers save before it leaves" : `${nodes.length} nodes are preempted: their workers save before they leave`;
    const words = ({ node, rank, until_ms, at_ms }) => {
      const who = [el("strong", {}, el("bdi", {}, node)), rank === undefined || rank === null ? "" : ` (node ${rank})`];
      const until = until_ms && until_ms < 8e15 ? `, until ${clock(until_ms)} at the latest` : ", when all workers have saved";
      return el("li", {}, el("p", { class: "cause" }, el("span", {}, ...who, until), moment(at_ms)));
    };
    this.#listNodes(this.#preempted, "preempted-title", title, nodes, words);
  }

  /** A card with a line for each; what has not changed stays as it is. */
  #listNodes(card, id, title, nodes, words) {
    card.hidden = !nodes.length;
    const text = JSON.stringify(nodes);
    if (card.text === text) return;
    card.text = text;
    card.replaceChildren(el("h2", { id }, title), el("ul", {}, ...nodes.map(words)));
  }

  /** Who is excluded, and how it comes in again. */
  #showExcluded({ excluded = [], is_over }) {
    this.#excluded.hidden = !excluded.length;
    const mayChange = this.#writable && !is_over;
    const text = JSON.stringify([excluded, mayChange]);
    if (this.#excluded.text === text) return;
    this.#excluded.text = text;
    const rows = excluded.map((one) => {
      const button = el("button", { type: "button" }, "Include again …");
      button.addEventListener("click", () => askToInclude(this.#id, one, this.#name));
      const until = one.until_ms < 8e15 && one.until_ms ? `until about ${clock(one.until_ms)}` : "for as long as the run lives";
      return el(
        "li",
        {},
        el("p", {}, `${one.kind} `, el("strong", {}, el("bdi", {}, one.name)), ": ", el("bdi", {}, one.reason)),
        el("p", { class: "when" }, el("span", {}, "by ", el("bdi", {}, one.by)), el("span", {}, until), mayChange && !one.is_altered ? button : null),
      );
    });
    this.#excluded.replaceChildren(el("h2", { id: "excluded-title" }, "Excluded from this run"), el("ul", {}, ...rows));
  }

  #showEnd({ ended, failure }) {
    this.#ended.hidden = !ended && !failure;
    const text = JSON.stringify([ended, failure]);
    // What is there stays, with how far it is read.
    if (this.#ended.hidden || this.#ended.text === text) return;
    this.#ended.text = text;
    this.#ended.classList.toggle("loud", Boolean(ended?.loud));
    const before = this.#ended.querySelector("details");
    // A failure of an earlier round has nothing to do with the end of this one.
    const isEarlier = Boolean(ended && failure && failure.round !== ended.round);
    const open = before?.dataset.at === String(failure?.at_ms) ? before.open : !isEarlier;
    const parts = [];
    if (ended) parts.push(el("h2", { id: "ended-title" }, ended.title), el("p", { class: "cause" }, el("bdi", {}, ended.text), moment(ended.at_ms)));
    for (const also of ended?.also ?? []) {
      if (also.text !== failure?.text) parts.push(el("p", { class: "cause also" }, el("bdi", {}, also.text), moment(also.at_ms)));
    }
    if (ended?.more) parts.push(el("p", { class: "soft" }, ended.more));
    if (isEarlier) {
      const earlier = el("details", { class: "earlier", open }, el("summary", {}, failure.round ? `Earlier: a failure in round ${failure.round}` : "Earlier: a failure"), ...told(failure, ""), failure.traceback ? trace(failure.traceback) : null);
      earlier.dataset.at = failure.at_ms;
      parts.push(earlier);
    } else if (failure) {
      if (failure.text !== ended?.text) parts.push(el("h3", ended ? {} : { id: "ended-title" }, failure.title));
      parts.push(...told(failure, ended?.text));
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
    const caveats = head.summary?.caveats ?? [];
    this.#caveats.hidden = !caveats.length;
    if (this.#caveats.dataset.text !== caveats.join()) {
      this.#caveats.dataset.text = caveats.join();
      this.#caveats.replaceChildren(...caveats.map((caveat) => el("li", {}, caveat)));
    }
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
      ["Time lost", span(forming + regaining), this.#picture.lost(total), undefined, "wide"],
      ["Died or killed", String(summary.deaths), ""],
      ["Failures", String(summary.failures), summary.failures_may_be_more ? "or more" : ""],
    ];
  }

  #jump(node, text) {
    const button = el("button", { type: "button", class: "jump", "aria-label": `Show ${text} among the nodes` }, el("bdi", {}, text));
    button.dataset.node = node;
    button.addEventListener("click", () => {
      this.#lay(false);
      if (!this.#grid.choose(node)) return;
      this.#grid.root.focus();
      this.#detail.scrollIntoView({ block: "nearest" });
    });
    return button;
  }

  #showLegend(head) {
    const present = this.#grid.states;
    const order = ["killed", "died", "missing", "member", "joining", "waiting", "spare", "leaving", "finished", "excluded"];
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
    this.#detail.replaceChildren(...this.#facts(node));
  }

  /** All that is known of a node; of one that is lost, when and how, and where it was. */
  #facts(node) {
    const row = (name, value) => (value === "" || value === undefined ? [] : [el("dt", {}, name), el("dd", {}, typeof value === "string" ? el("bdi", {}, value) : value)]);
    const isLost = node.words !== undefined && node.state !== "missing";
    return [
      el("h3", {}, el("bdi", {}, node.node)),
      el(
        "dl",
        {},
        ...row("State", this.#grid.words(node)),
        ...row(isLost ? "Lost" : "Missing since", node.at_ms ? moment(node.at_ms) : undefined),
        ...row(isLost ? "How" : "Why", node.why ?? ""),
        ...row("Rank", node.rank === undefined ? "" : String(node.rank)),
        ...row("Host", node.host),
        ...row("Rack", node.rack),
        ...row("Address", node.address),
        ...row("About", node.about),
        ...row("Started", node.since ? moment(node.since * 1000) : ""),
        ...row("Where it was", isLost && !node.is_known ? "not known: etcd has forgotten it" : ""),
      ),
      this.#exclude(node),
    ];
  }

  /** Only somebody who is there, and whose name is shown as it is. */
  #exclude(node) {
    if (!this.#writable || this.#head.is_over || node.is_altered || node.state === "excluded" || !this.#nodes.has(node.node)) return "";
    const button = el("button", { type: "button", class: "danger quiet" }, "Exclude …");
    button.addEventListener("click", () => askToExclude(this.#id, node, this.#grid.root));
    return button;
  }

  #press(asTable) {
    this.#asGrid.setAttribute("aria-pressed", String(!asTable));
    this.#asTable.setAttribute("aria-pressed", String(asTable));
  }

  #lay(asTable) {
    keep("view", asTable ? "table" : "");
    this.#press(asTable);
    if (this.#head) this.#showNodes();
    if (asTable) this.#fill();
  }

  #fill() {
    const find = finder(this.#search.value);
    this.#table.show(this.#nodes.values(), this.#head.absent ?? [], (node) => find(node, this.#grid.label(node)), (node) => this.#grid.words(node));
  }

  #filter() {
    const count = this.#grid.filter(this.#search.value);
    say(this.#matches, found(count, this.#search.value));
    if (!this.#table.root.hidden) this.#fill();
  }

  /** Newest first. What is there already stays as it is. */
  #listEvents() {
    const wanted = this.#byTime().slice(0, this.#shown);
    const there = new Map([...this.#list.children].map((item) => [item.dataset.event, item]));
    this.#list.replaceChildren(...wanted.map((event) => there.get(event.id) ?? item(event)));
    this.#earlier.hidden = this.#events.length <= this.#shown;
    if (!wanted.length) this.#list.replaceChildren(el("li", { class: "empty" }, "No events yet."));
  }

  /** Newest first; what has one time, in the order of etcd. */
  #byTime() {
    return [...this.#events].sort((one, other) => one.at_ms - other.at_ms).reverse();
  }

  #find(id) {
    const at = this.#byTime().findIndex((event) => event.id === id);
    if (at >= this.#shown) {
      this.#shown = at + 1;
      this.#listEvents();
    }
    const item = [...this.#list.children].find((one) => one.dataset.event === id);
    if (!item) return;
    item.tabIndex = -1;
    item.focus();
    item.scrollIntoView({ block: "center" });
  }
}

/** `Not back: gpu-011 since 04:49:24 (died)`, those that were lost last first. */
function notBack(lost) {
  const shown = lost.slice(0, NAMED);
  const parts = shown.flatMap(({ node, words, at_ms }, index) => [index ? ", " : "Not back: ", el("strong", {}, el("bdi", {}, node)), " since ", el("time", { title: exact(at_ms) }, clock(at_ms)), ` (${words})`]);
  return lost.length > shown.length ? [...parts, ` and ${lost.length - shown.length} more`] : parts;
}

function trace(text) {
  return el("pre", { tabIndex: 0, role: "region", "aria-label": "Traceback" }, text);
}

function traceback(text, open) {
  return el("details", { open }, el("summary", {}, "Traceback"), trace(text));
}

/** A failure in words: its sentence, and its message where that is longer. */
function told(failure, before) {
  const parts = [];
  if (failure.text !== before) parts.push(el("p", { class: "cause" }, el("bdi", {}, failure.text), moment(failure.at_ms)));
  if (failure.message && !failure.text.includes(failure.message)) parts.push(el("p", { class: "message" }, failure.message));
  return parts;
}

function item(event) {
  const round = event.round ? `round ${event.round}` : "";
  const by = event.by ? el("span", { class: "by" }, "told by ", el("bdi", {}, event.by)) : null;
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
