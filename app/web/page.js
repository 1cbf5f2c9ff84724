// The top of every page: the way back as links, and a box that searches everything. It also makes links and keys work.
// Comes in: {trail: [[label, address], ...], query}. Every value is set as text.

export default function ({ parentElement, data }) {
  install();
  const fresh = JSON.stringify(data);
  let root = parentElement.querySelector(".rk-page");
  if (!root) parentElement.append((root = Object.assign(document.createElement("div"), { className: "rk rk-page" })));
  if (root.fresh === fresh) return;
  root.fresh = fresh;
  if (!root.firstChild) root.append(trail([]), search(data.query));
  handOver(root.querySelector("input"));
  root.firstChild.replaceWith(trail(data.trail));
  const box = root.querySelector("input");
  if (box !== document.activeElement) box.value = data.query; // nothing is taken from under the hands of who types
}

function trail(steps) {
  const nav = Object.assign(document.createElement("nav"), { ariaLabel: "Breadcrumbs" });
  steps.forEach(([label, address], place) => {
    if (place) nav.append(" › ");
    const step = document.createElement(address ? "a" : "span");
    if (address) step.href = address;
    else step.ariaCurrent = "page";
    step.textContent = label;
    nav.append(step);
  });
  return nav;
}

function search(query) {
  const form = document.createElement("form");
  const box = document.createElement("input");
  Object.assign(box, { type: "search", name: "everything", value: query, placeholder: "Search everything ( / )" });
  Object.assign(box, { ariaLabel: "Search everything", autocomplete: "off" });
  form.append(box);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    find(box.value);
  });
  box.addEventListener("focus", () => (now.held = box));
  box.addEventListener("blur", () => setTimeout(() => box.isConnected && now.held === box && (now.held = null)));
  return form;
}

function find(words) {
  now.held?.blur(); // j and k are for the rows that were found
  now.held = null;
  if (words.trim()) go(`search?find=${encodeURIComponent(words.trim())}`);
}

// While a page changes, its box is gone for a moment. What is typed meanwhile goes to the next one.
const PATIENCE_MS = 5000;
const now = (window.rkTyping ??= {
  held: null, // the box that has the focus, also after it was taken away
  typed: null, // what was typed since
  timer: 0,
});

function waitForBox(text) {
  now.typed = text;
  now.held = null;
  clearTimeout(now.timer);
  now.timer = setTimeout(() => (now.typed = null), PATIENCE_MS);
}

function handOver(box) {
  if (now.typed === null && now.held && !now.held.isConnected) now.typed = now.held.value;
  if (now.typed === null) return;
  box.focus();
  box.value = now.typed;
  now.typed = null;
}

function typeAhead(event) {
  if (now.typed === null && now.held && !now.held.isConnected) waitForBox(now.held.value);
  if (now.typed === null) return false;
  if (event.key.length === 1) now.typed += event.key;
  else if (event.key === "Backspace") now.typed = now.typed.slice(0, -1);
  else if (event.key === "Enter" || event.key === "Escape") {
    const words = event.key === "Enter" ? now.typed : "";
    now.typed = null;
    find(words);
  } else return false;
  return true;
}

// A step in the browser's history and a page drawn in place. Streamlit itself writes two steps for a change of page with
// parameters, and Back then ends on the wrong one.
const left = (window.rkLeft ??= {}); // by the address of a list: what was opened from it, where j and k go on

function go(address) {
  left[location.href] = address;
  const before = location.pathname;
  history.pushState({}, "", address);
  window.dispatchEvent(new PopStateEvent("popstate"));
  const attempt = new URLSearchParams(location.search).get("attempt");
  if (location.pathname !== before) document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
  else if (attempt) bringIntoSight(`attempt-${attempt}`);
}

// What was opened is drawn below its list, and later: the page goes there once it stands.
function bringIntoSight(name, tries = 30) {
  const drawn = document.getElementById(name);
  if (drawn) drawn.scrollIntoView({ block: "start" });
  else if (tries) setTimeout(() => bringIntoSight(name, tries - 1), 100);
}

function install() {
  if (window.rkInstalled) return;
  window.rkInstalled = true;
  document.addEventListener("click", follow, true);
  document.addEventListener("keydown", press, true);
}

function follow(event) {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const anchor = event.target.closest?.(".rk a[href], [data-testid=stGraphVizChart] a");
  const address = anchor?.getAttribute("href") ?? anchor?.getAttribute("xlink:href");
  if (address && !anchor.hasAttribute("download")) {
    event.preventDefault();
    event.stopPropagation();
    go(address);
    return;
  }
  const row = event.target.closest?.(".rk tr[data-open]");
  const reading = String(getSelection()) !== "";
  if (row && !reading && !event.target.closest("input, button, a, .rk-tick")) go(row.dataset.open);
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable=true]")) return;
  const act = { "/": focusSearch, j: () => step(1), k: () => step(-1), c: compare, Enter: enter }[event.key];
  if (typeAhead(event) || act?.(event)) {
    event.preventDefault();
    event.stopImmediatePropagation(); // Streamlit has a use of its own for some of these keys
  }
}

function focusSearch() {
  const box = document.querySelector(".rk-page input");
  if (box) box.select();
  else waitForBox("");
  return true;
}

const ROWS = ".rk-table tbody tr"; // charts are tables too, without rows to stand on

function here() {
  return document.activeElement?.closest?.(ROWS) ?? null;
}

function step(by) {
  const rows = [...document.querySelectorAll(ROWS)];
  const now = rows.indexOf(here());
  const opened = rows.find((row) => row.dataset.open === left[location.href]);
  const next = now < 0 ? (opened ?? rows[0]) : rows[Math.min(rows.length - 1, Math.max(0, now + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
  return Boolean(next);
}

function enter(event) {
  const row = event.target.matches?.(`${ROWS}[data-open]`) ? event.target : null;
  if (row) go(row.dataset.open);
  return Boolean(row);
}

// c ticks the row; where two are ticked, it compares them.
function compare() {
  const ready = (here()?.closest(".rk") ?? document).querySelector(".rk-go");
  if (ready) go(ready.getAttribute("href"));
  else here()?.querySelector("input[type=checkbox]")?.click();
  return true;
}
