// All runs, one row for each.

import { el, say } from "./dom.js";

const STATES = ["meeting", "running", "meeting again", "closed", "abandoned", "unreadable"];

export function badge(state) {
  const known = STATES.includes(state) ? state.replace(" ", "-") : "other";
  return el("span", { class: `badge ${known}` }, state);
}

export class RunsPage {
  #count = el("span", { class: "count" });
  #note = el("p", { class: "empty" }, "Asking etcd …");
  #body = el("tbody");
  #rows = [];
  #search = el("input", { type: "search", id: "search", placeholder: "Filter by name or state", "aria-label": "Filter the runs by name or state" });
  #table;

  constructor() {
    const headings = ["Run", "State", "Round", "Nodes", "Needs", "Waiting", "Spares"];
    const head = headings.map((text, column) => el("th", { scope: "col", class: column > 1 ? "number" : "" }, text));
    this.#table = el("table", { class: "runs", "aria-label": "All runs" }, el("thead", {}, el("tr", {}, ...head)), this.#body);
    this.#table.hidden = true;
    this.#search.addEventListener("input", () => this.#draw());
    this.root = el(
      "section",
      { class: "all" },
      el("div", { class: "bar" }, el("h1", {}, "Runs ", this.#count), this.#search),
      el("div", { class: "card flush" }, this.#note, this.#table),
    );
  }

  show({ text, rows }) {
    this.#rows = rows;
    say(this.#note, text);
    this.#note.hidden = !text;
    this.#table.hidden = rows.length === 0;
    say(this.#count, rows.length ? String(rows.length) : "");
    document.title = `${rows.length} ${rows.length === 1 ? "run" : "runs"} – Rallypoint`;
    this.#draw();
  }

  #draw() {
    const wanted = this.#search.value.trim().toLowerCase();
    const shown = this.#rows.filter((row) => `${row.run_id} ${row.state}`.toLowerCase().includes(wanted));
    const focused = document.activeElement?.closest?.("a[data-run]")?.dataset.run;
    this.#body.replaceChildren(...shown.map(row));
    if (focused !== undefined) {
      [...this.#body.querySelectorAll("a[data-run]")].find((anchor) => anchor.dataset.run === focused)?.focus();
    }
  }
}

function row(run) {
  const number = (value, zero = "") => el("td", { class: "number" }, value ? String(value) : zero);
  const anchor = el("a", { href: `./?run=${encodeURIComponent(run.id)}`, "data-link": "" }, el("bdi", {}, run.run_id));
  anchor.dataset.run = run.id;
  const needs = run.min_nodes === null || run.min_nodes === run.max_nodes ? `${run.min_nodes || ""}` : `${run.min_nodes}–${run.max_nodes}`;
  const why = run.closed ? el("span", { class: "reason" }, el("bdi", {}, run.closed)) : null;
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, anchor, why),
    el("td", {}, badge(run.state)),
    number(run.round, "–"),
    number(run.nodes, "0"),
    el("td", { class: "number" }, needs),
    number(run.waiting),
    number(run.spares),
  );
}
