// Attention maps on demand: a layer and a head, the rows that look and the columns looked at.

import { ask, given_up } from "./api.js";
import { el, fill, svg } from "./dom.js";
import { question } from "./state.js";

const MOST = 64; // rows of a map that is drawn cell by cell

export async function showAttention(box, context, layer = 0, head = 0) {
  if (!box.querySelector(".map")) fill(box, el("p", { class: "dim", text: "…" }));
  try {
    draw(box, context, await ask("attention", question({ layer, head })), layer, head);
  } catch (error) {
    if (!given_up(error)) fill(box, el("p", { text: error.message }));
  }
}

function draw(box, context, found, layer, head) {
  const pick = (id, name, count, chosen, label, change) => el("label", {}, `${name} `, el("select", { id, on: { change } },
    Array.from({ length: count }, (_, i) => el("option", { value: i, text: label(i), selected: i === chosen }))));
  const layers = pick("layer", "layer", found.layers, layer, (i) => String(i + 1), () => showAttention(box, context, Number(layers.lastChild.value), 0));
  const heads = pick("head", "head", found.heads + 1, head, (i) => (i ? String(i) : "mean of all"), () => showAttention(box, context, layer, Number(heads.lastChild.value)));
  const focus = document.activeElement?.id;
  fill(box,
    el("div", { class: "line" }, layers, heads),
    el("p", { class: "dim", text: "Each row is a piece that looks, each column one that is looked at; the darker, the more. Attention says where the model looks, not what it takes from there: compare the methods." }),
    found.weights.length <= MOST ? cells(found) : painted(found));
  if (focus === "layer" || focus === "head") box.querySelector(`#${focus}`).focus();
}

function cells({ queries, keys, weights }) {
  const [size, side] = [18, 110];
  const most = Math.max(...weights.flat()) || 1;
  const label = (name, attributes) => svg("text", { ...attributes, class: "name", text: name.length > 14 ? `${name.slice(0, 13)}…` : name });
  return el("div", { class: "scroll" }, svg("svg", {
    class: "map", width: side + size * keys.length + 60, height: side + size * queries.length, role: "img",
    "aria-label": `attention map, ${queries.length} by ${keys.length}`,
  },
  keys.map((name, k) => label(name, { transform: `translate(${side + size * (k + 0.7)},${side - 6}) rotate(-60)` })),
  queries.map((name, q) => label(name, { x: side - 6, y: side + size * (q + 0.7), "text-anchor": "end" })),
  weights.flatMap((row, q) => row.map((weight, k) => svg("rect", {
    x: side + size * k, y: side + size * q, width: size - 1, height: size - 1, class: "weight",
    "fill-opacity": (0.04 + (0.96 * weight) / most).toFixed(3),
  }, svg("title", { text: `${queries[q]} → ${keys[k]}: ${weight.toFixed(3)}` }))))));
}

function painted({ weights }) {
  const canvas = el("canvas", { class: "map big", width: weights[0].length, height: weights.length, role: "img", "aria-label": "attention map" });
  const brush = canvas.getContext("2d");
  const most = Math.max(...weights.map((row) => Math.max(...row))) || 1;
  weights.forEach((row, q) => row.forEach((weight, k) => {
    brush.fillStyle = `rgba(31,119,220,${weight / most})`;
    brush.fillRect(k, q, 1, 1);
  }));
  return canvas;
}
