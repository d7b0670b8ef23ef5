// What is different between two explanations: of two models, or of a text before and after a change.

import { html, percent, signed } from "./dom.js";
import { state } from "./state.js";

const MOST_WORDS = 8; // of a table of differences

// What the change of the text did to the output, and which tokens account for it.
export function ofTexts(before, now) {
  const chances = [before.probability, now.probability];
  const [old, fresh] = [before, now].map(scoresByToken);
  const rows = [...new Set([...old.keys(), ...fresh.keys()])]
    .map((token) => [token, old.get(token) ?? null, fresh.get(token) ?? null])
    .map(([token, a, b]) => [token, a, b, (b ?? 0) - (a ?? 0)])
    .sort((a, b) => Math.abs(b[3]) - Math.abs(a[3])).slice(0, MOST_WORDS);
  return [
    html("p", {}, html("strong", { text: now.target.label }), chances.includes(null) ? "" : `: ${percent(chances[0])} → ${percent(chances[1])}`,
      `; output ${signed(before.output)} → ${signed(now.output)}, a change of ${signed(now.output - before.output)}.`),
    differenceTable(["token", "before", "now", "change"], rows, signed),
  ];
}

function scoresByToken({ units, scores }) {
  const totals = new Map();
  units.forEach(({ text, special }, i) => {
    if (!special) totals.set(text, (totals.get(text) ?? 0) + scores[i]);
  });
  return totals;
}

// Whether two models agree, and how far their probabilities (or outputs) are apart.
export function ofModels(first, second) {
  const best = [first, second].map(({ outputs }) => outputs.reduce((a, b) => (b.output > a.output ? b : a)));
  const [own, other] = best.map((output, i) => [html("strong", { text: [state.model, state.beside][i] }), " says ", html("strong", { dir: "auto", text: output.label }), ` (${value(output)})`]);
  const isSame = sameLabel(best[0].label, best[1].label);
  const line = html("p", {}, isSame ? "The models agree: " : "The models disagree: ", own, ", ", other, ".");
  const pairs = first.outputs.map((output) => [output, second.outputs.find(({ label }) => sameLabel(label, output.label))]).filter(([, match]) => match);
  if (!pairs.length) return [line, html("p", { class: "dim", text: "The two models have no class in common." })];
  const areChances = pairs.every((pair) => pair.every(({ probability }) => probability !== null));
  const number = ({ probability, output }) => (areChances ? probability : output);
  const rows = pairs.map(([a, b]) => [a.label, number(a), number(b), number(b) - number(a)]);
  const show = areChances ? (share, isChange) => (isChange ? points(share) : percent(share)) : signed;
  return [line, differenceTable(["class", state.model, state.beside, "difference"], rows, show, areChances ? 1 : null)];
}

const sameLabel = (a, b) => a.toLowerCase() === b.toLowerCase();
const value = ({ probability, output }) => (probability === null ? signed(output) : percent(probability));
const points = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)} points`;

// Rows of a name, two numbers and their difference, which a bar shows too; `full` is the longest bar.
function differenceTable(head, rows, show, full = null) {
  const largest = full ?? Math.max(...rows.map(([, , , change]) => Math.abs(change)), 1e-12);
  const cell = (number, isChange = false) => html("td", { class: "num", text: number === null ? "–" : show(number, isChange) });
  return html("table", {},
    html("tr", {}, head.map((text, i) => html("th", { text, class: i ? "num" : "" })), html("td", {})),
    rows.map(([name, a, b, change]) => {
      const width = (50 * Math.abs(change)) / largest;
      return html("tr", {}, html("td", { dir: "auto", text: name }), cell(a), cell(b), cell(change, true),
        html("td", { class: "bar" }, html("i", {
          class: change < 0 ? "against" : "for", style: { width: `${width}%`, left: `${change < 0 ? 50 - width : 50}%` },
        }), html("u", {})));
    }));
}

// The units of each text that the other does not have in this order: what is not in a longest
// common subsequence.
export function changedWords(before, now) {
  const [a, b] = [before, now].map((marks) => marks.map(({ text }) => text));
  const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  const changed = [new Set(a.keys()), new Set(b.keys())];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      changed[0].delete(i++);
      changed[1].delete(j++);
    } else if (length[i + 1][j] >= length[i][j + 1]) i += 1;
    else j += 1;
  }
  return changed;
}
