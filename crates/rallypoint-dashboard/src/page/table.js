// The nodes as a table, for those who would rather read.

import { before } from "./grid.js";
import { el, moment, say } from "./dom.js";

const STEP = 100;

export class NodeTable {
  #body = el("tbody");
  #more = el("button", { type: "button", class: "more" });
  #most = STEP;
  #draw = () => {};

  constructor() {
    const headings = ["Rank", "Node", "State", "Address", "Rack", "Started", "About"];
    const head = headings.map((text) => el("th", { scope: "col" }, text));
    const table = el("table", { class: "nodes", "aria-label": "Nodes" }, el("thead", {}, el("tr", {}, ...head)), this.#body);
    this.#more.addEventListener("click", () => {
      this.#most += 5 * STEP;
      this.#draw();
    });
    this.root = el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of the nodes" }, table, this.#more);
  }

  show(nodes, filter, words) {
    this.#draw = () => {
      const wanted = filter.trim().toLowerCase();
      const hit = (node) => `rank ${node.rank ?? ""}, ${node.node}, ${words(node)}, rack ${node.rack} ${node.state} ${node.address}`.toLowerCase().includes(wanted);
      const found = [...nodes].filter(hit).sort(before);
      this.#body.replaceChildren(...found.slice(0, this.#most).map((node) => row(node, words)));
      this.#more.hidden = found.length <= this.#most;
      say(this.#more, `Show more of ${found.length} nodes`);
    };
    this.#draw();
  }
}

function row(node, words) {
  const text = (value) => el("td", {}, el("bdi", {}, value));
  return el(
    "tr",
    {},
    el("td", { class: "number" }, node.rank === undefined ? "–" : String(node.rank)),
    el("th", { scope: "row" }, el("bdi", {}, node.node)),
    el("td", {}, el("span", { class: `swatch ${node.state}`, "aria-hidden": "true" }), words(node)),
    text(node.address),
    text(node.rack),
    el("td", {}, node.since ? moment(node.since * 1000) : ""),
    text(node.about),
  );
}
