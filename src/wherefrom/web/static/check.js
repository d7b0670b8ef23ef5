// The scores beside Shapley values: a row for each word, and a sentence on how far they agree.

import { fetchJson, isCancelled } from "./api.js";
import { duration, html, plural, setChildren, signed, sum } from "./dom.js";
import { joined } from "./sentence.js";
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
  const place = scale(rows.flatMap(({ score, value, error }) => [score, value - error, value + error]));
  const units = plural(noun);
  const columns = [noun, `score by ${method}`, isSampled ? "Shapley value ± standard error" : "Shapley value"];
  const total = (key) => html("td", { class: "num", text: signed(sum(rows.map((row) => row[key]))) });
  setChildren(box,
    html("p", { class: "verdict", role: "status", text: joined(sentence).replaceAll("r = ", "r\u00a0=\u00a0") }),
    html("p", { class: "dim", text: `A Shapley value is the mean change of the output when this ${noun} is added, over all orders of adding the ${units}. The ${units} that are not yet added ${missing}. Computed in ${duration(seconds)}.` }),
    html("table", { class: "check" },
      html("thead", {}, html("tr", {}, columns.map((text, i) => html("th", { text, class: i ? "num" : "" })), html("th", { class: "bars", text: "pale: score, full: Shapley value" }))),
      html("tbody", {}, rows.map(({ name, score, value, error }) => html("tr", {},
        html("td", { dir: "auto", text: name }),
        html("td", { class: "num", text: signed(score) }),
        html("td", { class: "num" }, signed(value), isSampled ? html("span", { class: "dim", text: ` ± ${error.toFixed(3)}` }) : null),
        html("td", { class: "bars" }, bar(place, score), bar(place, value, error))))),
      html("tfoot", {}, html("tr", {}, html("td", { text: "sum" }), total("score"), total("value"), html("td", { class: "bars" })))));
}

// The place of a number from 0 to 100, on an axis that holds all of these numbers and zero.
function scale(numbers) {
  const [low, high] = [Math.min(0, ...numbers), Math.max(0, ...numbers)];
  return (number) => (100 * (number - low)) / (high - low || 1);
}

const between = (start, end) => ({ left: `${start}%`, width: `${end - start}%` });

// A bar from zero to a number, with a line over one standard error on each side.
function bar(place, number, error = 0) {
  const ends = [place(0), place(number)];
  return html("div", {},
    html("i", { class: number < 0 ? "against" : "for", style: between(Math.min(...ends), Math.max(...ends)) }),
    html("u", { style: { left: `${ends[0]}%` } }),
    error ? html("s", { style: between(place(number - error), place(number + error)) }) : null);
}
