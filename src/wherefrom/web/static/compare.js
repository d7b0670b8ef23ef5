// All methods on one input as a matrix, each row appearing as soon as it is ready.

import { cancel, fetchLines, isCancelled } from "./api.js";
import { duration, html, setChildren, signed, sum } from "./dom.js";
import { matrix } from "./matrix.js";
import { requestBody, state } from "./state.js";

const ORDERS = { method: "as listed", agreement: "by agreement" };
let order = "method";

export async function showCompare(box, context) {
  // Shapley values take thousands of passes: the tab "check" runs them
  const names = context.about.methods.map(({ name }) => name).filter((name) => name !== "shapley");
  const methods = names.filter((name) => !state.off.includes(name));
  const rows = [];
  const status = html("p", { class: "dim", role: "status" });
  const content = html("div");
  const redraw = () => draw(content, rows, context);
  const sorts = html("div", { class: "buttons", role: "group", "aria-label": "Order of the methods" }, Object.entries(ORDERS).map(([name, text]) => html("button", {
    type: "button", text, "data-order": name, "aria-pressed": String(name === order),
    on: { click: () => {
      order = name;
      for (const button of sorts.children) button.setAttribute("aria-pressed", String(button.dataset.order === name));
      redraw();
    } },
  })));
  const wasOpen = box.querySelector("details")?.open ?? false;
  setChildren(box, html("div", { class: "title-row" }, sorts, choices(names, box, context, wasOpen)), status, content);
  if (!methods.length) {
    status.textContent = "Choose a method.";
    return;
  }
  const { method, output } = context.explanation;
  status.textContent = `0 of ${methods.length} methods`;
  try {
    for await (const row of fetchLines("compare", requestBody({ methods }))) {
      rows.push(row);
      redraw();
      status.textContent = rows.length < methods.length
        ? `${rows.length} of ${methods.length} methods`
        : `${methods.length} methods explain the same output, ${signed(output)}. The colours of a row are relative to its largest score. Agreement is the `
          + `correlation r with the scores by ${method.name}; scores without a sign are grey, and compared with |scores|. Click a name to use that method above.`;
    }
  } catch (error) {
    if (!isCancelled(error)) status.textContent = error.message;
  }
}

export const stopCompare = () => cancel("compare");

// Boxes that say which methods are compared.
function choices(names, box, context, isOpen) {
  const choose = (name, isChosen) => {
    state.off = isChosen ? state.off.filter((one) => one !== name) : [...state.off, name];
    context.keep();
    showCompare(box, context);
  };
  return html("details", { class: "choices", open: isOpen }, html("summary", { text: "choose methods" }), html("div", { class: "controls" },
    names.map((name) => html("label", {}, html("input", {
      type: "checkbox", checked: !state.off.includes(name), "data-choice": name, on: { change: (event) => choose(name, event.target.checked) },
    }), ` ${name}`))));
}

function draw(box, rows, context) {
  const { explanation: { units, scene, method }, marks } = context;
  const agreements = new Map(rows.map((row) => [row, row.error ? null : agreement(row.explanation, context.explanation, units)]));
  const sorted = order === "method" ? rows : [...rows].sort((a, b) => (agreements.get(b) ?? -2) - (agreements.get(a) ?? -2));
  setChildren(box, matrix(["method", "agreement", "adds up to", "residual", "time"], sorted.filter(({ error }) => !error).map((row) => {
    const { explanation: { ledger, scores, signed: isSigned }, seconds } = row;
    const r = agreements.get(row);
    return {
      name: methodButton(row.method, context), scores, isSigned,
      attributes: { "data-method": row.method, class: row.method === method.name ? "selected" : "" },
      cells: [[r === null ? "–" : r.toFixed(2).replace("-", "−")], [ledger ? signed(ledger.output - ledger.residual) : "–"], [ledger ? signed(ledger.residual) : "–"], [duration(seconds), "dim"]],
    };
  }), { marks, units, scene }), rows.some(({ error }) => error) ? html("ul", { class: "dim" }, rows.filter(({ error }) => error)
    .map(({ method: name, error }) => html("li", { "data-method": name, text: `${name}: ${error}` }))) : null);
}

// The correlation of two methods' scores, special tokens aside; null where one of them is constant.
function agreement(first, second, units) {
  const isPlain = units.map(({ special }) => !special);
  const size = (value) => (first.signed && second.signed ? value : Math.abs(value));
  const [a, b] = [first, second].map(({ scores }) => centred(scores.filter((_, i) => isPlain[i]).map(size)));
  const product = (x, y) => sum(x.map((value, i) => value * y[i]));
  const norm = Math.sqrt(product(a, a) * product(b, b));
  return norm > 0 ? product(a, b) / norm : null;
}

const centred = (values) => values.map((value) => value - sum(values) / values.length);

function methodButton(name, context) {
  const { summary, paper } = context.about.methods.find((method) => method.name === name);
  return html("button", {
    type: "button", class: "text-button", text: name, title: `${summary} ${paper}`,
    on: { click: () => context.change({ method: name }) },
  });
}
