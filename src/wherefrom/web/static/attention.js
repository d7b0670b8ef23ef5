// The attention map of one layer and head.

import { fetchJson, isCancelled } from "./api.js";
import { html, setChildren, svg } from "./dom.js";
import { requestBody } from "./state.js";

const MAX_CELLS = 64; // rows of a map that is drawn as one element for each weight

export async function showAttention(box, context, layer = 0, head = 0) {
  if (!box.querySelector(".attention-map")) setChildren(box, html("p", { class: "dim", text: "…" }));
  try {
    draw(box, context, await fetchJson("attention", requestBody({ layer, head })), layer, head);
  } catch (error) {
    if (!isCancelled(error)) setChildren(box, html("p", { text: error.message }));
  }
}

function draw(box, context, attention, layer, head) {
  const menu = (name, count, selected, label, change) => html("label", {}, `${name} `, html("select", { id: name, on: { change } },
    Array.from({ length: count }, (_, i) => html("option", { value: i, text: label(i), selected: i === selected }))));
  const layerMenu = menu("layer", attention.layers, layer, (i) => String(i + 1),
    (event) => showAttention(box, context, Number(event.target.value), 0));
  const headMenu = menu("head", attention.heads + 1, head, (i) => (i ? String(i) : "mean of all"),
    (event) => showAttention(box, context, layer, Number(event.target.value)));
  const focused = document.activeElement?.id;
  setChildren(box,
    html("div", { class: "controls" }, layerMenu, headMenu),
    html("p", { class: "dim", text: "Rows are queries, columns are keys; the darker, the larger the weight. A weight shows where the model attends, not what that contributes to the output: for that, compare the methods." }),
    attention.weights.length <= MAX_CELLS ? cellMap(attention) : canvasMap(attention));
  if (focused === "layer" || focused === "head") box.querySelector(`#${focused}`).focus();
}

function cellMap({ queries, keys, weights }) {
  const [cell, margin] = [18, 110];
  const largest = Math.max(...weights.flat()) || 1;
  const label = (name, attributes) => svg("text", { ...attributes, class: "name", text: name.length > 14 ? `${name.slice(0, 13)}…` : name });
  return html("div", { class: "scroll" }, svg("svg", {
    class: "attention-map", width: margin + cell * keys.length + 60, height: margin + cell * queries.length, role: "img",
    "aria-label": `attention map, ${queries.length} by ${keys.length}`,
  },
  keys.map((name, k) => label(name, { transform: `translate(${margin + cell * (k + 0.7)},${margin - 6}) rotate(-60)` })),
  queries.map((name, q) => label(name, { x: margin - 6, y: margin + cell * (q + 0.7), "text-anchor": "end" })),
  weights.flatMap((row, q) => row.map((weight, k) => svg("rect", {
    x: margin + cell * k, y: margin + cell * q, width: cell - 1, height: cell - 1, class: "weight",
    "fill-opacity": (0.04 + (0.96 * weight) / largest).toFixed(3),
  }, svg("title", { text: `${queries[q]} → ${keys[k]}: ${weight.toFixed(3)}` }))))));
}

function canvasMap({ weights }) {
  const canvas = html("canvas", { class: "attention-map scaled", width: weights[0].length, height: weights.length, role: "img", "aria-label": "attention map" });
  const drawing = canvas.getContext("2d");
  const largest = Math.max(...weights.map((row) => Math.max(...row))) || 1;
  weights.forEach((row, q) => row.forEach((weight, k) => {
    drawing.fillStyle = `rgba(31,119,220,${weight / largest})`;
    drawing.fillRect(k, q, 1, 1);
  }));
  return canvas;
}
