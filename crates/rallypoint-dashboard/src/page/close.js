// Closing a run: it is asked for the reason and for the token, and the token is forgotten at once.

import { say, speak } from "./dom.js";

const byId = (id) => document.getElementById(id);
const dialog = byId("close-dialog");
const problem = byId("close-problem");
const confirm = byId("close-confirm");
let run = "";

export function askToClose(id, shown, nodes) {
  run = id;
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
});

byId("close-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = byId("close-token").value;
  byId("close-token").value = "";
  confirm.disabled = true;
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
    dialog.close();
    speak(text);
  } catch (error) {
    say(problem, error instanceof TypeError ? "The dashboard does not answer; look whether the run is closed." : `Not closed: ${error.message}.`);
    byId("close-token").focus();
  } finally {
    confirm.disabled = false;
  }
});
