// All methods on one input, each row appearing as soon as it is ready.

import { cancel, fetchLines, isCancelled } from "./api.js";
import { duration, html, setChildren, signed } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { requestBody, state } from "./state.js";

export async function showCompare(box, context) {
  // Shapley values take thousands of passes: the tab "check" runs them
  const methods = context.about.methods.map(({ name }) => name).filter((name) => name !== "shapley");
  const count = methods.length;
  const columns = ["method", "where it comes from", "adds up to", "residual", "time"];
  const body = html("tbody");
  const status = html("p", { class: "dim", role: "status", text: `0 of ${count} methods` });
  setChildren(box, status, html("table", { class: "heatmap-rows" },
    html("thead", {}, html("tr", {}, columns.map((name, i) => html("th", { text: name, class: i > 1 ? "num" : i ? "map" : "" })))), body));
  let ready = 0;
  try {
    for await (const row of fetchLines("compare", requestBody({ methods }))) {
      ready += 1;
      body.append(row.error ? errorRow(row, context) : explanationRow(row, context));
      status.textContent = ready < count
        ? `${ready} of ${count} methods`
        : `${count} methods explain the same output, ${signed(context.explanation.output)}. Click a name to use that method above.`;
    }
  } catch (error) {
    if (!isCancelled(error)) status.textContent = error.message;
  }
}

export const stopCompare = () => cancel("compare");

function explanationRow({ method, explanation, marks, seconds }, context) {
  const { ledger, scores, scene, units } = explanation;
  return html("tr", { "data-method": method, class: method === context.explanation?.method.name ? "selected" : "" },
    html("td", {}, methodButton(method, context)),
    html("td", { class: "map" }, heatmap({ marks, scores, scene, units, small: true })),
    html("td", { class: "num", text: ledger ? signed(ledger.output - ledger.residual) : "–" }),
    html("td", { class: "num", text: ledger ? signed(ledger.residual) : "–" }),
    html("td", { class: "num dim", text: duration(seconds) }));
}

function errorRow({ method, error }, context) {
  return html("tr", { "data-method": method },
    html("td", {}, methodButton(method, context)), html("td", { class: "dim", colspan: 4, text: error }));
}

function methodButton(name, context) {
  const { summary, paper } = context.about.methods.find((method) => method.name === name);
  return html("button", {
    type: "button", class: "text-button", text: name, title: `${summary} ${paper}`,
    on: { click: () => context.change({ method: name }) },
  });
}
