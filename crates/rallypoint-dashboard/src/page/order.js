// Tables are sorted by the heading that is pressed: up, then down, then as they were.

import { asked, keep } from "./address.js";
import { el } from "./dom.js";

/** As people sort: `gpu-9` before `gpu-10`. */
export const collator = new Intl.Collator("en", { numeric: true });

export class Order {
  #columns;
  #changed;
  #by = "";
  #isDown = false;

  /** `columns` says of each heading what of a row counts, a number or a text; `changed` draws the table. */
  constructor(columns, changed) {
    this.#columns = new Map(Object.entries(columns));
    this.#changed = changed;
    const [, sign, by] = /^(-?)(.*)$/.exec(asked("sort"));
    const heading = [...this.#columns.keys()].find((text) => text.toLowerCase() === by);
    if (heading) [this.#by, this.#isDown] = [heading, sign === "-"];
  }

  /** The rows as they are to be shown; `rows` is how they are shown unless a heading was pressed. */
  sorted(rows) {
    const value = this.#columns.get(this.#by);
    if (!value) return rows;
    const step = this.#isDown ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [left, right] = [value(one), value(other)];
      // Who has none comes last, either way.
      const none = [left, right].map((side) => side === "" || side === undefined || side === null);
      if (none[0] || none[1]) return none[0] - none[1];
      return step * (typeof left === "number" ? left - right : collator.compare(left, right));
    });
  }

  /** Makes the headings, `[text, class]` each. What is there as it should be stays, with the focus. */
  head(row, headings) {
    const shape = JSON.stringify([headings, this.#by, this.#isDown]);
    if (row.dataset.shape === shape) return;
    const focused = row.contains(document.activeElement) ? document.activeElement.textContent : null;
    row.dataset.shape = shape;
    row.replaceChildren(...headings.map(([text, look]) => this.#heading(text, look)));
    if (focused !== null) [...row.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  }

  #heading(text, look = "") {
    const button = el("button", { type: "button", class: "sort" }, text);
    button.addEventListener("click", () => this.#press(text));
    const sorted = this.#by !== text ? "none" : this.#isDown ? "descending" : "ascending";
    return el("th", { scope: "col", class: look, "aria-sort": sorted }, button);
  }

  #press(text) {
    if (this.#by !== text) [this.#by, this.#isDown] = [text, false];
    else if (!this.#isDown) this.#isDown = true;
    else [this.#by, this.#isDown] = ["", false];
    keep("sort", `${this.#isDown ? "-" : ""}${this.#by.toLowerCase()}`);
    this.#changed();
  }
}
