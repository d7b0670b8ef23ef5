// All methods on one input, each row appearing as it is ready.

import { forget, given_up, lines } from "./api.js";
import { el, fill, seconds, signed } from "./dom.js";
import { heat } from "./heat.js";
import { question, state } from "./state.js";

export async function showCompare(box, context) {
  const total = context.about.methods.length;
  const head = ["method", "where it comes from", "adds up to", "loses", "took"];
  const body = el("tbody");
  const told = el("p", { class: "dim", role: "status" });
  fill(box, told, el("table", { class: "rows" },
    el("thead", {}, el("tr", {}, head.map((name, i) => el("th", { text: name, class: i > 1 ? "num" : "" })))), body));
  let ready = 0;
  told.textContent = `0 of ${total} methods`;
  try {
    for await (const row of lines("compare", question())) {
      ready += 1;
      body.append(row.left_out ? leftOut(row, context) : shown(row, context));
      told.textContent = ready < total ? `${ready} of ${total} methods` : `${total} methods; click a name to look at it above. The same output, ${signed(context.explanation.output)}, is what they explain.`;
    }
  } catch (error) {
    if (!given_up(error)) told.textContent = error.message;
  }
}

export const leaveCompare = () => forget("compare");

function shown(row, context) {
  const { explanation, marks } = row;
  const { ledger } = explanation;
  const total = ledger && ledger.output - ledger.residual;
  return el("tr", { "data-method": row.method, class: row.method === state.method ? "chosen" : "" },
    el("td", {}, button(row.method, context)),
    el("td", {}, heat({ marks, scores: explanation.scores, scene: explanation.scene, units: explanation.units, small: true })),
    el("td", { class: "num", text: ledger ? signed(total) : "–" }),
    el("td", { class: "num", text: ledger ? signed(ledger.residual) : "–" }),
    el("td", { class: "num dim", text: seconds(row.seconds) }));
}

function leftOut(row, context) {
  return el("tr", { "data-method": row.method },
    el("td", {}, button(row.method, context)), el("td", { class: "dim", colspan: 4, text: row.left_out }));
}

function button(name, context) {
  const told = context.about.methods.find((each) => each.name === name);
  return el("button", {
    type: "button", class: "opens", text: name, title: `${told.sentence} ${told.paper}`,
    on: { click: () => context.choose({ method: name }) },
  });
}
