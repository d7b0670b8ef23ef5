// The relevance of each unit after each block as a matrix: one row for each, the output at the top.

import { fetchJson, isCancelled } from "./api.js";
import { html, layerName, plural, setChildren, signed, sum } from "./dom.js";
import { commonScale, matrix, scaleText } from "./matrix.js";
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
  const scale = commonScale(marks, profile.rows.map((row) => row.units));
  const rows = [...profile.rows].reverse().map((row) => ({
    name: html("span", { text: layerName(row.name), title: row.name }), scores: row.units, attributes: { "data-layer": row.name },
    cells: [...(hasOthers ? [[signed(row.others)]] : []), [signed(sum(row.units) + row.others)]],
  }));
  setChildren(box,
    html("p", { class: "dim", text: `Relevance by lrp, from the output (${signed(profile.output)}) down to the input; ${scaleText(scale)}. A row's sum differs from the output by the biases of the blocks above it.${input}` }),
    matrix(["after", ...(hasOthers ? ["other positions"] : []), "sum"], rows, { marks, units, scene }, scale));
}
