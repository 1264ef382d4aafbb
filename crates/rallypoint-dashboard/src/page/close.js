// Closing a run: it is asked for the reason and for the token, and the token is forgotten at once.

import { say, speak } from "./dom.js";

const byId = (id) => document.getElementById(id);
const dialog = byId("close-dialog");
const problem = byId("close-problem");
const confirm = byId("close-confirm");
let run = "";
let heading = null;
let isOver = false;
let isAsked = false;

/** A run is over, or goes on: who asks to close it is told. */
export function tellOver(id, over) {
  if (id !== run || !dialog.open || over === isOver) return;
  isOver = over;
  if (isAsked) return;
  confirm.disabled = over;
  say(problem, over ? "It is already over." : "");
}

export function askToClose(id, shown, nodes, title) {
  run = id;
  heading = title;
  isOver = false;
  say(byId("close-title"), `Close ${shown}?`);
  const many = nodes === 1 ? "Its 1 node stops" : `All its ${nodes} nodes stop`;
  say(byId("close-what"), `${many} their workers and end. So do nodes that are started with its name in the next 10 minutes. This cannot be undone.`);
  say(problem, "");
  byId("close-reason").value = "";
  byId("close-token").value = "";
  confirm.disabled = false;
  dialog.showModal();
  byId("close-reason").focus();
}

byId("close-cancel").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  byId("close-token").value = "";
  // The button that led here is there no more.
  if (isOver) heading?.focus();
});

byId("close-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = byId("close-token").value;
  byId("close-token").value = "";
  confirm.disabled = true;
  isAsked = true;
  try {
    // What a header cannot carry is not the token.
    if (!/^[\x20-\x7e]+$/.test(token)) throw new Error("that is not the token");
    const answer = await fetch(`api/close?run=${encodeURIComponent(run)}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
      body: JSON.stringify({ reason: byId("close-reason").value }),
    });
    const { text, error } = await answer.json();
    if (!answer.ok) throw new Error(error);
    isOver = true;
    dialog.close();
    speak(text);
  } catch (error) {
    say(problem, error instanceof TypeError ? "The dashboard does not answer; look whether the run is closed." : `Not closed: ${error.message}.`);
    byId("close-token").focus();
  } finally {
    isAsked = false;
    confirm.disabled = isOver;
  }
});
