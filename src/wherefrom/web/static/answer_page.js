// The page of answers: a prompt is sent, the answer grows, and any part of it can be chosen.

import { cancel, fetchAbout, fetchLines, isCancelled } from "./api.js";
import { byId, html, setChildren } from "./dom.js";
import { setUpTheme } from "./theme.js";

const showMessage = (text) => { byId("message").textContent = text; };
const passages = () => [...byId("passages").querySelectorAll("textarea")].map(({ value }) => value).filter((text) => text.trim());

function addPassage(text = "") {
  const number = byId("passages").children.length + 1;
  const box = html("textarea", { rows: 2, dir: "auto", spellcheck: "false", "aria-label": `Passage ${number}` });
  box.value = text;
  const row = html("li", {}, html("div", { class: "row" }, box, html("button", {
    type: "button", class: "pill", text: "×", title: "remove this passage", "aria-label": `Remove passage ${number}`,
    on: { click: () => { row.remove(); byId("add").focus(); } },
  })));
  byId("passages").append(row);
  return box;
}

function toFragment() {
  const fields = new URLSearchParams({ model: byId("model").value, question: byId("question").value });
  for (const text of passages()) fields.append("passage", text);
  if (byId("own").value.trim()) fields.set("answer", byId("own").value);
  return `#${fields}`;
}

function readFragment({ example }) {
  const fields = new URLSearchParams(location.hash.replace(/^#/, ""));
  const names = [...byId("model").options].map(({ value }) => value);
  if (names.includes(fields.get("model"))) byId("model").value = fields.get("model");
  byId("question").value = fields.get("question") ?? example.question;
  setChildren(byId("passages"));
  for (const text of fields.has("question") ? fields.getAll("passage") : example.passages) addPassage(text);
  byId("own").value = fields.get("answer") ?? "";
  if (byId("own").value) byId("own").parentElement.open = true;
}

function setRunning(running) {
  byId("stop").hidden = !running;
  byId("run").disabled = running;
}

async function ask() {
  history.replaceState(null, "", toFragment());
  const body = {
    model: byId("model").value, text: byId("question").value, passages: passages(), method: byId("method").value,
    answer: byId("own").value.trim() ? byId("own").value : null, max_new_tokens: Math.max(1, Math.round(Number(byId("count").value)) || 1),
  };
  setRunning(true);
  byId("result").hidden = true;
  byId("view").hidden = true;
  byId("growing").hidden = false;
  byId("growing").textContent = "";
  showMessage(body.answer === null ? "reading the prompt …" : "reading prompt and answer …");
  try {
    for await (const row of fetchLines("answer", body)) show(row);
    performance.mark("wherefrom-answered");
  } catch (error) {
    showMessage(isCancelled(error) ? "stopped." : error.message);
  }
  setRunning(false);
}

function show(row) {
  if (row.error) showMessage(row.error);
  if (row.text !== undefined) {
    byId("result").hidden = false;
    byId("growing").textContent = row.text;
    showMessage("answering …");
  }
  if (row.explained) showMessage(`explaining: ${row.explained} of ${row.of} tokens`);
  if (row.answer) {
    byId("growing").hidden = true;
    byId("view").hidden = false;
    window.drawAnswer(row.answer);
    // the answer is what to see now: the prompt is in its parts
    byId("prompt").open = false;
    byId("prompt").firstElementChild.textContent = `Prompt: ${byId("question").value.trim()} Change it`;
    const cut = row.finished === false ? ["the answer reached the token limit"] : [];
    showMessage([...row.warnings, ...cut, "click a word of the answer, or drag over several"].join(" · "));
  }
}

async function start() {
  setUpTheme();
  let about;
  try {
    about = await fetchAbout();
  } catch (error) {
    showMessage(error.message);
    return;
  }
  const models = about.models.filter(({ answers }) => answers);
  setChildren(byId("model"), models.map(({ name }) => html("option", { value: name, text: name })));
  byId("model-menu").hidden = models.length < 2;
  byId("predictions-link").href = `/#model=${encodeURIComponent(about.models[0].name)}`; // without it, a language model leads back here
  setChildren(byId("method"), [about.default_method, ...about.methods].map(({ name, summary }) => html("option", { value: name, text: name, title: summary })));
  byId("method").value = "auto";
  byId("count").max = about.limits.answer_tokens;
  byId("add").addEventListener("click", () => addPassage().focus());
  byId("stop").addEventListener("click", () => cancel("answer"));
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  window.addEventListener("hashchange", () => readFragment(about));
  readFragment(about);
  if (!models.length) {
    byId("run").disabled = true;
    showMessage("This server has no language model. Start it with one: wherefrom serve --model smollm2");
  }
  performance.mark("wherefrom-ready");
  if (models.length && !location.hash) ask(); // a newcomer sees the example explained
}

start();
