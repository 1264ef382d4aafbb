// Makes elements and words. Text is always set as text: nothing that a node says becomes HTML.

/** An element with properties, attributes (those with a dash, and role) and children. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.includes("-") || key === "role" || key === "for") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Sets text only where it differs, so that nothing is drawn or read out again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let ahead = 0;

/** Ages are told by the server's clock. */
export function setClock(nowMs) {
  ahead = nowMs - Date.now();
}

export function now() {
  return Date.now() + ahead;
}

/** `42 s`, `7 min`, `3 h 20 min`, `5 d 1 h`. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (ms > 0 && ms < 950) return `${Math.max(1, Math.round(ms))} ms`;
  if (seconds < 10 && ms % 1000 > 50) return `${(ms / 1000).toFixed(1)} s`;
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (seconds < 600) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  if (seconds < 3600) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${Math.floor(hours / 24)} d`;
}

export function ago(ms) {
  const past = now() - ms;
  return past < 1000 ? "now" : `${span(Math.floor(past / 1000) * 1000)} ago`;
}

const pad = (number) => String(number).padStart(2, "0");

/** The time of day here, with the day where it is another. */
export function clock(ms) {
  const at = new Date(ms);
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (new Date(now()).toDateString() === at.toDateString()) return time;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

/** The day, the time and the time zone, for who has to be sure. */
export function exact(ms) {
  const at = new Date(ms);
  const east = -at.getTimezoneOffset();
  const zone = `UTC${east < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(east) / 60))}:${pad(Math.abs(east) % 60)}`;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())} ${zone}`;
}

/** How long something lasts that began then, kept up to date. */
export function lasting(ms) {
  const element = el("span", { class: "lasting", title: `since ${exact(ms)}` }, span(whole(now() - ms)));
  element.dataset.from = ms;
  return element;
}

const whole = (ms) => Math.max(0, Math.floor(ms / 1000) * 1000);

/** A moment: how long ago, kept up to date, with the time itself beside it. */
export function moment(ms) {
  const valid = ms > 0 && ms < 8e15;
  const relative = el("span", { class: "ago" }, valid ? ago(ms) : "");
  relative.dataset.at = valid ? ms : "";
  const time = el("time", { class: "clock", title: valid ? exact(ms) : "" }, valid ? clock(ms) : "");
  if (valid) time.dateTime = new Date(ms).toISOString();
  return el("span", { class: "moment" }, relative, time);
}

/** Called once a second. */
export function refreshMoments(root) {
  for (const element of root.querySelectorAll(".ago[data-at]")) {
    if (element.dataset.at) say(element, ago(Number(element.dataset.at)));
  }
  for (const element of root.querySelectorAll(".lasting")) say(element, span(whole(now() - element.dataset.from)));
}

const spoken = document.getElementById("spoken");
let waiting = "";
let timer = 0;

/** Read out by a screen reader, the last of what comes within a second. */
export function speak(text) {
  waiting = text;
  if (timer) return;
  timer = setTimeout(() => {
    timer = 0;
    say(spoken, waiting);
  }, 800);
}
