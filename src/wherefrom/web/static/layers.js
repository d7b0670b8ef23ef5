// Where relevance is after each block: a row for each, the output at the top.

import { ask, given_up } from "./api.js";
import { el, fill, signed } from "./dom.js";
import { heat } from "./heat.js";
import { question } from "./state.js";

export async function showLayers(box, context) {
  fill(box, el("p", { class: "dim", text: "…" }));
  try {
    draw(box, context, await ask("layers", question()));
  } catch (error) {
    if (!given_up(error)) fill(box, el("p", { text: error.message }));
  }
}

function draw(box, { explanation, marks }, found) {
  const sum = (row) => row.units.reduce((total, value) => total + value, row.others);
  const some = found.rows.some((row) => row.others !== 0);
  const rows = [...found.rows].reverse().map((row) => el("tr", { "data-layer": row.name },
    el("td", { text: short(row.name), title: row.name }),
    el("td", {}, heat({ marks, scores: row.units, scene: explanation.scene, units: explanation.units, small: true })),
    some ? el("td", { class: "num", text: signed(row.others) }) : null,
    el("td", { class: "num", text: signed(sum(row)) })));
  fill(box,
    el("p", { class: "dim", text: `From the output, ${signed(found.output)}, down to the input, by lrp. What a row's sum lacks are the biases of the blocks above it.` }),
    el("table", { class: "rows" },
      el("thead", {}, el("tr", {}, ["after", "where relevance is", ...(some ? ["other places"] : []), "sum"].map((name, i) => el("th", { text: name, class: i > 1 ? "num" : "" })))),
      el("tbody", {}, rows)));
}

const short = (name) => (/\d+$/.test(name) ? `block ${name.match(/\d+$/)[0]}` : name);
