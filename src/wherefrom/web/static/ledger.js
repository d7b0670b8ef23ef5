// The ledger as bars, each starting where the previous one ended; a group opens into its lines.

import { html, layerName, plural, setChildren, signed, sum } from "./dom.js";

const MAX_LINES = 14; // of an open group; the rest are added up
const SMALL = 1e-3; // of the largest part: smaller parts are not in the bar

// The lines of the ledger by kind, in their order; `kinds` has what each is called.
function groupLines(ledger, kinds) {
  const groups = new Map();
  for (const line of ledger.lines) {
    const name = kinds[line.kind]?.name ?? plural(line.kind);
    const group = groups.get(name) ?? { name, kind: line.kind, value: 0, lines: [] };
    group.value += line.value;
    group.lines.push(line);
    groups.set(name, group);
  }
  return [...groups.values()];
}

// The lines of an open group: units by name, biases by layer.
function groupDetails(explanation, group) {
  const values = explanation.parts[group.kind];
  const details = group.lines.map((line) => [layerName(line.label), line.value]);
  if (!values) return details;
  const rows = explanation.units.map((unit, i) => [unit.text, values[i]]);
  const rest = details.slice(1);
  if (rows.length <= MAX_LINES) return [...rows, ...rest];
  const bySize = [...rows.keys()].sort((a, b) => Math.abs(rows[b][1]) - Math.abs(rows[a][1]));
  const largest = new Set(bySize.slice(0, MAX_LINES));
  const others = rows.filter((_, i) => !largest.has(i));
  return [...rows.filter((_, i) => largest.has(i)), [`${others.length} others`, sum(others.map(([, value]) => value))], ...rest];
}

// What adds up, in one bar: parts that count for the output to the right of zero, parts against it to the left.
export function sumBar({ ledger }, kinds) {
  if (!ledger) return null;
  const parts = [...groupLines(ledger, kinds), { name: "residual", value: ledger.residual }];
  const shown = parts.filter(({ value }) => Math.abs(value) >= SMALL * Math.max(...parts.map((part) => Math.abs(part.value))));
  const [above, below] = [1, -1].map((sign) => sum(shown.map(({ value }) => Math.max(0, sign * value))));
  const span = above + below || 1;
  const ends = { 1: below, "-1": below };
  const segments = shown.map(({ name, value }) => {
    const sign = value < 0 ? -1 : 1;
    const left = Math.min(ends[sign], ends[sign] + value);
    ends[sign] += value;
    return html("i", { class: value < 0 ? "against" : "for", title: `${name} ${signed(value)}`, style: { left: `${(100 * left) / span}%`, width: `${(100 * Math.abs(value)) / span}%` } });
  });
  return [
    html("div", { class: "sum-bar", "aria-hidden": "true" }, segments,
      html("u", { style: { left: `${(100 * below) / span}%` } }),
      html("b", { style: { left: `${(100 * (below + ledger.output)) / span}%` } })),
    html("p", { class: "sum" }, shown.map(({ name, value }) => html("span", {}, `${name} `, html("b", { class: "num", text: signed(value) }), " ")),
      html("span", {}, "= output ", html("b", { class: "num", text: signed(ledger.output) }))),
  ];
}

// What the lines of an explanation are called; the reference by its own name.
export const namedKinds = (kinds, { reference: name }) => ({ ...kinds, reference: { ...kinds.reference, name } });

// `openGroups` is the set of the names of open groups; clicks change it. `kinds` is {kind: {name, meaning}}.
export function showLedger(box, explanation, openGroups, kinds) {
  const { ledger, method } = explanation;
  if (!ledger) {
    setChildren(box, html("p", { class: "dim", text: `The scores of ${method.name} are not parts of the output and do not add up to it. Those of secant and lrp do.` }));
    return;
  }
  const rows = [];
  let total = 0;
  for (const group of groupLines(ledger, kinds)) {
    rows.push({ ...group, start: total, isGroup: true });
    if (openGroups.has(group.name)) {
      let start = total;
      for (const [name, value] of groupDetails(explanation, group)) {
        rows.push({ name, value, start, isDetail: true });
        start += value;
      }
    }
    total += group.value;
  }
  rows.push({ name: "residual", value: ledger.residual, start: total });
  rows.push({ name: "output", value: ledger.output, start: 0, isOutput: true });
  const ends = rows.flatMap((row) => [row.start, row.start + row.value]);
  const low = Math.min(0, ...ends);
  const span = Math.max(0, ...ends) - low || 1;
  const isExact = Math.abs(ledger.residual) <= 1e-4 * Math.max(Math.abs(ledger.output), 1e-9);
  const redraw = (name) => {
    showLedger(box, explanation, openGroups, kinds);
    box.querySelector(`[data-line="${CSS.escape(name)}"]`)?.focus();
  };
  setChildren(box,
    html("table", { class: "ledger" }, rows.map((row) => ledgerRow(row, low, span, openGroups, redraw))),
    html("p", { class: "dim", text: isExact
      ? "Each line is computed separately; together they add up to the model's output."
      : `The lines of ${method.name} do not add up to the output: the residual, ${signed(ledger.residual)}, is missing.` }),
    html("p", { class: "dim", text: groupLines(ledger, kinds).filter(({ kind }) => kind in kinds)
      .map(({ name, kind }) => `${name}: ${kinds[kind].meaning}`).join("; ") }));
}

function ledgerRow(row, low, span, openGroups, redraw) {
  const [left, right] = [row.start, row.start + row.value].sort((a, b) => a - b);
  const percentOf = (value) => `${(100 * value) / span}%`;
  const bar = html("td", { class: "bar" },
    html("u", { style: { left: percentOf(0 - low) } }),
    html("i", {
      class: row.value < 0 ? "against" : "for",
      style: { left: percentOf(left - low), width: percentOf(right - left) },
    }));
  const toggle = () => {
    openGroups[openGroups.has(row.name) ? "delete" : "add"](row.name);
    redraw(row.name);
  };
  const name = row.isGroup
    ? html("button", {
      type: "button", class: "text-button", "data-line": row.name, text: row.name,
      "aria-expanded": String(openGroups.has(row.name)), on: { click: toggle },
    })
    : row.name;
  return html("tr", { class: row.isOutput ? "total" : row.isDetail ? "detail" : "" },
    html("td", { dir: "auto" }, name), bar, html("td", { class: "num", text: signed(row.value) }));
}
