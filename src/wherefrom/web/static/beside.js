// A second explanation in a column beside the first: by another model, of a text that was pinned, or both.

import { cancel, fetchJson, isCancelled } from "./api.js";
import { changedWords, ofModels, ofTexts } from "./difference.js";
import { byId, html, setChildren } from "./dom.js";
import { hasShapes, heatmap, key } from "./heatmap.js";
import { namedKinds, showLedger, sumBar } from "./ledger.js";
import { showPrediction } from "./prediction.js";
import { joined, namedUnits, sentence } from "./sentence.js";
import { isPinned, requestBody, state, textInput } from "./state.js";

const SLOTS = ["beside predict", "beside explain"];
const openGroups = new Set(); // groups of the second ledger

export function setUpBeside(change) {
  byId("beside").addEventListener("change", (event) => change({ beside: event.target.value }));
  byId("pin").addEventListener("click", () => change({ pinned: state.pinned === null ? textInput() : null }));
}

// The menu of other models that read the same kind of input.
export function showBesideMenu({ models }) {
  const own = models.find(({ name }) => name === state.model);
  const others = models.filter((model) => model !== own && model.input_kind === own.input_kind && model.input_label === own.input_label && model.answers === own.answers);
  if (!others.some(({ name }) => name === state.beside)) state.beside = "";
  setChildren(byId("beside"), html("option", { value: "", text: "no other model" }), others.map(({ name }) => html("option", { value: name, text: name })));
  byId("beside").value = state.beside;
  byId("beside-menu").hidden = !others.length;
  byId("pin").hidden = own.input_kind === "image";
  byId("pin").textContent = state.pinned === null ? "pin this text, then change it" : "unpin";
  byId("pin").setAttribute("aria-pressed", String(state.pinned !== null));
}

export async function showBeside(context) {
  const isShown = isPinned() || Boolean(state.beside);
  setShown(isShown);
  if (!isShown) {
    stopBeside();
    return;
  }
  // classes of another model have other numbers: its own prediction is explained
  const changes = { ...(isPinned() && state.pinned), ...(state.beside && { model: state.beside, target: null, against: null }) };
  if (isPinned() && !state.beside) changes.target = context.explanation.target.index;
  try {
    const body = requestBody(changes);
    const [prediction, answer] = await Promise.all(SLOTS.map((slot) => fetchJson(slot.split(" ")[1], body, slot)));
    draw(context, prediction, answer);
  } catch (error) {
    if (isCancelled(error)) return;
    setChildren(byId("second"), html("h2", { class: "column-title", text: titles()[1] }), html("section", {}, html("p", { text: error.message })));
    setChildren(byId("second-aside"));
    byId("difference-section").hidden = true;
  }
}

export const stopBeside = () => SLOTS.forEach(cancel);

function setShown(isShown) {
  byId("columns").classList.toggle("both", isShown);
  for (const id of ["second", "second-aside", "first-title", "difference-section"]) byId(id).hidden = !isShown;
  if (isShown) byId("first-title").textContent = titles()[0];
  else for (const id of ["second", "second-aside", "difference"]) setChildren(byId(id));
}

function titles() {
  const names = state.beside ? [`by ${state.model}`, `by ${state.beside}`] : ["", ""];
  const texts = isPinned() ? ["now", "before: the pinned text"] : ["", ""];
  return names.map((name, i) => [texts[i], name].filter(Boolean).join(", "));
}

function draw(context, prediction, answer) {
  const { explanation, marks, largest } = answer;
  const { scores, scene, units, signed: isSigned } = explanation;
  const [before, now] = isPinned() && !hasShapes(scene) ? changedWords(marks, context.marks) : [null, null];
  // the scores of one model are shown on one scale, those of two models each on its own
  const scale = state.beside ? largest : Math.max(largest, context.words.largest);
  Object.assign(context, { changed: now, scale: state.beside ? null : scale });
  context.redraw();
  const predicted = html("div");
  showPrediction(predicted, prediction, prediction, prediction.target);
  const ledger = html("div");
  const kinds = namedKinds(context.about.line_kinds, answer);
  showLedger(ledger, explanation, openGroups, kinds);
  setChildren(byId("second"),
    html("h2", { class: "column-title", text: titles()[1] }),
    html("section", {},
      heatmap({ marks, scores, scene, units, isSigned, changed: before, named: namedUnits(answer.sentence), scale }),
      html("p", { class: "key dim" }, key(answer, scene, scale, isSigned))),
    html("section", {}, html("p", { class: "sentence" }, sentence(answer.sentence)), html("div", {}, sumBar(explanation, kinds)), html("p", { class: "dim explained", text: joined(answer.explained) })));
  setChildren(byId("second-aside"),
    html("section", {}, html("h2", { text: "Prediction" }), predicted),
    html("section", {}, html("h2", { text: "Ledger: how the scores add up" }), ledger));
  setChildren(byId("difference"), state.beside ? ofModels(context.prediction, prediction) : ofTexts(answer.explanation, context.explanation));
}
