// The page: what a person changes becomes the state, the state becomes questions and pictures.

import { about as askAbout, ask, forget, given_up } from "./api.js";
import { showAnswer, showCheck, showTargets } from "./answer.js";
import { showAttention } from "./attention.js";
import { leaveCompare, showCompare } from "./compare.js";
import { showCurve } from "./curve.js";
import { el, fill, find, roving, seconds, signed } from "./dom.js";
import { drawn, heat } from "./heat.js";
import { showImage, watchImages } from "./images.js";
import { showLayers } from "./layers.js";
import { showLedger } from "./ledger.js";
import { saveHtml, saveJson, savePng, saveSvg } from "./save.js";
import { question, read, state, written } from "./state.js";

const TABS = { compare: showCompare, curve: showCurve, layers: showLayers, attention: showAttention };
const context = { about: null, prediction: null, explanation: null, marks: null, choose };
const opened = new Set(); // lines of the ledger
let typing = 0;
let erased = null;

function say(text, ...more) {
  fill(find("message"), text, ...more);
}

function trouble(error) {
  if (given_up(error)) return;
  find("result").classList.add("stale");
  const long = error.kind === "TooLong" && !state.truncate && state.text.length <= context.about.limits.text;
  say(error.message, long
    ? el("button", { type: "button", class: "plain", text: "explain its beginning", on: { click: () => choose({ truncate: true }) } })
    : null);
}

function choose(change) {
  const given = ["model", "text", "image", "truncate"].some((name) => name in change);
  const kept = given ? { removed: [], ...("model" in change || "truncate" in change ? {} : { truncate: false }) } : {};
  Object.assign(state, kept, "model" in change ? { target: null, against: null } : {}, change);
  if (state.target !== null && state.target === state.against) state.against = null;
  update();
}

function remember() {
  history.replaceState(null, "", written());
}

async function update() {
  remember();
  dress();
  leaveCompare();
  if (!state.image && !state.text.trim()) {
    for (const kind of ["predict", "explain", "erase", "curve", "layers", "attention"]) forget(kind);
    find("result").hidden = true;
    say(find("seeing").hidden ? "Type something, or choose an example." : "Draw something, or drop an image.");
    return;
  }
  try {
    const asked = { predicted: ask("predict", question()), explained: ask("explain", question()) };
    asked.explained.catch(() => {}); // told of below, once the prediction is there
    context.prediction = await asked.predicted;
    erased = null;
    showPrediction();
    const found = await asked.explained;
    Object.assign(context, { explanation: found.explanation, marks: found.marks, took: found.seconds });
    say([...found.notes, `${found.explanation.method.name} took ${seconds(found.seconds)}`].join(" · "));
    find("result").classList.remove("stale");
    showExplanation();
    performance.mark("wherefrom-explained");
    await check();
  } catch (error) {
    trouble(error);
  }
}

function showPrediction() {
  const { prediction } = context;
  find("result").hidden = false;
  showAnswer(find("answer"), prediction, erased ?? prediction, prediction.target, (index) => choose({ target: index }));
  showTargets(find("target"), find("against"), prediction.outputs, state, prediction.target);
}

function showExplanation() {
  showHeat();
  showLedger(find("ledger"), context.explanation, opened);
  showTab();
}

function showHeat() {
  const { explanation, marks } = context;
  const note = (i) => [signed(explanation.scores[i]), ...Object.entries(explanation.parts).map(([name, values]) => `${name} ${signed(values[i])}`)].join(" · ");
  const focus = document.activeElement?.getAttribute?.("data-unit");
  const shown = { marks, scores: explanation.scores, scene: explanation.scene, units: explanation.units };
  fill(find("heat"), heat({ ...shown, removed: state.removed, toggle, notes: note }));
  find("blue").textContent = drawn(explanation.scene) ? "blue, hatched" : "blue, underlined";
  find("hint").textContent = `click any ${context.prediction.noun} to take it out and see the answer move`;
  if (focus !== null && focus !== undefined) find("heat").querySelector(`[data-unit="${focus}"]`)?.focus();
}

async function toggle(i) {
  const gone = new Set(state.removed);
  gone[gone.has(i) ? "delete" : "add"](i);
  state.removed = [...gone].sort((a, b) => a - b);
  remember();
  showHeat();
  try {
    await check();
  } catch (error) {
    trouble(error);
  }
}

// The prediction without what was taken out, beside what the relevance foretold.
async function check() {
  const { explanation, prediction } = context;
  state.removed = state.removed.filter((i) => i < explanation.units.length);
  if (!state.removed.length) {
    forget("erase");
    erased = null;
    fill(find("check"));
    showPrediction();
    return;
  }
  erased = await ask("erase", question({ removed: state.removed }));
  showPrediction();
  const amounts = explanation.ledger !== null || explanation.method.name === "occlusion";
  const foretold = amounts ? -state.removed.reduce((sum, i) => sum + explanation.scores[i], 0) : null;
  showCheck(find("check"), {
    now: erased, before: prediction, label: explanation.target.label, foretold,
    names: state.removed.map((i) => explanation.units[i].text),
    back: () => {
      state.removed = [];
      remember();
      showHeat();
      check().catch(trouble);
    },
  });
}

function showTab() {
  for (const name of Object.keys(TABS)) {
    const chosen = name === state.tab;
    find(`tab-${name}`).setAttribute("aria-selected", String(chosen));
    find(`tab-${name}`).tabIndex = chosen || (!state.tab && name === "compare") ? 0 : -1;
  }
  const panel = find("panel");
  panel.hidden = !state.tab;
  if (state.tab !== panel.dataset.tab) fill(panel);
  panel.dataset.tab = state.tab;
  if (state.tab) {
    panel.setAttribute("aria-labelledby", `tab-${state.tab}`);
    TABS[state.tab](panel, context);
  }
}

function dress() {
  const model = context.about.models.find((each) => each.name === state.model);
  const sees = model.takes === "image";
  find("writing").hidden = sees;
  find("seeing").hidden = !sees;
  find("prompt").textContent = model.prompt;
  fill(find("examples"), model.examples.map((text) => el("button", { type: "button", text, on: { click: () => choose({ text }) } })));
  find("model").value = state.model;
  find("method").value = state.method;
  if (find("text").value !== state.text) find("text").value = state.text;
  grow();
}

function grow() {
  const text = find("text");
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight + 2, 260)}px`;
}

function themes() {
  const kinds = ["auto", "light", "dark"];
  const wear = (kind) => {
    document.documentElement.dataset.theme = kind;
    find("theme").textContent = `theme: ${kind}`;
    localStorage.setItem("wherefrom-theme", kind);
  };
  const stored = localStorage.getItem("wherefrom-theme");
  wear(kinds.includes(stored) ? stored : "auto");
  find("theme").addEventListener("click", () => wear(kinds[(kinds.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
}

function wire() {
  const { about } = context;
  fill(find("model"), about.models.map((each) => el("option", { value: each.name, text: each.name })));
  find("models").hidden = about.models.length < 2;
  fill(find("method"), about.methods.map((each) => el("option", { value: each.name, text: each.name, title: each.sentence })));
  find("model").addEventListener("change", (event) => {
    const { examples } = about.models.find((each) => each.name === event.target.value);
    choose({ model: event.target.value, image: null, text: examples[0] ?? "" });
  });
  find("text").addEventListener("input", () => {
    grow();
    clearTimeout(typing);
    typing = setTimeout(() => choose({ text: find("text").value }), 200);
  });
  const index = (event) => (event.target.value === "" ? null : Number(event.target.value));
  find("target").addEventListener("change", (event) => choose({ target: index(event) }));
  find("against").addEventListener("change", (event) => choose({ against: index(event) }));
  find("method").addEventListener("change", (event) => choose({ method: event.target.value }));
  for (const name of Object.keys(TABS)) {
    find(`tab-${name}`).addEventListener("click", () => {
      state.tab = state.tab === name ? "" : name;
      leaveCompare();
      remember();
      showTab();
    });
  }
  roving(find("tabs"), "button");
  watchImages((image) => choose({ image }));
  const saving = { json: saveJson, html: saveHtml, svg: saveSvg, png: savePng };
  for (const [name, save] of Object.entries(saving)) {
    find(`save-${name}`).addEventListener("click", async () => {
      try {
        await save(context);
      } catch (error) {
        trouble(error);
      }
    });
  }
  find("link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      find("link").textContent = "copied";
    } catch {
      find("link").textContent = "the address bar holds it";
    }
    setTimeout(() => { find("link").textContent = "copy link"; }, 2000);
  });
  window.addEventListener("hashchange", () => {
    read(location.hash, about);
    if (state.image) showImage(state.image);
    update();
  });
  find("reports").hidden = !about.reports.length;
  fill(find("reports").querySelector("ul"), about.reports.map((name) => el("li", {},
    el("a", { href: `/reports/${name.split("/").map(encodeURIComponent).join("/")}`, target: "_blank", rel: "noopener", text: name }))));
}

async function start() {
  themes();
  try {
    context.about = await askAbout();
  } catch (error) {
    say(error.message);
    return;
  }
  wire();
  performance.mark("wherefrom-ready");
  read(location.hash, context.about);
  if (state.image) showImage(state.image);
  await update();
}

start();
