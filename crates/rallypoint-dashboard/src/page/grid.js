// The nodes as cells, by rack. One element takes the focus and the arrow keys move within it, so that a thousand nodes are
// one stop of the Tab key; to a screen reader it is a list box with a group for each rack.

import { keep } from "./address.js";
import { el, say } from "./dom.js";
import { finder } from "./filter.js";
import { collator } from "./order.js";

const LOST = "\u0000lost";
const MISSING = "\u0000missing";
const WAITING = "\uffffwaiting";
const SPARE = "\uffff\uffffspare";
const EXCLUDED = "\uffff\uffff\uffffexcluded";
/** Up to so many nodes a cell has room for its name, and for its rank. */
const NAMED = 24;
const ROOMY = 256;
const MEDIUM = 2000;
const KNOWN = ["member", "joining", "waiting", "spare", "leaving", "missing", "died", "killed", "left", "replaced", "late", "excluded", "finished"];

let cells = 0;

export class Grid {
  /** By name: the element, what is shown, and the group it is in. */
  #cells = new Map();
  #groups = new Map();
  #active = null;
  #head = { words: {} };
  #find = finder("");
  #onChoice;

  constructor(onChoice) {
    this.#onChoice = onChoice;
    this.root = el("div", { class: "grid", role: "listbox", tabIndex: 0, "aria-label": "Nodes by rack", id: "grid" });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("click", (event) => this.#point(event, true));
    this.root.addEventListener("mouseover", (event) => this.#point(event, false));
    this.root.addEventListener("mouseleave", () => this.#onChoice(this.#active?.node ?? null));
    this.root.addEventListener("focus", () => {
      if (!this.#active) this.#choose(this.#flat()[0]);
    });
  }

  /** Takes in what has changed; `all` has every node there is. */
  update(head, all, changed, gone) {
    const anew = JSON.stringify(head.words) !== JSON.stringify(this.#head.words);
    const moved = [this.#head.master?.node, this.#head.leader, head.master?.node, head.leader];
    this.#head = head;
    const touched = new Set();
    for (const name of gone) this.#remove(name, touched);
    for (const node of changed) this.#put(node, group(node), touched);
    this.#absent(touched);
    if (anew) for (const cell of this.#cells.values()) this.#dress(cell);
    else for (const name of moved) if (this.#cells.has(name)) this.#dress(this.#cells.get(name));
    for (const key of touched) this.#arrange(key);
    const size = all.size <= NAMED ? "named" : all.size <= ROOMY ? "roomy" : all.size <= MEDIUM ? "medium" : "tiny";
    if (this.root.dataset.size !== size) {
      this.root.dataset.size = size;
      for (const cell of this.#cells.values()) this.#dress(cell);
    }
    if (this.#active && this.#cells.get(this.#active.node.node) !== this.#active) this.#choose(null);
    else if (this.#active && changed.some((node) => node.node === this.#active.node.node)) this.#onChoice(this.#active.node);
  }

  /** Fades what does not match; says how many do, and how. */
  filter(text) {
    this.#find = finder(text);
    const count = { words: 0, rank: 0 };
    for (const cell of this.#cells.values()) {
      const how = this.#fade(cell);
      if (how) count[how] += 1;
    }
    return count;
  }

  /** What a node is called, and all that is said of it in a line: by its name first. */
  label(node) {
    const rank = node.rank === undefined ? "" : `, rank ${node.rank}`;
    return `${node.node}${rank}, ${this.words(node)}${node.rack ? `, ${rackTitle(node.rack)}` : ""}`;
  }

  words(node) {
    const words = [node.words ?? this.#head.words[node.state] ?? node.state];
    if (node.words) return words[0];
    if (this.#isMaster(node)) words.push("master");
    if (node.node === this.#head.leader) words.push("leader");
    return words.join(", ");
  }

  get isEmpty() {
    return this.#cells.size === 0;
  }

  /** The states that are drawn. */
  get states() {
    return new Set([...this.#cells.values()].map((cell) => cell.node.state));
  }

  /** What is written in the boxes. */
  get boxes() {
    const ranks = this.#head.has_ranks;
    if (this.isEmpty) return "";
    if (this.root.dataset.size === "named") return ranks ? "Boxes show name and rank." : "Boxes show names; there are no ranks yet.";
    if (this.root.dataset.size !== "roomy") return "";
    return `Boxes show the number at the end of the name${ranks ? ", not the rank" : ""}.`;
  }

  choose(name) {
    const cell = this.#cells.get(name) ?? this.#cells.get(absent(name));
    if (cell) this.#choose(cell);
    cell?.element.scrollIntoView({ block: "nearest" });
    return Boolean(cell);
  }

  #isMaster(node) {
    return this.#head.master ? node.node === this.#head.master.node || (!this.#head.master.node && node.rank === 0) : false;
  }

  /** Those who are expected or were there, and of whom etcd has no record: each at its place, where that is known. */
  #absent(touched) {
    const wanted = new Map((this.#head.absent ?? []).map((node) => [absent(node.node), node]));
    for (const [name, cell] of this.#cells) {
      if (cell.absent && !wanted.has(name)) this.#remove(name, touched);
    }
    for (const [name, node] of wanted) this.#put(node, node.rack || (node.state === "missing" ? MISSING : LOST), touched, name);
  }

  #put(node, key, touched, name = node.node) {
    let cell = this.#cells.get(name);
    if (!cell) {
      const element = el("div", { role: "option", id: `node-${cells++}`, "aria-selected": "false" });
      cell = { element, absent: name !== node.node };
      element.cell = cell;
      this.#cells.set(name, cell);
    }
    const place = [key, node.rank, node.arrived, node.node].join("\u0000");
    if (cell.place !== place) {
      if (cell.key !== undefined) {
        this.#groups.get(cell.key).cells.delete(cell);
        touched.add(cell.key);
      }
      this.#group(key).cells.add(cell);
      touched.add(key);
      Object.assign(cell, { key, place });
    }
    cell.node = node;
    this.#dress(cell);
  }

  #remove(name, touched) {
    const cell = this.#cells.get(name);
    if (!cell) return;
    this.#cells.delete(name);
    this.#groups.get(cell.key).cells.delete(cell);
    touched.add(cell.key);
  }

  /** How it looks and what it is called: colour for the state, a shape for the master and the leader. */
  #dress(cell) {
    const { node, element } = cell;
    const state = KNOWN.includes(node.state) ? node.state : "other";
    const master = !cell.absent && this.#isMaster(node);
    const leader = !cell.absent && node.node === this.#head.leader;
    const look = `cell ${state}${master ? " master" : ""}${leader ? " leader" : ""}${cell.absent ? " absent" : ""}${node.rank === undefined ? " unranked" : ""}`;
    const label = this.label(node);
    if (cell.look !== look) element.className = cell.look = look;
    if (cell.label !== label) {
      cell.label = label;
      element.setAttribute("aria-label", label);
    }
    // The number that most names end with: who is sent to a machine goes by its name.
    const short = /\d{1,3}$/.exec(node.node)?.[0] ?? node.rank ?? "·";
    const named = node.rank === undefined ? node.node : `${node.node} · ${node.rank}`;
    say(element, this.root.dataset.size === "named" ? named : String(short));
    this.#fade(cell);
  }

  #fade(cell) {
    const how = this.#find(cell.node, cell.label);
    const hit = how !== "";
    if (cell.hit !== hit) cell.element.classList.toggle("faded", !hit);
    else if (!hit) cell.element.classList.add("faded");
    cell.hit = hit;
    return how;
  }

  #group(key) {
    let found = this.#groups.get(key);
    if (!found) {
      const label = el("span", { class: "rack" });
      const box = el("div", { class: "cells", role: "presentation" });
      const special = ["", LOST, MISSING, WAITING, SPARE, EXCLUDED].includes(key);
      const element = el("div", { class: `group${special ? " apart" : ""}`, role: "group" }, label, box);
      found = { key, element, label, box, cells: new Set() };
      this.#groups.set(key, found);
    }
    return found;
  }

  /** Puts the cells of a group in order, and the group in its place. */
  #arrange(key) {
    const found = this.#groups.get(key);
    if (found.cells.size === 0) {
      found.element.remove();
      this.#groups.delete(key);
      return;
    }
    const order = [...found.cells].sort((one, other) => before(one.node, other.node));
    found.box.replaceChildren(...order.map((cell) => cell.element));
    const title = this.#title(key);
    const all = found.cells.size;
    const there = order.filter((cell) => !cell.absent).length;
    // Of a group in which none is expected to be there, only how many there are.
    const count = there && there < all ? `${there} of ${all}` : String(all);
    const nodes = `${count} ${all === 1 ? "node" : "nodes"}`;
    found.element.setAttribute("aria-label", title ? `${title}, ${count}` : nodes);
    found.label.replaceChildren(el("bdi", {}, title || nodes), title ? el("span", { class: "count" }, count) : "");
    if (!found.element.isConnected) {
      const next = [...this.#groups.values()]
        .filter((other) => other.element.isConnected && collator.compare(other.key, key) > 0 && place(other.key) >= place(key))
        .concat([...this.#groups.values()].filter((other) => other.element.isConnected && place(other.key) > place(key)))
        .sort((one, other) => place(one.key) - place(other.key) || collator.compare(one.key, other.key))[0];
      this.root.insertBefore(found.element, next?.element ?? null);
    }
  }

  #title(key) {
    if (key === LOST) return `lost in round ${this.#head.round}`;
    if (key === MISSING) return "missing";
    if (key === WAITING) return "waiting to get in";
    if (key === SPARE) return "spares";
    if (key === EXCLUDED) return "excluded";
    return key ? rackTitle(key) : "";
  }

  #flat() {
    return [...this.root.querySelectorAll(".cell")].map((element) => element.cell);
  }

  #choose(cell) {
    if (this.#active) {
      this.#active.element.classList.remove("active");
      this.#active.element.setAttribute("aria-selected", "false");
    }
    this.#active = cell ?? null;
    if (cell) {
      cell.element.classList.add("active");
      cell.element.setAttribute("aria-selected", "true");
      this.root.setAttribute("aria-activedescendant", cell.element.id);
    } else {
      this.root.removeAttribute("aria-activedescendant");
    }
    keep("node", cell?.node.node ?? "");
    this.#onChoice(cell?.node ?? null);
  }

  #point(event, choose) {
    const cell = event.target.cell;
    if (!cell) return;
    if (choose) this.#choose(cell);
    else this.#onChoice(cell.node);
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const all = this.#flat();
    const at = all.indexOf(this.#active);
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    let next;
    if (event.key in steps) next = all[at + steps[event.key]];
    else if (event.key === "Home") next = all[0];
    else if (event.key === "End") next = all.at(-1);
    else if (event.key === "ArrowDown") next = beside(all, at, 1);
    else if (event.key === "ArrowUp") next = beside(all, at, -1);
    else if (event.key === "Escape") this.#choose(null);
    else return;
    event.preventDefault();
    if (next) {
      this.#choose(next);
      next.element.scrollIntoView({ block: "nearest" });
    }
  }
}

/** Who is not there is known by another name, as a process of its own may be there by then. */
function absent(name) {
  return `absent ${name}`;
}

/** Many call a rack `rack-3`. */
export function rackTitle(rack) {
  return /^rack/i.test(rack) ? rack : `rack ${rack}`;
}

function group(node) {
  if (node.state === "spare") return SPARE;
  if (node.state === "excluded") return EXCLUDED;
  if (node.state === "waiting") return WAITING;
  return node.rack;
}

/** Who is not there comes before the racks, who has no place after them. */
function place(key) {
  return key === MISSING ? 0 : key === LOST ? 1 : key === WAITING ? 3 : key === SPARE ? 4 : key === EXCLUDED ? 5 : 2;
}

/** By name, as the boxes show it: ranks are given anew in some rounds, and who looks for a machine knows its name. */
export function before(one, other) {
  // Who has no place gets one in order of arrival.
  const queue = [one, other].every((node) => ["waiting", "spare"].includes(node.state));
  return (queue ? one.arrived - other.arrived : 0) || collator.compare(one.node, other.node);
}

/** The cell in the row above or below that is nearest. */
function beside(all, at, step) {
  const from = all[at]?.element.getBoundingClientRect();
  if (!from) return all[0];
  let row = null;
  let best = null;
  for (let index = at + step; index >= 0 && index < all.length; index += step) {
    const to = all[index].element.getBoundingClientRect();
    if (Math.abs(to.top - from.top) < 4) continue;
    if (step * (to.top - from.top) < 0) continue;
    row ??= to.top;
    if (Math.abs(to.top - row) > 4) break;
    const distance = Math.abs(to.left - from.left);
    if (!best || distance < best.distance) best = { distance, cell: all[index] };
  }
  return best?.cell;
}
