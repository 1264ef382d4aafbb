// Which view is open, and whether what it shows is still true.

import { el, refreshMoments, say, setClock, speak } from "./dom.js";
import { Live } from "./live.js";
import { RunPage } from "./run.js";
import { RunsPage } from "./runs.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const link = document.getElementById("link");
const linkText = document.getElementById("link-text");
const away = document.getElementById("away");
const foot = document.getElementById("foot");

let live = null;
let page = null;
let lostSince = 0;
let etcd = { answers: true, text: "" };

/** The run that the address names, or none for all. */
function chosen() {
  return new URLSearchParams(location.search).get("run") || null;
}

function open() {
  live?.end();
  const run = chosen();
  page = run === null ? new RunsPage() : new RunPage(run);
  main.replaceChildren(page.root);
  crumbs.replaceChildren(
    ...(run === null
      ? [el("span", { "aria-current": "page" }, "All runs")]
      : [
          el("a", { href: "./", "data-link": "" }, "All runs"),
          el("span", { class: "slash", "aria-hidden": "true" }, "/"),
          el("bdi", { "aria-current": "page" }, run.length > 60 ? `${run.slice(0, 60)}…` : run),
        ]),
  );
  document.title = "Rallypoint";
  const query = run === null ? "" : `?run=${encodeURIComponent(run)}`;
  live = new Live(query, {
    hello(hello) {
      setClock(hello.now_ms);
      page.hello?.(hello);
      lostSince = 0;
      say(foot, `Rallypoint ${hello.version} · etcd at ${hello.etcd} · ${hello.writable ? "changing a run takes the token" : "read-only"}`);
      reachable();
    },
    etcd(state) {
      etcd = state;
      reachable();
    },
    runs: (data) => page.show?.(data),
    run: (data) => page.show?.(data),
    change: (data) => page.change?.(data),
    lost() {
      lostSince ||= Date.now();
      reachable();
    },
  });
}

/** Says whether what is shown is live, and keeps what was shown last. */
function reachable() {
  let problem = "";
  const silent = Math.round((Date.now() - lostSince) / 1000);
  if (lostSince && silent >= 1) problem = `The dashboard has not answered for ${silent} s`;
  else if (!etcd.answers) problem = etcd.text;
  const isLive = !problem && !lostSince;
  link.className = `link ${isLive ? "live" : "cut"}`;
  say(linkText, isLive ? "live" : "not live");
  away.hidden = !problem;
  if (problem) say(away, `${problem}. What is shown below is from before that.`);
  main.classList.toggle("stale", Boolean(problem));
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[data-link]");
  if (!anchor || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", anchor.href);
  open();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  speak(chosen() === null ? "All runs" : `Run ${chosen()}`);
});

addEventListener("popstate", open);

setInterval(() => {
  refreshMoments(main);
  page?.tick?.();
  if (lostSince) reachable();
}, 1000);

open();
