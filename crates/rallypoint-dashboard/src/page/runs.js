// All runs, one row for each.

import { asked, keep } from "./address.js";
import { el, lasting, moment, now, say } from "./dom.js";
import { Order } from "./order.js";

/** Nodes that meet again mostly do so within some seconds. */
const SHORTLY = 5000;

/** Whether the nodes of a run wait for others, and have for a while. */
export function isWaiting({ look, waits }) {
  return look === "meeting-again" && Boolean(waits) && now() - (waits.since_ms ?? 0) > SHORTLY;
}

/** What a run does, or how it ended. */
export function badge(run) {
  const { word, look, waits } = run;
  if (!isWaiting(run)) return el("span", { class: `badge ${look}` }, word);
  const whom = `waiting for ${waits.count} ${waits.count === 1 ? "node" : "nodes"}`;
  return el("span", { class: `badge ${look} waits`, title: word }, el("span", {}, whom, waits.since_ms ? ", " : "", waits.since_ms ? lasting(waits.since_ms) : null));
}

export class RunsPage {
  #count = el("span", { class: "count" });
  #note = el("p", { class: "empty" }, "Asking etcd …");
  #head = el("tr");
  #body = el("tbody");
  #rows = [];
  #waiting = "";
  #text = "";
  #search = el("input", { type: "search", id: "search", placeholder: "Filter by name or state", "aria-label": "Filter the runs by name or state" });
  #table;
  #order = new Order(
    {
      Run: (run) => run.run_id,
      State: (run) => run.word,
      Round: (run) => run.round,
      Nodes: (run) => run.here,
      Needs: (run) => run.needs,
      Waiting: (run) => run.late,
      Spares: (run) => run.spares,
    },
    () => this.#draw(),
  );

  constructor() {
    this.#table = el("table", { class: "runs", "aria-label": "All runs" }, el("thead", {}, this.#head), this.#body);
    this.#table.hidden = true;
    this.#search.value = asked("filter");
    this.#search.addEventListener("input", () => {
      keep("filter", this.#search.value);
      this.#draw();
    });
    this.root = el(
      "section",
      { class: "all" },
      el("div", { class: "bar" }, el("h1", {}, "Runs ", this.#count), this.#search),
      el("div", { class: "card flush" }, this.#note, this.#table),
    );
  }

  show({ text, rows }) {
    this.#rows = rows;
    this.#text = text;
    this.#table.hidden = rows.length === 0;
    say(this.#count, rows.length ? String(rows.length) : "");
    document.title = `${rows.length} ${rows.length === 1 ? "run" : "runs"} – Rallypoint`;
    this.#draw();
  }

  tick() {
    const waiting = this.#rows.map(isWaiting).join();
    if (waiting !== this.#waiting) this.#draw();
    this.#waiting = waiting;
  }

  #draw() {
    const wanted = this.#search.value.trim().toLowerCase();
    const shown = this.#rows.filter((row) => `${row.run_id} ${row.word} ${row.state}`.toLowerCase().includes(wanted));
    say(this.#note, this.#rows.length && !shown.length ? "No match." : this.#text);
    this.#note.hidden = !this.#note.textContent;
    const focused = document.activeElement?.closest?.("a[data-run]")?.dataset.run;
    const names = ["Run", "State", "Round", "Nodes", "Needs", "Waiting", "Spares"];
    this.#order.head(this.#head, names.map((text, column) => [text, column > 1 ? "number" : ""]));
    this.#body.replaceChildren(...this.#order.sorted(shown).map(row));
    if (focused !== undefined) {
      [...this.#body.querySelectorAll("a[data-run]")].find((anchor) => anchor.dataset.run === focused)?.focus();
    }
  }
}

function row(run) {
  // On a phone there are no headings, and each number has its name with it.
  const number = (name, value, zero = "") => {
    const cell = el("td", { class: "number" }, value ? String(value) : zero);
    cell.dataset.name = name;
    return cell;
  };
  const anchor = el("a", { href: `./?run=${encodeURIComponent(run.id)}`, "data-link": "" }, el("bdi", {}, run.run_id));
  anchor.dataset.run = run.id;
  const last = run.look === "abandoned" && run.since_ms ? el("span", { class: "reason" }, "last event ", moment(run.since_ms)) : null;
  const why = run.closed ? el("span", { class: "reason" }, el("bdi", {}, run.closed)) : null;
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, anchor, why ?? last),
    el("td", {}, badge(run)),
    number("round", run.round, "–"),
    number("nodes", run.here),
    number("needs", run.needs),
    number("waiting", run.late),
    number("spares", run.spares),
  );
}
