// What changes a run: closing it, excluding a node from it, including one again. Each is asked for with the token, which
// is forgotten at once.

import { el, say, speak } from "./dom.js";

const byId = (id) => document.getElementById(id);
const dialog = byId("ask-dialog");
const problem = byId("ask-problem");
const confirm = byId("ask-confirm");
/** What is asked for: where, of which run, and what becomes of the form's fields. */
let wish = null;
let isOver = false;
let isSent = false;

/** A run is over, or goes on: who asks to change it is told. */
export function tellOver(run, over) {
  if (run !== wish?.run || !dialog.open || over === isOver) return;
  isOver = over;
  if (isSent) return;
  confirm.disabled = over;
  say(problem, over ? "It is already over." : "");
}

/** `heading` takes the focus if what led here is gone. */
export function askToClose(run, shown, nodes, heading) {
  const many = nodes === 1 ? "Its 1 node stops" : `All its ${nodes} nodes stop`;
  open({
    run,
    heading,
    path: "close",
    not: "Not closed",
    title: `Close run ${shown}?`,
    what: `${many} their workers and end. So do nodes that are started with its name in the next 10 minutes. This cannot be undone.`,
    act: "Close the run for all its nodes",
    why: "Reason, which each node says when it ends",
    body: () => ({ reason: byId("ask-reason").value }),
  });
}

export function askToExclude(run, node, heading) {
  const whom = [["node", node.node]];
  if (node.host) whom.push(["host", node.host]);
  byId("ask-whom").replaceChildren(...whom.map(([kind, name]) => el("option", { value: kind }, kind === "node" ? `node ${name}` : `host ${name}, with all its nodes`)));
  open({
    run,
    heading,
    path: "exclude",
    not: "Not excluded",
    title: `Exclude ${node.node}?`,
    what: "If it is in the round, that ends: the others meet again without it, and a spare takes its place. It can be included again.",
    act: "Exclude it from the run",
    why: "Reason, which it says when it ends",
    chooses: true,
    body() {
      const [kind, name] = whom[byId("ask-whom").selectedIndex];
      const seconds = Number(byId("ask-time").value);
      return { [kind]: name, reason: byId("ask-reason").value, ...(seconds ? { seconds } : {}) };
    },
  });
}

export function askToInclude(run, { kind, name }, heading) {
  open({
    run,
    heading,
    path: "include",
    not: "Not included",
    title: `Include ${kind} ${name} again?`,
    what: "If it waits for that, it joins at once. If it has ended, it can be started again.",
    act: "Include it again",
    body: () => ({ [kind]: name }),
  });
}

function open(asked) {
  wish = asked;
  isOver = false;
  say(byId("ask-title"), asked.title);
  say(byId("ask-what"), asked.what);
  say(confirm, asked.act);
  say(byId("ask-why"), asked.why ?? "");
  for (const id of ["ask-reason", "ask-token"]) byId(id).value = "";
  byId("ask-time").selectedIndex = 0;
  byId("ask-reason").required = Boolean(asked.why);
  byId("ask-reasons").hidden = !asked.why;
  byId("ask-choices").hidden = !asked.chooses;
  say(problem, "");
  confirm.disabled = false;
  dialog.showModal();
  byId(asked.why ? "ask-reason" : "ask-token").focus();
}

byId("ask-cancel").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  byId("ask-token").value = "";
  // The button that led here may be there no more.
  if (document.activeElement === document.body || isOver) wish.heading?.focus();
});

byId("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = byId("ask-token").value;
  byId("ask-token").value = "";
  confirm.disabled = true;
  isSent = true;
  const { run, path, not } = wish;
  let isDone = false;
  try {
    // What a header cannot carry is not the token.
    if (!/^[\x20-\x7e]+$/.test(token)) throw new Error("that is not the token");
    const answer = await fetch(`api/${path}?run=${encodeURIComponent(run)}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify(wish.body()),
    });
    const { text, error } = await answer.json();
    if (!answer.ok) throw new Error(error);
    isDone = true;
    isOver = path === "close";
    dialog.close();
    speak(text);
  } catch (error) {
    say(problem, error instanceof TypeError ? "The dashboard does not answer; look whether it was done." : `${not}: ${error.message}.`);
    byId("ask-token").focus();
  } finally {
    isSent = false;
    confirm.disabled = isOver || isDone;
  }
});
