// Many texts: predictions as rows that are sorted, filtered and counted; a click explains a text.

import { cancel, fetchJson, fetchLines, isCancelled } from "./api.js";
import { readTable } from "./csv.js";
import { byId, html, percent, setChildren } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { requestBody, state } from "./state.js";

const SNIPPET = 12; // tokens on each side of the strongest
const LINES = -2; // in the place of a column of texts: the lines are not cut into cells
const NO_FILTER = { label: "", least: 0, most: 100, disagrees: false, word: "" };
const table = { content: "", columns: null, texts: [], pairs: null, labels: null, rows: [], others: null, model: "", sort: ["row", false], filter: { ...NO_FILTER }, open: null, note: "" };
const explained = new Map(); // row → its explanation, for the tinted text
let tinting = Promise.resolve();

export function setUpTable(context) {
  byId("table-run").addEventListener("click", () => read(context, byId("table-text").value));
  byId("table-file").addEventListener("change", (event) => openTable(context, event.target.files[0]));
}

// Reads a dropped or chosen file as a table.
export async function openTable(context, file) {
  if (!file) return;
  await read(context, await file.text());
}

// What a session keeps of the table: its content, the chosen columns, order and filters.
export function savedTable() {
  const { content, columns, sort, filter } = table;
  return table.rows.length ? { content, columns, sort, filter } : null;
}

export function restoreTable(context, saved) {
  if (saved?.content) read(context, saved.content, saved);
}

const section = () => byId("many").firstElementChild;

async function read(context, content, saved = null) {
  section().open = true;
  byId("table-text").value = content;
  const { names, rows, columns, isSure } = readTable(content, context.about.columns);
  Object.assign(table, { content, columns: saved?.columns ?? columns, sort: saved?.sort ?? ["row", false], filter: { ...NO_FILTER, ...saved?.filter } });
  for (const id of ["table-columns", "table-filters", "table"]) byId(id).hidden = true;
  setChildren(byId("table-summary"));
  stopTable();
  if (names.length > 1) ask(context, names, rows, isSure);
  if (table.columns.text !== -1) await run(context, names, rows);
  else byId("table-status").textContent = "Which column is the text?";
}

// Menus of the columns. A table whose text is not known by its name waits for an answer.
function ask(context, names, rows, isSure) {
  const menu = (key, label) => html("label", {}, `${label} `, html("select", {
    "data-column": key, on: { change: (event) => { table.columns[key] = Number(event.target.value); } },
  }, html("option", { value: -1, text: key === "text" ? "choose a column" : "none", disabled: key === "text" }),
  names.map((name, i) => html("option", { value: i, text: name || `column ${i + 1}`, selected: i === table.columns[key] })),
  key === "text" && !isSure ? html("option", { value: LINES, text: "none: each line is a text" }) : null));
  const menus = [menu("text", "text"), menu("second", "second text"), menu("label", "label")];
  if (table.columns.text < 0) menus[0].lastElementChild.value = "-1";
  setChildren(byId("table-columns"), menus, html("button", {
    type: "button", class: "pill", text: isSure ? "predict with these columns" : "predict all", on: { click: () => { if (table.columns.text !== -1) run(context, names, rows); } },
  }));
  byId("table-columns").hidden = false;
}

async function run(context, names, allRows) {
  const areLines = table.columns.text === LINES;
  const { text, second, label } = areLines ? { text: 0, second: -1, label: -1 } : table.columns;
  const rows = (areLines ? table.content.trim().split(/\r?\n/).map((line) => [line]) : allRows).filter((row) => row[text]?.trim());
  const status = byId("table-status");
  if (!rows.length) {
    status.textContent = "There is no text. Paste one per line, or a CSV with a header.";
    return;
  }
  const limit = context.about.limits.table_texts;
  const column = (at) => (at < 0 ? null : rows.slice(0, limit).map((row) => (row[at] ?? "").trim()));
  const uneven = names.length && !areLines ? rows.filter((row) => row.length !== names.length).length : 0;
  const { model, beside } = state;
  explained.clear();
  Object.assign(table, { texts: rows.slice(0, limit).map((row) => row[text]), pairs: column(second), labels: column(label), rows: [], others: beside ? [] : null, model, open: null });
  table.note = [
    rows.length > limit ? ` The first ${limit} of ${rows.length} are shown; for more, use the command line.` : "",
    uneven ? ` ${uneven} of the rows ${uneven === 1 ? "has" : "have"} more or fewer cells than the header: put texts with separators in quotes.` : "",
  ].join("");
  try {
    await predict(model, table.rows, "table", () => show(context, `${table.rows.length} of ${table.texts.length} texts.`));
    if (beside) await predict(beside, table.others, "table beside", () => show(context, `${beside}: ${table.others.length} of ${table.texts.length} texts.`));
  } catch (error) {
    if (!isCancelled(error)) status.textContent = error.message;
  }
}

const stopTable = () => ["table", "table beside", "table tint"].forEach(cancel);

async function predict(model, rows, slot, progress) {
  for await (const row of fetchLines("table", { model, text: "", texts: table.texts, text_pairs: table.pairs }, slot)) {
    rows.push(row);
    if (rows.length % 50 === 0 || rows.length === table.texts.length) progress();
  }
}

const same = (a, b) => a.toLowerCase() === b.toLowerCase();
const probabilityOf = (row, label) => row.outputs?.find((output) => same(output.label, label))?.probability ?? null;

// The class that the label of a row names, by its name or its number.
function givenLabel({ row, outputs }) {
  const label = table.labels?.[row];
  if (!label || !outputs) return null;
  return outputs.find((output) => same(output.label, label))?.label ?? outputs.find(({ index }) => String(index) === label)?.label ?? label;
}

// Whether the label or the other model names another class.
function disagrees(row) {
  const other = table.others?.[row.row]?.label ?? givenLabel(row);
  return Boolean(other && row.label && !same(other, row.label));
}

// How far the label or the other model is from the prediction, from 0 to 1; null if unknown.
function disagreement(row) {
  if (row.error) return null;
  const other = table.others?.[row.row];
  if (other && !other.error) {
    const shared = row.outputs.filter(({ label, probability }) => probability !== null && probabilityOf(other, label) !== null);
    return shared.length ? shared.reduce((total, { label, probability }) => total + Math.abs(probability - probabilityOf(other, label)), 0) / 2 : null;
  }
  const label = givenLabel(row);
  const chance = label === null ? null : probabilityOf(row, label);
  return chance === null ? null : 1 - chance;
}

function show(context, progress) {
  const against = table.others ? "between the two models: half the sum of the differences of their probabilities" : "with the label: 1 − its probability";
  byId("table-status").textContent = `${progress}${table.note}${table.labels || table.others ? ` Disagreement ${against}.` : ""}`;
  setChildren(byId("table-summary"), summary(context));
  showFilters(context);
  draw(context);
}

// Accuracy and confusion matrix, where labels are known; a click on a count shows its rows.
function summary(context) {
  const pairs = table.rows.map((row) => [givenLabel(row), row.label]).filter(([given, label]) => given && label);
  if (!pairs.length) return null;
  const right = pairs.filter(([given, label]) => same(given, label)).length;
  const names = [...new Set(pairs.flat())].sort();
  const count = (given, label) => pairs.filter((pair) => pair[0] === given && pair[1] === label).length;
  const most = Math.max(...names.flatMap((given) => names.map((label) => count(given, label))));
  return [
    html("p", {}, "accuracy ", html("strong", { id: "accuracy", text: percent(right / pairs.length) }), `: ${right} of ${pairs.length} texts with a label`),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Confusion matrix" }, html("table", { class: "confusion" },
      html("caption", { class: "dim", text: "rows: the label, columns: the class that the model says" }),
      html("tr", {}, html("td", {}), names.map((name) => html("th", { class: "num", scope: "col", dir: "auto", text: name }))),
      names.map((given) => html("tr", {}, html("th", { scope: "row", dir: "auto", text: given }), names.map((label) => {
        const number = count(given, label);
        return html("td", { class: "num", style: { background: `rgba(var(--strength),${(0.4 * number / most).toFixed(2)})` } }, number
          ? html("button", { type: "button", class: "text-button", text: String(number), "data-given": given, "data-said": label,
            "aria-label": `${number} texts with the label ${given}, predicted ${label}`, on: { click: () => filterBy(context, { label, given }) } })
          : "0");
      }))))),
  ];
}

function filterBy(context, changes) {
  Object.assign(table.filter, NO_FILTER, changes);
  showFilters(context);
  draw(context);
}

function showFilters(context) {
  const box = byId("table-filters");
  if (box.contains(document.activeElement)) return; // it is in use
  const { filter } = table;
  const set = (key, value) => { filter[key] = value; draw(context); };
  const field = (name, attributes, key, valueOf) => html("label", {}, `${name} `, html("input", { ...attributes, "data-filter": key, on: { input: ({ target }) => set(key, valueOf(target)) } }));
  const number = ({ value, min }) => (value === "" ? Number(min) : Number(value));
  const labels = [...new Set(table.rows.map(({ label }) => label).filter(Boolean))].sort();
  const classes = html("select", { "data-filter": "label", on: { change: ({ target }) => { delete filter.given; set("label", target.value); } } },
    html("option", { value: "", text: "any class" }), labels.map((label) => html("option", { value: label, text: label, selected: label === filter.label })));
  const disagreeing = table.labels || table.others ? field("disagrees", { type: "checkbox", checked: filter.disagrees }, "disagrees", ({ checked }) => checked) : null;
  setChildren(box, html("label", {}, "class ", classes),
    html("span", {}, field("confidence from", { type: "number", min: 0, max: 100, value: filter.least }, "least", number), " ",
      field("to", { type: "number", min: 0, max: 100, value: filter.most }, "most", ({ value }) => (value === "" ? 100 : Number(value))), "\u00a0%"),
    disagreeing, field("contains", { type: "search", value: filter.word }, "word", ({ value }) => value),
    html("button", { type: "button", class: "pill", text: "all rows", on: { click: () => { document.activeElement.blur(); delete filter.given; filterBy(context, {}); } } }),
    html("span", { id: "table-count", class: "dim", role: "status" }));
  box.hidden = false;
}

function passes(row) {
  const { label, given, least, most, disagrees: mustDisagree, word } = table.filter;
  const chance = row.probability === null || row.probability === undefined ? null : 100 * row.probability;
  return (!label || row.label === label) && (!given || givenLabel(row) === given) && (!mustDisagree || disagrees(row))
    && (chance === null ? least <= 0 : chance >= least && (chance <= most || most >= 100))
    && `${table.texts[row.row]} ${table.pairs?.[row.row] ?? ""}`.toLowerCase().includes(word.trim().toLowerCase());
}

function draw(context) {
  const columns = [["row", "#"], ["text", "text"], ...(table.pairs ? [["pair", "second text"]] : []), ["label", "class"], ["probability", "confidence"]];
  if (table.labels) columns.push(["given", "label"]);
  if (table.labels || table.others) columns.push(["disagreement", "disagreement"]);
  const rows = table.rows.filter(passes).map((row) => ({ ...row, text: table.texts[row.row], pair: table.pairs?.[row.row] ?? null, given: table.labels?.[row.row] ?? "", disagreement: disagreement(row) }));
  const [by, descending] = table.sort;
  rows.sort((a, b) => {
    const [x, y] = [a[by] ?? "", b[by] ?? ""];
    const order = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y;
    return descending ? -order : order;
  });
  if (byId("table-count")) byId("table-count").textContent = `${rows.length} of ${table.rows.length} rows`;
  const sortBy = (key) => {
    table.sort = [key, table.sort[0] === key ? !table.sort[1] : ["probability", "disagreement"].includes(key)];
    draw(context);
  };
  const number = (value, name) => html("td", { class: "num", "data-head": name }, value === null ? "–" : percent(value),
    value === null ? null : html("span", { class: "spark" }, html("i", { style: { width: `${100 * value}%` } })));
  const open = (row) => {
    table.open = row.row;
    for (const line of byId("table").querySelectorAll("tbody tr")) showText(Number(line.dataset.row), line);
    context.change({ model: table.model, text: row.text, pair: row.pair, ...(state.model === table.model ? {} : { target: null }) });
  };
  const focused = document.activeElement?.dataset?.sort;
  setChildren(byId("table"), html("table", {},
    html("thead", {}, html("tr", {}, columns.map(([key, text]) => html("th", {
      class: ["probability", "disagreement"].includes(key) ? "num" : "", scope: "col",
      "aria-sort": key !== by ? "none" : descending ? "descending" : "ascending",
    }, html("button", { type: "button", class: "text-button", "data-sort": key, text, on: { click: () => sortBy(key) } }))))),
    html("tbody", {}, rows.map((row) => html("tr", { "data-row": row.row }, columns.map(([key, name]) => {
      if (key === "row") return html("td", { class: "dim", text: String(row.row + 1) });
      if (key === "text") return html("td", { class: "text" }, html("button", { type: "button", class: "text-button", dir: "auto", title: "explain this text", on: { click: () => open(row) } }));
      if (key === "pair") return html("td", { class: "text", dir: "auto", text: row.pair });
      if (row.error && key === "label") return html("td", { class: "dim", text: row.error });
      if (key === "label" || key === "given") return html("td", { text: row[key] ?? "", "data-head": name });
      return number(row[key] ?? null, name);
    }))))));
  byId("table").hidden = false;
  if (focused) byId("table").querySelector(`[data-sort="${focused}"]`)?.focus();
  rowWatch.disconnect();
  for (const line of byId("table").querySelectorAll("tbody tr")) {
    showText(Number(line.dataset.row), line);
    rowWatch.observe(line);
  }
}

// Rows are explained one after another when they come into view, and tinted.
const rowWatch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    const row = Number(target.dataset.row);
    tinting = tinting.then(() => tint(row, target));
  }
}, { rootMargin: "100px" });

async function tint(row, line) {
  if (!line.isConnected || explained.has(row) || table.rows[row]?.error || table.rows.length < table.texts.length) return;
  const body = { ...requestBody(), model: table.model, text: table.texts[row], text_pair: table.pairs?.[row] || null, image: undefined, target: null, against: null };
  try {
    explained.set(row, await fetchJson("explain", body, "table tint"));
    showText(row, line);
  } catch (error) {
    if (!isCancelled(error)) explained.set(row, null); // its own message stands where it is opened
  }
}

// The text of a row: tinted once it is explained, around its strongest token; all of it in the row that is open.
function showText(row, line) {
  const button = line.querySelector(".text button");
  const isOpen = row === table.open;
  line.setAttribute("aria-current", String(isOpen));
  const answer = explained.get(row);
  if (!answer) {
    button.textContent = table.texts[row];
    return;
  }
  const { marks, explanation: { scores, signed: isSigned, units } } = answer;
  const places = [...units.keys()].filter((i) => units[i].start !== null && units[i].field !== "second");
  const best = places.reduce((a, b) => (Math.abs(scores[b]) > Math.abs(scores[a]) ? b : a), places[0] ?? 0);
  const shown = isOpen || places.length <= 2 * SNIPPET ? places : places.filter((i) => Math.abs(i - best) <= SNIPPET);
  const scale = Math.max(...places.map((i) => Math.abs(scores[i])), 0);
  setChildren(button, shown[0] > places[0] ? "… " : null,
    heatmap({ marks: shown.map((i) => marks[i]), scores: shown.map((i) => scores[i]), units: shown.map((i) => units[i]), isSigned, scale, small: true }),
    shown.at(-1) < places.at(-1) ? " …" : null);
}
