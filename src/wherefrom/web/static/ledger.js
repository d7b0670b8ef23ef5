// The ledger as bars, each starting where the one before ended; a line opens into its parts.

import { el, fill, signed } from "./dom.js";

const NAMES = { word: "words", token: "extra tokens", padding: "other places" };
const MOST = 14;
const plural = (noun) => noun + (/(s|ch)$/.test(noun) ? "es" : "s");
const sum = (values) => values.reduce((total, value) => total + value, 0);

// Groups of lines: what entered at the units, then what the model itself adds.
export function groups(explanation) {
  const found = new Map();
  for (const line of explanation.ledger.lines) {
    const name = NAMES[line.kind] ?? plural(line.kind);
    const group = found.get(name) ?? { name, kind: line.kind, value: 0, lines: [] };
    group.value += line.value;
    group.lines.push(line);
    found.set(name, group);
  }
  return [...found.values()];
}

// What a group is made of: units by their part of that kind, biases by layer.
function parts(explanation, group) {
  const values = explanation.parts[group.kind];
  if (!values) return group.lines.map((line) => [line.label, line.value]);
  const rows = explanation.units.map((unit, i) => [unit.text, values[i]]);
  const rest = group.lines.slice(1).map((line) => [line.label, line.value]);
  if (rows.length <= MOST) return [...rows, ...rest];
  const strong = new Set([...rows.keys()].sort((a, b) => Math.abs(rows[b][1]) - Math.abs(rows[a][1])).slice(0, MOST));
  const others = rows.filter((_, i) => !strong.has(i));
  return [...rows.filter((_, i) => strong.has(i)), [`${others.length} others`, sum(others.map((row) => row[1]))], ...rest];
}

export function showLedger(box, explanation, open = new Set()) {
  const { ledger } = explanation;
  if (!ledger) {
    fill(box, el("p", { class: "dim", text: `${explanation.method.name} gives scores that are no amounts of the output: it has no ledger. lrp has one that closes.` }));
    return;
  }
  const listed = groups(explanation);
  const rows = [];
  let at = 0;
  for (const group of listed) {
    rows.push({ ...group, start: at, group: true });
    if (open.has(group.name)) {
      let inner = at;
      for (const [name, value] of parts(explanation, group)) {
        rows.push({ name, value, start: inner });
        inner += value;
      }
    }
    at += group.value;
  }
  rows.push({ name: "residual", value: ledger.residual, start: at });
  rows.push({ name: "output", value: ledger.output, start: 0, total: true });
  const ends = rows.flatMap((row) => [row.start, row.start + row.value]);
  const low = Math.min(0, ...ends);
  const span = Math.max(0, ...ends) - low || 1;
  const small = Math.abs(ledger.residual) <= 1e-4 * Math.max(Math.abs(ledger.output), 1e-9);
  const told = small
    ? "Every line is measured on its own, and together they are the model's output."
    : `${explanation.method.name} loses ${signed(ledger.residual)} on the way: the residual.`;
  fill(box,
    el("table", { class: "ledger" }, rows.map((row) => line(row, low, span, open, () => showLedger(box, explanation, open)))),
    el("p", { class: "dim", text: told }),
  );
}

function line(row, low, span, open, again) {
  const [left, right] = [row.start, row.start + row.value].sort((a, b) => a - b);
  const bar = el("td", { class: "bar" },
    el("u", { style: { left: `${(100 * (0 - low)) / span}%` } }),
    el("i", {
      class: row.value < 0 ? "against" : "for",
      style: { left: `${(100 * (left - low)) / span}%`, width: `${(100 * (right - left)) / span}%` },
    }));
  const toggle = () => {
    open[open.has(row.name) ? "delete" : "add"](row.name);
    again();
    document.querySelector(`[data-line="${CSS.escape(row.name)}"]`)?.focus();
  };
  const name = row.group
    ? el("button", {
      type: "button", class: "opens", "data-line": row.name, text: row.name,
      "aria-expanded": String(open.has(row.name)), on: { click: toggle },
    })
    : row.name;
  const kind = row.total ? "total" : row.group || row.name === "residual" ? "" : "part";
  return el("tr", { class: kind }, el("td", { dir: "auto" }, name), bar, el("td", { class: "num", text: signed(row.value) }));
}
