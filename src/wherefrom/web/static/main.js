// The page: a person's actions change the state, and the state decides what is requested and shown.

import { cancel, fetchAbout, fetchJson, isCancelled } from "./api.js";
import { showAttention } from "./attention.js";
import { setUpBeside, showBeside, showBesideMenu, stopBeside } from "./beside.js";
import { showCheck } from "./check.js";
import { showCompare, stopCompare } from "./compare.js";
import { showCurves } from "./curves.js";
import { byId, duration, enableArrowKeys, html, plural, setChildren, signed, sum, svg } from "./dom.js";
import { DOWNLOADS } from "./download.js";
import { paint, setUpEditor, showTexts, typedTexts } from "./editor.js";
import { hasShapes, heatmap, key, scoreText, textLook, toggleAttributes, visibleText } from "./heatmap.js";
import { drawPath, listenForImages, showImage } from "./image_input.js";
import { showLayers } from "./layers.js";
import { namedKinds, showLedger, sumBar } from "./ledger.js";
import { showClassMenus, showPrediction, showRemoval } from "./prediction.js";
import { joined, namedUnits, sentence } from "./sentence.js";
import { setUpSessions } from "./sessions.js";
import { openTable, restoreTable, savedTable, setUpTable } from "./table.js";
import { setUpTheme } from "./theme.js";
import { TABS, readFragment, requestBody, state, toFragment } from "./state.js";

const SHOW_TAB = { compare: showCompare, check: showCheck, curves: showCurves, layers: showLayers, attention: showAttention };
const MOST_ADDED = 6; // tokens that are not folded
const TYPING_PAUSE = 200; // milliseconds without a key before the text is sent
// `scale` and `changed` are the common scale and the changed units where a pinned text stands beside this one.
const context = { about: null, prediction: null, explanation: null, marks: null, scale: null, changed: null, change, keep: updateAddress, redraw: updateHeatmap };
const openGroups = new Set(); // groups of the ledger
let typingTimer = 0;
let chosen = []; // the units at the caret or in the selection
let isPanelOld = true; // the panel is filled when it comes into view
let predictionWithoutRemoved = null;

function showMessage(text, ...more) {
  byId("message").classList.remove("error");
  setChildren(byId("message"), text, ...more);
}

function showProblem(text, ...more) {
  showMessage(text, ...more);
  byId("message").classList.add("error");
}

function showError(error) {
  if (isCancelled(error)) return;
  showNothing();
  const canTruncate = error.kind === "TooLong" && !state.truncate && state.text.length <= context.about.limits.text_characters;
  showProblem(error.message, canTruncate
    ? html("button", { type: "button", class: "pill", text: "explain the beginning only", on: { click: () => change({ truncate: true }) } })
    : null);
}

// Nothing of an earlier input stays where the present one has no explanation.
function showNothing() {
  document.body.classList.add("empty");
  byId("difference-section").hidden = true;
  for (const id of ["sentence", "explained", "sum", "heatmap", "added", "chosen", "prediction", "removal", "ledger", "panel"]) setChildren(byId(id));
  paint("", [], null);
}

// Changes the state; a new input resets what belongs to the old one.
function change(changes) {
  const changed = (...names) => names.some((name) => name in changes);
  const reset = {};
  if (changed("model", "text", "pair", "image", "truncate")) reset.removed = [];
  if (changed("text", "pair", "image") && !changed("model", "truncate")) reset.truncate = false;
  if (changed("model")) Object.assign(reset, { target: null, against: null, pinned: null });
  Object.assign(state, reset, changes);
  if (state.target !== null && state.target === state.against) state.against = null;
  update();
}

function updateAddress() {
  history.replaceState(null, "", toFragment());
}

async function update() {
  updateAddress();
  showInput();
  stopCompare();
  if (!state.image && !state.text.trim()) {
    for (const kind of ["predict", "explain", "check", "erase", "curve", "layers", "attention"]) cancel(kind);
    stopBeside();
    showNothing();
    showMessage(byId("image-input").hidden ? "Type a text, or choose an example." : "Draw something, or drop an image.");
    return;
  }
  try {
    const prediction = fetchJson("predict", requestBody());
    const answer = fetchJson("explain", requestBody());
    answer.catch(() => {}); // handled below, when it is awaited
    context.prediction = await prediction;
    predictionWithoutRemoved = null;
    updatePrediction();
    const { explanation, marks, seconds, warnings, ...words } = await answer;
    Object.assign(context, { explanation, marks, words, scale: null, changed: null });
    showMessage([...warnings, `${explanation.method.name} took ${duration(seconds)}`].join(" · "));
    const kinds = namedKinds(context.about.line_kinds, words);
    chosen = [];
    updateHeatmap();
    showBeside(context);
    showLedger(byId("ledger"), explanation, openGroups, kinds);
    setChildren(byId("sum"), sumBar(explanation, kinds));
    updateTab();
    performance.mark("wherefrom-explained");
    await updateRemoval();
  } catch (error) {
    showError(error);
  }
}

function updatePrediction() {
  const { prediction } = context;
  document.body.classList.remove("empty");
  showPrediction(byId("prediction"), prediction, predictionWithoutRemoved ?? prediction, prediction.target, (index) => change({ target: index }));
  showClassMenus(byId("target"), byId("against"), prediction.outputs, state, prediction.target);
}

function updateHeatmap() {
  const { explanation: { scores, scene, text, units, parts, signed: isSigned }, marks, words, scale, changed } = context;
  const note = (i) => [scoreText(scores[i], isSigned), ...Object.entries(parts).map(([name, values]) => `${name} ${signed(values[i])}`)].join(" · ");
  const options = { marks, scores, scene, units, isSigned, scale, changed, named: namedUnits(words.sentence), removed: state.removed, toggle: toggleUnit, note };
  const isPicture = hasShapes(scene);
  const focused = document.activeElement?.closest("#heatmap, #added")?.id;
  const unit = document.activeElement?.dataset.unit;
  document.body.classList.toggle("of-text", !isPicture);
  byId("first").classList.toggle("unsigned", !isSigned);
  paint(isPicture ? "" : text, units, textLook(options));
  setChildren(byId("heatmap"), heatmap(options));
  setChildren(byId("added"), isPicture ? null : addedTokens(options));
  setChildren(byId("key"), key(words, scene, scale ?? words.largest, isSigned));
  setChildren(byId("sentence"), sentence(words.sentence));
  byId("explained").textContent = joined(words.explained);
  updateChosen();
  if (focused) byId(focused).querySelector(`[data-unit="${unit}"]`)?.focus();
}

// The tokens that the model adds to the text, each a button; many, as those of a chat template, are folded.
function addedTokens(options) {
  const look = textLook(options);
  const added = options.units.flatMap(({ start }, i) => (start === null ? [i] : []));
  if (!added.length) return null;
  const box = html("span", { class: `heat small${options.isSigned ? "" : " unsigned"}` }, added.flatMap((i) => [html("span", {
    ...look(i), text: visibleText(options.marks[i]), ...toggleAttributes(i, state.removed.includes(i), toggleUnit, i === added[0]),
  }), " "]));
  enableArrowKeys(box, "[role=button]");
  return added.length <= MOST_ADDED
    ? html("p", { class: "dim" }, "added by the model: ", box)
    : html("details", {}, html("summary", { text: `${added.length} tokens added by the model` }), box);
}

// The score of the chosen words, and the button that removes them.
function updateChosen() {
  const { explanation: { scores, scene, units, signed: isSigned }, marks, prediction } = context;
  if (!chosen.length) {
    byId("chosen").textContent = hasShapes(scene)
      ? `Click any ${prediction.noun} to remove it and see the prediction change.`
      : "Put the cursor on a word, or select several, to see the score and to remove it.";
    return;
  }
  const areRemoved = chosen.every((i) => state.removed.includes(i));
  const others = state.removed.filter((i) => !chosen.includes(i));
  const removed = areRemoved ? others : [...others, ...chosen].sort((a, b) => a - b);
  setChildren(byId("chosen"),
    html("q", { dir: "auto", text: chosen.map((i) => (i === chosen[0] ? "" : marks[i].gap) + units[i].text).join("") }),
    ` score ${scoreText(sum(chosen.map((i) => scores[i])), isSigned)}${chosen.length > 1 ? `, the sum of ${chosen.length} ${plural(prediction.noun)}` : ""} `,
    html("button", { type: "button", class: "pill", text: areRemoved ? "put back" : "remove", on: { click: () => setRemoved(removed) } }));
}

function toggleUnit(i) {
  const removed = new Set(state.removed);
  removed[removed.has(i) ? "delete" : "add"](i);
  setRemoved([...removed].sort((a, b) => a - b));
}

async function setRemoved(removed) {
  state.removed = removed;
  updateAddress();
  updateHeatmap();
  try {
    await updateRemoval();
  } catch (error) {
    showError(error);
  }
}

// The prediction without the removed units, with their score.
async function updateRemoval() {
  const { explanation, prediction } = context;
  state.removed = state.removed.filter((i) => i < explanation.units.length);
  if (!state.removed.length) {
    cancel("erase");
    predictionWithoutRemoved = null;
    setChildren(byId("removal"));
    updatePrediction();
    return;
  }
  predictionWithoutRemoved = await fetchJson("erase", requestBody({ removed: state.removed }));
  updatePrediction();
  const scoresAreShares = explanation.ledger !== null || explanation.method.name === "occlusion";
  showRemoval(byId("removal"), {
    before: prediction, now: predictionWithoutRemoved, target: explanation.target, noun: prediction.noun,
    names: state.removed.map((i) => explanation.units[i].text),
    score: scoresAreShares ? sum(state.removed.map((i) => explanation.scores[i])) : null,
    restore: () => setRemoved([]),
  });
}

function updateTab() {
  for (const name of TABS) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === state.tab));
    tab.tabIndex = name === state.tab ? 0 : -1;
  }
  const panel = byId("panel");
  if (state.tab !== panel.dataset.tab) setChildren(panel);
  panel.dataset.tab = state.tab;
  panel.setAttribute("aria-labelledby", `tab-${state.tab}`);
  isPanelOld = true;
  panelWatch.disconnect();
  panelWatch.observe(panel); // tells at once whether it is in view
}

const panelWatch = new IntersectionObserver((entries) => {
  if (!isPanelOld || !entries.at(-1).isIntersecting || !context.explanation) return;
  isPanelOld = false;
  SHOW_TAB[state.tab](byId("panel"), context);
}, { rootMargin: "100px" });

function showInput() {
  const model = context.about.models.find(({ name }) => name === state.model);
  const takesImages = model.input_kind === "image";
  byId("text-input").hidden = takesImages;
  byId("image-input").hidden = !takesImages;
  byId("text-label").textContent = model.input_label;
  setChildren(byId("examples"), model.examples.map((example, i) => (takesImages
    ? html("button", { type: "button", "aria-label": `drawn example ${i + 1}`, on: { click: () => change({ image: drawPath(example) }) } },
      svg("svg", { viewBox: "0 0 224 224", class: "stroke" }, svg("path", { d: example })))
    : html("button", { type: "button", text: example, on: { click: () => change({ text: example, pair: null }) } }))));
  byId("model").value = state.model;
  byId("method").value = state.method;
  byId("numbers").checked = state.numbers;
  showBesideMenu(context.about);
  if (!model.takes_pairs) state.pair = null;
  byId("pair-input").hidden = state.pair === null;
  byId("pair-toggle").hidden = !model.takes_pairs;
  byId("pair-toggle").textContent = state.pair === null ? "add a second text" : "remove the second text";
  byId("many").hidden = takesImages;
  showTexts();
}

// The input with which a model begins.
function example({ input_kind: kind, examples: [first = null] }) {
  return kind === "image" ? { text: "", image: first && drawPath(first) } : { text: first ?? "", image: null };
}

function setUpInput({ models }) {
  setChildren(byId("model"), models.map(({ name }) => html("option", { value: name, text: name })));
  byId("model-menu").hidden = models.length < 2;
  byId("model").addEventListener("change", (event) => {
    const model = models.find(({ name }) => name === event.target.value);
    change({ model: model.name, pair: null, ...example(model) });
  });
  setUpEditor(() => {
    clearTimeout(typingTimer);
    typingTimer = setTimeout(() => change(typedTexts()), TYPING_PAUSE);
  }, (units) => {
    chosen = units;
    updateChosen();
  });
  byId("pair-toggle").addEventListener("click", () => {
    change({ ...typedTexts(), pair: state.pair === null ? "" : null });
    byId(state.pair === null ? "pair-toggle" : "pair").focus();
  });
  listenForImages((image) => change({ image }), (file) => {
    const takesImages = !byId("image-input").hidden;
    if (!takesImages && !file.type.startsWith("image/")) openTable(context, file);
    else if (takesImages) showProblem(`"${file.name}" is not an image. Drop a PNG, JPEG, GIF, BMP, WebP or TIFF file.`);
    else showProblem(`"${file.name}" is an image, and ${state.model} reads text. Choose a model of images first.`);
  });
  byId("numbers").addEventListener("change", (event) => {
    state.numbers = event.target.checked;
    updateAddress();
  });
}

function setUpMenus({ default_method: preset, methods }) {
  setChildren(byId("method"), [preset, ...methods].map(({ name, summary }) => html("option", { value: name, text: name, title: summary })));
  const index = (event) => (event.target.value === "" ? null : Number(event.target.value));
  byId("target").addEventListener("change", (event) => change({ target: index(event) }));
  byId("against").addEventListener("change", (event) => change({ against: index(event) }));
  byId("method").addEventListener("change", (event) => change({ method: event.target.value }));
}

function setUpTabs() {
  for (const name of TABS) {
    byId(`tab-${name}`).addEventListener("click", () => {
      state.tab = name;
      stopCompare();
      updateAddress();
      updateTab();
    });
  }
  enableArrowKeys(byId("tabs"), "button");
}

function setUpDownloads() {
  for (const [name, download] of Object.entries(DOWNLOADS)) {
    byId(`download-${name}`).addEventListener("click", async () => {
      try {
        await download(context);
      } catch (error) {
        showError(error);
      }
    });
  }
  byId("copy-link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      byId("copy-link").textContent = "copied";
    } catch {
      byId("copy-link").textContent = "copy the address of this page";
    }
    setTimeout(() => { byId("copy-link").textContent = "copy link"; }, 2000);
  });
}

function showReports({ reports }) {
  byId("reports").hidden = !reports.length;
  const address = (name) => `/reports/${name.split("/").map(encodeURIComponent).join("/")}`;
  setChildren(byId("reports").querySelector("ul"), reports.map((name) => html("li", {},
    html("a", { href: address(name), target: "_blank", rel: "noopener", text: name }))));
}

// Opens a saved state; what this server does not have is left as the page begins.
async function openSession({ state: saved, table }) {
  if (!context.about.models.some(({ name }) => name === saved.model)) {
    showMessage(`This session uses the model "${saved.model}", which this server does not have.`);
    return;
  }
  for (const key of Object.keys(state)) if (key in saved) state[key] = saved[key];
  if (!TABS.includes(state.tab)) state.tab = TABS[0];
  if (state.image) showImage(state.image);
  restoreTable(context, table);
  await update();
}

async function showAddress() {
  readFragment(location.hash, context.about);
  const model = context.about.models.find(({ name }) => name === state.model);
  if (state.image) showImage(state.image);
  else if (model.input_kind === "image") state.image = example(model).image;
  await update();
}

async function start() {
  setUpTheme();
  try {
    context.about = await fetchAbout();
  } catch (error) {
    showProblem(error.message);
    return;
  }
  if (!location.hash && context.about.models[0].answers) {
    location.replace("/answer"); // what a language model is asked for first
    return;
  }
  setUpInput(context.about);
  setUpMenus(context.about);
  setUpTabs();
  setUpDownloads();
  setUpBeside(change);
  setUpTable(context);
  setUpSessions(openSession, savedTable, showMessage);
  showReports(context.about);
  byId("answers-link").hidden = !context.about.models.some(({ answers }) => answers);
  window.addEventListener("hashchange", showAddress);
  performance.mark("wherefrom-ready");
  await showAddress();
}

start();
