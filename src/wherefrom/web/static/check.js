// The scores beside Shapley values: a row for each word, and a sentence on how far they agree.

import { fetchJson, isCancelled } from "./api.js";
import { duration, html, plural, setChildren, signed, sum } from "./dom.js";
import { requestBody } from "./state.js";

export async function showCheck(box) {
  setChildren(box, html("p", { class: "dim", role: "status", text: "running subsets of the input …" }));
  try {
    draw(box, await fetchJson("check", requestBody()));
  } catch (error) {
    if (!isCancelled(error)) setChildren(box, html("p", { text: error.message }));
  }
}

function draw(box, { sentence, method, noun, missing, rows, seconds }) {
  const isSampled = rows.some(({ error }) => error > 0);
  const largest = Math.max(...rows.flatMap(({ score, value }) => [Math.abs(score), Math.abs(value)]), 1e-12);
  const columns = [noun, `score by ${method}`, isSampled ? "Shapley value ± standard error" : "Shapley value"];
  const total = (key) => html("td", { class: "num", text: signed(sum(rows.map((row) => row[key]))) });
  setChildren(box,
    html("p", { class: "verdict", role: "status", text: sentence }),
    html("p", { class: "dim", text: `A Shapley value is the mean change of the output when the ${noun} is added, over all orders of adding the ${plural(noun)}. A ${noun} that is not yet added is ${missing}. Computed in ${duration(seconds)}.` }),
    html("div", { class: "scroll" }, html("table", { class: "check" },
      html("thead", {}, html("tr", {}, columns.map((text, i) => html("th", { text, class: i ? "num" : "" })), html("th", { class: "bars" }))),
      html("tbody", {}, rows.map(({ name, score, value, error }) => html("tr", {},
        html("td", { dir: "auto", text: name }),
        html("td", { class: "num", text: signed(score) }),
        html("td", { class: "num" }, signed(value), isSampled ? html("span", { class: "dim", text: ` ± ${error.toFixed(3)}` }) : null),
        html("td", { class: "bars" }, bar(score, largest), bar(value, largest, error))))),
      html("tfoot", {}, html("tr", {}, html("td", { text: "sum" }), total("score"), total("value"), html("td", { class: "bars" }))))));
}

// A bar from the middle; the line at its end spans one standard error on each side.
function bar(number, largest, error = null) {
  const place = (x) => `${50 + (50 * Math.max(-largest, Math.min(largest, x))) / largest}%`;
  const width = `${(50 * Math.abs(number)) / largest}%`;
  return html("div", { class: error === null ? "bar" : "bar thick" },
    html("i", { class: number < 0 ? "against" : "for", style: { width, left: number < 0 ? place(number) : "50%" } }),
    html("u"),
    error ? html("s", { style: { left: place(number - error), right: `calc(100% - ${place(number + error)})` } }) : null);
}
