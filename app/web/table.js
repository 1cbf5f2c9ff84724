// A table of links: real anchors, headings that sort, columns to choose, CSV of what is shown, boxes to tick for comparing.
// Comes in: {name, columns, rows, open, tick}; see app/grid.py. Every value is set as text, so archived text stays text.

const DASH = "–";

export default function ({ parentElement, data }) {
  const fresh = JSON.stringify(data);
  let root = parentElement.querySelector(".rk-table");
  if (!root) {
    root = make("section", { className: "rk rk-table" });
    parentElement.append(root);
    root.state = { key: null, down: false };
  }
  if (root.fresh !== fresh) {
    root.fresh = fresh;
    draw(root, data);
  }
  const again = () => draw(root, data);
  window.addEventListener("rk-ticks", again);
  return () => window.removeEventListener("rk-ticks", again);
}

function make(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// --- what is chosen, kept by the browser: columns for good, ticks as long as the tab is open

function hidden(data) {
  const kept = localStorage.getItem(`rk-hidden-${data.name}`);
  return new Set(kept === null ? data.columns.filter((c) => c.extra).map((c) => c.key) : JSON.parse(kept));
}

function ticked(kind) {
  return JSON.parse(sessionStorage.getItem(`rk-tick-${kind}`) ?? "[]");
}

function tick(kind, id) {
  const now = ticked(kind);
  const next = id === null ? [] : now.includes(id) ? now.filter((other) => other !== id) : [...now, id].slice(-2);
  sessionStorage.setItem(`rk-tick-${kind}`, JSON.stringify(next));
  window.dispatchEvent(new Event("rk-ticks"));
}

// --- values

function link(template, row) {
  let whole = Boolean(template);
  const address = (template ?? "").replace(/{(\w+)}/g, (_, key) => {
    if (row[key] === null || row[key] === undefined || row[key] === "") whole = false;
    return encodeURIComponent(row[key]);
  });
  return whole ? address : null;
}

function told(column, row) {
  const value = row[column.key];
  if (value === null || value === undefined || value === "") return DASH;
  if (column.kind === "number") {
    const digits = { minimumFractionDigits: column.digits, maximumFractionDigits: column.digits };
    const least = column.bound && row.at_least ? "≥ " : "";
    return `${least}${column.before}${value.toLocaleString("en-US", digits)}${column.unit}`;
  }
  if (column.kind === "check") return value ? "✓" : DASH;
  if (column.kind === "id") return value.slice(0, 10);
  return String(value);
}

function ordered(data, { key, down }) {
  if (key === null) return data.rows;
  const missing = (value) => value === null || value === undefined || value === "";
  return [...data.rows].sort((one, other) => {
    const [a, b] = [one[key], other[key]];
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const step = typeof a === "number" ? a - b : String(a).localeCompare(String(b));
    return down ? -step : step;
  });
}

function csv(columns, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+@-]/.test(text) ? `'${text}` : text; // a spreadsheet would run it
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = [columns.map((c) => c.label), ...rows.map((row) => columns.map((c) => row[c.key]))];
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

// --- drawing

function draw(root, data) {
  const away = hidden(data);
  const columns = data.columns.filter((c) => !away.has(c.key));
  const rows = ordered(data, root.state);
  const current = root.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.row : undefined;
  const scrolled = root.querySelector(".rk-scroll")?.scrollLeft ?? 0;
  const open = root.querySelector("details")?.open ?? false;
  const table = make("table", { ariaLabel: data.name }, head(root, data, columns), body(data, columns, rows));
  const scroll = make("div", { className: "rk-scroll" }, table);
  root.replaceChildren(scroll, bar(root, data, columns, rows, away, open));
  scroll.scrollLeft = scrolled;
  if (current !== undefined) root.querySelector(`tr[data-row="${CSS.escape(current)}"]`)?.focus({ preventScroll: true });
}

function head(root, data, columns) {
  const line = make("tr", {});
  if (data.tick) line.append(make("th", { className: "rk-tick", ariaLabel: "compare" }));
  for (const column of columns) {
    const here = column.sorted ?? (root.state.key === column.key ? (root.state.down ? "descending" : "ascending") : "");
    const mark = { ascending: " ↑", descending: " ↓", "": "" }[here];
    const label = column.label + mark;
    const control = column.sort
      ? make("a", { href: column.sort, textContent: label })
      : make("button", { type: "button", textContent: label });
    if (!column.sort)
      control.addEventListener("click", () => {
        const number = column.kind === "number";
        root.state = { key: column.key, down: root.state.key === column.key ? !root.state.down : number };
        draw(root, data);
      });
    const cell = make("th", { scope: "col", title: column.help, className: `rk-${column.kind}` }, control);
    if (here) cell.ariaSort = here;
    line.append(cell);
  }
  return make("thead", {}, line);
}

function body(data, columns, rows) {
  const chosen = data.tick ? ticked(data.tick) : [];
  const lines = rows.map((row, place) => {
    const line = make("tr", { tabIndex: -1 });
    line.dataset.row = row.id || `row ${place}`;
    const address = link(data.open, row);
    if (address) line.dataset.open = address;
    if (data.tick) {
      const box = make("input", { type: "checkbox", checked: chosen.includes(row.id), ariaLabel: `compare ${row.id}` });
      box.addEventListener("change", () => tick(data.tick, row.id));
      line.append(make("td", { className: "rk-tick" }, ...(row.id ? [box] : [])));
    }
    for (const column of columns) {
      const text = told(column, row);
      const target = text === DASH ? null : link(column.link, row);
      const shown = target ? make("a", { href: target, textContent: text }) : document.createTextNode(text);
      const title = typeof row[column.key] === "string" ? row[column.key] : "";
      line.append(make("td", { className: `rk-${column.kind}${column.wide ? " rk-wide" : ""}`, title }, shown));
    }
    return line;
  });
  return make("tbody", {}, ...lines);
}

function bar(root, data, columns, rows, away, open) {
  const boxes = data.columns.map((column) => {
    const box = make("input", { type: "checkbox", checked: !away.has(column.key) });
    box.addEventListener("change", () => {
      box.checked ? away.delete(column.key) : away.add(column.key);
      localStorage.setItem(`rk-hidden-${data.name}`, JSON.stringify([...away]));
      draw(root, data);
    });
    return make("label", {}, box, column.label);
  });
  const menu = make("details", { open }, make("summary", { textContent: "Columns" }), make("div", {}, ...boxes));
  const save = make("button", { type: "button", textContent: "CSV", title: "what is shown, as a file" });
  save.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csv(columns, rows)], { type: "text/csv" }));
    make("a", { href: address, download: `${data.name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
  const keys = data.open ? `keys: j k move, Enter opens${data.tick ? ", c ticks and compares" : ""}` : "";
  const hint = keys ? [make("span", { className: "rk-keys", textContent: keys })] : [];
  return make("div", { className: "rk-bar" }, ...hint, ...compare(data), menu, save);
}

function compare(data) {
  const [a, b] = data.tick ? ticked(data.tick) : [];
  if (!a) return [];
  const clear = make("button", { type: "button", textContent: "Untick" });
  clear.addEventListener("click", () => tick(data.tick, null));
  if (!b) return [make("span", { textContent: `${a.slice(0, 10)} is ticked: tick another to compare` }), clear];
  const address = `compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;
  return [make("a", { href: address, className: "rk-go", textContent: `Compare ${a.slice(0, 10)} and ${b.slice(0, 10)}` }), clear];
}
