// The relevance of each unit after each block: one row for each, the output at the top.

import { fetchJson, isCancelled } from "./api.js";
import { html, plural, setChildren, signed, sum } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { requestBody } from "./state.js";

export async function showLayers(box, context) {
  setChildren(box, html("p", { class: "dim", text: "…" }));
  try {
    draw(box, context, await fetchJson("layers", requestBody()));
  } catch (error) {
    if (!isCancelled(error)) setChildren(box, html("p", { text: error.message }));
  }
}

function draw(box, { explanation: { scene, units, parts, ledger }, marks, prediction }, profile) {
  const isShared = ledger?.lines.some(({ kind }) => ["root", "position", "type"].includes(kind) && !(kind in parts));
  const input = isShared ? ` The row of the input contains only what its ${plural(prediction.noun)} add; the reference, positions and types are lines of the ledger.` : "";
  const hasOthers = profile.rows.some((row) => row.others !== 0);
  const columns = ["after", "relevance", ...(hasOthers ? ["other positions"] : []), "sum"];
  const rows = [...profile.rows].reverse().map((row) => html("tr", { "data-layer": row.name },
    html("td", { text: shortName(row.name), title: row.name }),
    html("td", { class: "map" }, heatmap({ marks, scores: row.units, scene, units, small: true })),
    hasOthers ? html("td", { class: "num", text: signed(row.others) }) : null,
    html("td", { class: "num", text: signed(sum(row.units) + row.others) })));
  setChildren(box,
    html("p", { class: "dim", text: `Relevance by lrp, from the output (${signed(profile.output)}) down to the input. A row's sum differs from the output by the biases of the blocks above it.${input}` }),
    html("table", { class: "heatmap-rows" },
      html("thead", {}, html("tr", {}, columns.map((name, i) => html("th", { text: name, class: i > 1 ? "num" : i ? "map" : "" })))),
      html("tbody", {}, rows)));
}

// counted from 1, as the menu of the attention maps does
const shortName = (name) => (/\d+$/.test(name) ? `layer ${Number(name.match(/\d+$/)[0]) + 1}` : name);
