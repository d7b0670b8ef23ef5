// A second explanation below the first: by another model, of a text that was pinned, or both.

import { fetchJson, isCancelled } from "./api.js";
import { byId, html, percent, setChildren, signed } from "./dom.js";
import { hasShapes, heatmap } from "./heatmap.js";
import { sentence } from "./sentence.js";
import { requestBody, state } from "./state.js";

export function setUpBeside(change) {
  byId("beside").addEventListener("change", (event) => change({ beside: event.target.value }));
  byId("pin").addEventListener("click", () => change({ pinned: state.pinned === null ? state.text : null }));
}

// The menu of other models that read the same kind of input.
export function showBesideMenu({ models }) {
  const own = models.find(({ name }) => name === state.model);
  const others = models.filter((model) => model !== own && model.input_kind === own.input_kind && model.input_label === own.input_label);
  if (!others.some(({ name }) => name === state.beside)) state.beside = "";
  setChildren(byId("beside"), html("option", { value: "", text: "no other model" }), others.map(({ name }) => html("option", { value: name, text: name })));
  byId("beside").value = state.beside;
  byId("beside-menu").hidden = !others.length;
  byId("pin").hidden = own.input_kind === "image";
  byId("pin").textContent = state.pinned === null ? "pin this text, then change it" : "unpin";
  byId("pin").setAttribute("aria-pressed", String(state.pinned !== null));
}

export async function showBeside(context) {
  const box = byId("other");
  const isPinned = state.pinned !== null && state.pinned !== state.text;
  byId("beside-section").hidden = !isPinned && !state.beside;
  if (byId("beside-section").hidden) {
    setChildren(box);
    return;
  }
  // classes of another model have other numbers: its own prediction is explained
  const changes = { ...(isPinned && { text: state.pinned }), ...(state.beside && { model: state.beside, target: null, against: null }) };
  if (isPinned && !state.beside) changes.target = context.explanation.target.index;
  try {
    const body = requestBody(changes);
    const [prediction, answer] = await Promise.all([fetchJson("predict", body, "beside predict"), fetchJson("explain", body, "beside explain")]);
    draw(box, context, prediction, answer, isPinned);
  } catch (error) {
    if (!isCancelled(error)) setChildren(box, html("p", { text: error.message }));
  }
}

function draw(box, context, prediction, answer, isPinned) {
  const { explanation, marks, sentence: pieces } = answer;
  const { scores, scene, units } = explanation;
  const title = [isPinned ? "before: the pinned text" : null, state.beside || null].filter(Boolean).join(", by ");
  const changed = isPinned && !hasShapes(scene) ? changedWords(marks, context.marks) : [new Set(), new Set()];
  const shown = heatmap({ marks, scores, scene, units });
  outline(shown, changed[0]);
  outline(byId("heatmap"), changed[1]);
  setChildren(box,
    html("h3", { text: title }), html("p", { class: "sentence" }, sentence(pieces)), shown,
    isPinned && !state.beside ? difference(context, answer) : classesBeside(context.prediction, prediction));
}

function outline(box, indices) {
  [...box.querySelectorAll(".u")].forEach((unit, i) => unit.classList.toggle("changed", indices.has(i)));
}

// What the change of the text did to the output, and which words account for it.
function difference(context, { explanation: before }) {
  const now = context.explanation;
  const name = now.target.label;
  const chances = [before.probability, now.probability];
  const words = (explanation) => {
    const totals = new Map();
    explanation.units.forEach(({ text, special }, i) => {
      if (!special) totals.set(text, (totals.get(text) ?? 0) + explanation.scores[i]);
    });
    return totals;
  };
  const [old, fresh] = [words(before), words(now)];
  const rows = [...new Set([...old.keys(), ...fresh.keys()])]
    .map((word) => [word, old.get(word) ?? null, fresh.get(word) ?? null])
    .map(([word, a, b]) => [word, a, b, (b ?? 0) - (a ?? 0)])
    .sort((a, b) => Math.abs(b[3]) - Math.abs(a[3])).slice(0, 8);
  const cell = (value) => html("td", { class: "num", text: value === null ? "–" : signed(value) });
  const largest = Math.max(...rows.map((row) => Math.abs(row[3])), 1e-12);
  return html("div", { id: "difference" },
    html("p", {}, html("strong", { text: name }), chances[0] === null || chances[1] === null ? "" : `: ${percent(chances[0])} → ${percent(chances[1])}`,
      `; output ${signed(before.output)} → ${signed(now.output)}, a change of ${signed(now.output - before.output)}.`),
    html("table", {}, html("tr", {}, ["token", "before", "now", "change", ""].map((text, i) => html("th", { text, class: i && i < 4 ? "num" : "" }))),
      rows.map(([word, a, b, change]) => html("tr", {}, html("td", { dir: "auto", text: word }), cell(a), cell(b), cell(change),
        html("td", { class: "bar" }, html("i", {
          class: change < 0 ? "against" : "for",
          style: { width: `${(50 * Math.abs(change)) / largest}%`, left: `${change < 0 ? 50 - (50 * Math.abs(change)) / largest : 50}%` },
        }), html("u", {}))))));
}

function classesBeside(first, second) {
  const byLabel = new Map(second.outputs.map((output) => [output.label, output]));
  const rows = first.outputs.filter(({ label }) => byLabel.has(label));
  if (!rows.length) return html("p", { class: "dim", text: "The two models have no class in common." });
  const chance = ({ probability, output }) => (probability === null ? signed(output) : percent(probability));
  return html("table", { id: "difference" }, html("tr", {}, ["class", state.model, state.beside || state.model].map((text, i) => html("th", { text, class: i ? "num" : "" }))),
    rows.map((output) => html("tr", {}, html("td", { text: output.label }),
      html("td", { class: "num", text: chance(output) }), html("td", { class: "num", text: chance(byLabel.get(output.label)) }))));
}

// The units of each text that the other does not have in this order: what is not in a longest
// common subsequence.
function changedWords(before, now) {
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
