// The nodes as a table, for those who would rather read. A click on a row opens what else is known of the node.

import { asked, keep } from "./address.js";
import { before } from "./grid.js";
import { el, moment, say } from "./dom.js";
import { Order } from "./order.js";

const STEP = 100;
const HEADINGS = ["Node", "Rank", "State", "Host", "Address", "Rack", "Started", "About"];

export class NodeTable {
  #head = el("tr");
  #body = el("tbody");
  #more = el("button", { type: "button", class: "more" });
  #most = STEP;
  #open = asked("node") || null;
  #draw = () => {};
  #words = () => "";
  #order = new Order(
    {
      Node: (node) => node.node,
      Rank: (node) => node.rank,
      State: (node) => this.#words(node),
      Host: (node) => node.host,
      Address: (node) => node.address,
      Rack: (node) => node.rack,
      Started: (node) => node.since,
      About: (node) => node.about,
    },
    () => this.#draw(),
  );
  #describe;

  /** `describe` makes the elements that say more of a node. */
  constructor(describe) {
    this.#describe = describe;
    const table = el("table", { class: "nodes", "aria-label": "Nodes" }, el("thead", {}, this.#head), this.#body);
    this.#more.addEventListener("click", () => {
      this.#most += 5 * STEP;
      this.#draw();
    });
    this.#body.addEventListener("click", (event) => {
      const name = event.target.closest("tr[data-node]")?.dataset.node;
      // Who selects an address to copy it does not want more of the node.
      if (name === undefined || !getSelection().isCollapsed) return;
      this.#open = this.#open === name ? null : name;
      keep("node", this.#open ?? "");
      this.#draw();
      [...this.#body.querySelectorAll("tr[data-node]")].find((row) => row.dataset.node === name)?.querySelector("button").focus();
    });
    this.root = el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of the nodes" }, table, this.#more);
  }

  /**
   * `absent` are not there, and come first unless it is sorted; `find` says who is looked for, and `words` what each
   * does.
   */
  show(nodes, absent, find, words) {
    this.#words = words;
    // It is drawn again when nothing has changed but how it is looked at.
    const there = [...nodes];
    this.#draw = () => {
      const wanted = (list) => [...list].filter(find).sort(before);
      const found = this.#order.sorted([...wanted(absent), ...wanted(there)]);
      const shown = found.slice(0, this.#most);
      const hasAbout = found.some((node) => node.about);
      const headings = HEADINGS.filter((text) => text !== "About" || hasAbout);
      this.#order.head(this.#head, headings.map((text) => [text]));
      this.#body.replaceChildren(...shown.flatMap((node) => this.#rows(node, words, headings)));
      this.#more.hidden = found.length <= this.#most;
      say(this.#more, `Show more of ${found.length} nodes`);
    };
    this.#draw();
  }

  #rows(node, words, headings) {
    const isOpen = node.node === this.#open;
    const name = el("button", { type: "button", class: "jump", "aria-expanded": String(isOpen) }, el("bdi", {}, node.node));
    const values = {
      Rank: String(node.rank ?? "–"),
      State: el("span", {}, el("span", { class: `swatch ${node.state}`, "aria-hidden": "true" }), words(node)),
      Host: node.host,
      Address: node.address,
      Rack: node.rack,
      Started: node.since ? moment(node.since * 1000) : "",
      About: node.about,
    };
    const cell = (heading) => {
      const value = values[heading];
      const made = el("td", {}, typeof value === "string" ? el("bdi", {}, value) : value);
      // On a phone there are no headings, and each value has its name with it.
      made.dataset.name = heading;
      made.classList.toggle("none", value === "");
      return made;
    };
    const row = el("tr", { class: node.words ? "absent" : "" }, el("th", { scope: "row" }, name), ...headings.slice(1).map(cell));
    row.dataset.node = node.node;
    return isOpen ? [row, el("tr", { class: "opened" }, el("td", { colSpan: headings.length }, ...this.#describe(node)))] : [row];
  }
}
