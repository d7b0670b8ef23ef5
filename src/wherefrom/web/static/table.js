// Many texts: predictions as rows that sort by class, confidence and disagreement, and open above.

import { cancel, fetchLines, isCancelled } from "./api.js";
import { readTable } from "./csv.js";
import { byId, html, percent, setChildren } from "./dom.js";
import { state } from "./state.js";

const table = { texts: [], pairs: null, labels: null, rows: [], others: null, sort: ["row", false] };

export function setUpTable(context) {
  byId("table-run").addEventListener("click", () => run(context, byId("table-text").value));
  byId("table-file").addEventListener("change", (event) => openTable(context, event.target.files[0]));
}

// Reads a dropped or chosen file as a table.
export async function openTable(context, file) {
  if (!file) return;
  byId("many").open = true;
  const content = await file.text();
  byId("table-text").value = content;
  await run(context, content);
}

async function run(context, content) {
  const { texts, pairs, labels, uneven } = readTable(content, context.about.columns);
  const status = byId("table-status");
  if (!texts.length) {
    status.textContent = "There is no text. Paste one per line, or a CSV with a column named text.";
    return;
  }
  const limit = context.about.limits.table_texts;
  Object.assign(table, { texts: texts.slice(0, limit), pairs: pairs?.slice(0, limit) ?? null, labels, rows: [], others: state.beside ? [] : null, sort: ["row", false] });
  const note = [
    texts.length > limit ? ` The first ${limit} of ${texts.length} are shown; for more, use the command line.` : "",
    uneven ? ` ${uneven} of the rows ${uneven === 1 ? "has" : "have"} more or fewer cells than the header: put texts with separators in quotes.` : "",
  ].join("");
  const { model, beside } = state;
  try {
    await predict(model, table.rows, "table", () => draw(context, `${table.rows.length} of ${table.texts.length} texts.${note}`));
    if (beside) await predict(beside, table.others, "table beside", () => draw(context, `${beside}: ${table.others.length} of ${table.texts.length} texts.${note}`));
  } catch (error) {
    if (!isCancelled(error)) status.textContent = error.message;
  }
}

export const stopTable = () => ["table", "table beside"].forEach(cancel);

async function predict(model, rows, slot, progress) {
  for await (const row of fetchLines("table", { model, text: "", texts: table.texts, text_pairs: table.pairs }, slot)) {
    rows.push(row);
    if (rows.length % 10 === 0 || rows.length === table.texts.length) progress();
  }
}

const probabilityOf = (row, label) => row.outputs?.find((output) => output.label.toLowerCase() === label.toLowerCase())?.probability ?? null;

// How far the label or the other model is from the prediction, from 0 to 1; null if unknown.
function disagreement(row) {
  if (row.error) return null;
  const other = table.others?.[row.row];
  if (other && !other.error) {
    const shared = row.outputs.filter(({ label, probability }) => probability !== null && probabilityOf(other, label) !== null);
    return shared.length ? shared.reduce((total, { label, probability }) => total + Math.abs(probability - probabilityOf(other, label)), 0) / 2 : null;
  }
  const label = table.labels?.[row.row];
  const chance = label === undefined ? null : probabilityOf(row, label) ?? probabilityOf(row, row.outputs[Number(label)]?.label ?? "");
  return chance === null ? null : 1 - chance;
}

function draw(context, note) {
  const against = table.others ? "between the two models: half the sum of the differences of their probabilities" : "with the label: 1 − its probability";
  byId("table-status").textContent = table.labels || table.others ? `${note} Disagreement ${against}.` : note;
  const columns = [["row", "#"], ["text", "text"], ...(table.pairs ? [["pair", "second text"]] : []), ["label", "class"], ["probability", "confidence"]];
  if (table.labels) columns.push(["given", "label"]);
  if (table.labels || table.others) columns.push(["disagreement", "disagreement"]);
  const rows = table.rows.map((row) => ({ ...row, text: table.texts[row.row], pair: table.pairs?.[row.row] ?? null, given: table.labels?.[row.row] ?? "", disagreement: disagreement(row) }));
  const [by, descending] = table.sort;
  rows.sort((a, b) => {
    const [x, y] = [a[by] ?? "", b[by] ?? ""];
    const order = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y;
    return descending ? -order : order;
  });
  const sortBy = (key) => {
    table.sort = [key, table.sort[0] === key ? !table.sort[1] : ["probability", "disagreement"].includes(key)];
    draw(context, note);
  };
  const number = (value, name) => html("td", { class: "num", "data-head": name }, value === null ? "–" : percent(value),
    value === null ? null : html("span", { class: "spark" }, html("i", { style: { width: `${100 * value}%` } })));
  const open = (row) => html("button", { type: "button", class: "text-button", dir: "auto", text: row.text, title: "explain this text above", on: { click: () => context.change({ text: row.text, pair: row.pair }) } });
  setChildren(byId("table"), html("table", {},
    html("thead", {}, html("tr", {}, columns.map(([key, text]) => html("th", {
      class: ["probability", "disagreement"].includes(key) ? "num" : "",
      "aria-sort": key !== by ? "none" : descending ? "descending" : "ascending",
    }, html("button", { type: "button", class: "text-button", "data-sort": key, text, on: { click: () => sortBy(key) } }))))),
    html("tbody", {}, rows.map((row) => html("tr", { "data-row": row.row }, columns.map(([key, name]) => {
      if (key === "row") return html("td", { class: "dim", text: String(row.row + 1) });
      if (key === "text") return html("td", { class: "text" }, open(row));
      if (key === "pair") return html("td", { class: "text", dir: "auto", text: row.pair });
      if (row.error && key === "label") return html("td", { class: "dim", text: row.error });
      if (key === "label" || key === "given") return html("td", { text: row[key] ?? "", "data-head": name });
      return number(row[key] ?? null, name);
    }))))));
}
