// Attention: the map of one head, the heads of a layer as lines between tokens, all heads of the
// model at a glance, and for images the patches that a clicked patch attends to.

import { fetchJson, isCancelled } from "./api.js";
import { html, setChildren, svg } from "./dom.js";
import { hasShapes, sceneImage, unitShapes } from "./heatmap.js";
import { requestBody } from "./state.js";

const MAX_CELLS = 64; // rows of a map that is drawn as one element for each weight
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8860b", "#7f3c8d"];
const LIGHT = new Set(["#cc79a7", "#e69f00", "#56b4e9", "#b8860b"]); // black is easier to read on these than white
const WEIGHTS = "A weight shows where the model attends, not what this contributes to the output; the methods measure that.";
const view = { name: "map", layer: 1, head: 0, hidden: new Set(), patch: null };

export async function showAttention(box, context) {
  if (!box.querySelector(".attention-map")) setChildren(box, html("p", { class: "dim", text: "…" }));
  const isPicture = hasShapes(context.explanation.scene);
  if (isPicture && view.name !== "map") view.name = "map";
  try {
    if (view.name === "map") {
      const attention = await fetchMap();
      setChildren(box, ...(isPicture ? pictureView(box, context, attention) : mapView(box, context, attention)));
    } else {
      const { layers } = await fetchJson("heads", requestBody(), "attention");
      view.layer = Math.min(view.layer, layers.length);
      setChildren(box, ...(view.name === "head" ? headView : modelView)(box, context, layers));
    }
  } catch (error) {
    if (isCancelled(error)) return;
    setChildren(box, tools(box, context, [], isPicture), html("p", { text: error.message }));
  }
}

// Another input may come from a model with fewer layers or heads.
async function fetchMap() {
  const fetch = () => fetchJson("attention", requestBody({ layer: view.layer, head: view.head }));
  try {
    return await fetch();
  } catch (error) {
    if (isCancelled(error) || (view.layer === 1 && view.head === 0)) throw error;
    Object.assign(view, { layer: 1, head: 0 });
    return fetch();
  }
}

function tools(box, context, menus, isPicture) {
  const focused = document.activeElement?.id;
  const names = { map: "map of one head", head: "heads of a layer", model: "all layers and heads" };
  const buttons = isPicture ? null : html("div", { class: "buttons", role: "group", "aria-label": "View" },
    Object.entries(names).map(([name, text]) => html("button", {
      type: "button", text, "data-view": name, "aria-pressed": String(name === view.name),
      on: { click: () => { view.name = name; showAttention(box, context); } },
    })));
  if (focused === "layer" || focused === "head") setTimeout(() => document.getElementById(focused)?.focus());
  return html("div", { class: "attention-tools" }, buttons, html("div", { class: "controls" }, menus));
}

function menu(box, context, name, values, label) {
  return html("label", {}, `${name} `, html("select", {
    id: name,
    on: { change: (event) => { view[name] = Number(event.target.value); showAttention(box, context); } },
  }, values.map((value) => html("option", { value, text: label(value), selected: value === view[name] }))));
}

const layerMenu = (box, context, count) => menu(box, context, "layer", Array.from({ length: count }, (_, i) => i + 1), String);
const headMenu = (box, context, count) => menu(box, context, "head", Array.from({ length: count + 1 }, (_, i) => i), (i) => (i ? String(i) : "mean of all"));

function mapView(box, context, attention) {
  return [
    tools(box, context, [layerMenu(box, context, attention.layers), headMenu(box, context, attention.heads)]),
    html("p", { class: "dim", text: `A row shows where one token attends (rows are queries, columns keys); the stronger the blue, the larger the weight. ${WEIGHTS}` }),
    attention.weights.length <= MAX_CELLS ? cellMap(attention) : canvasMap(attention),
  ];
}

function cellMap({ queries, keys, weights }) {
  const [cell, margin] = [18, 110];
  const largest = Math.max(...weights.flat()) || 1;
  const label = (name, attributes) => svg("text", { ...attributes, class: "name", text: shorten(name) });
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

const shorten = (name) => (name.length > 14 ? `${name.slice(0, 13)}…` : name);

function canvasMap({ weights }) {
  const canvas = html("canvas", { class: "attention-map scaled", width: weights[0].length, height: weights.length, role: "img", "aria-label": "attention map" });
  paint(canvas, weights.flat(), Math.max(...weights.map((row) => Math.max(...row))) || 1);
  return canvas;
}

function paint(canvas, weights, largest) {
  const drawing = canvas.getContext("2d");
  const picture = drawing.createImageData(canvas.width, canvas.height);
  weights.forEach((weight, i) => picture.data.set([31, 119, 220, (255 * weight) / largest], 4 * i));
  drawing.putImageData(picture, 0, 0);
}

// The picture with the weights of one query, or of all on average, drawn on its patches.
function pictureView(box, context, { layers, heads, query_units: queryUnits, key_units: keyUnits, weights }) {
  const { scene, units } = context.explanation;
  const query = view.patch === null ? -1 : queryUnits.indexOf(view.patch);
  const row = query < 0 ? weights[0].map((_, k) => weights.reduce((total, line) => total + line[k], 0) / weights.length) : weights[query];
  const received = new Array(units.length).fill(0);
  row.forEach((weight, k) => { if (keyUnits[k] !== null) received[keyUnits[k]] += weight; });
  const largest = Math.max(...received) || 1;
  const choose = (i) => { view.patch = view.patch === i ? null : i; showAttention(box, context); };
  const picture = svg("svg", { class: `image attention-map ${scene.kind}`, viewBox: `0 0 ${scene.width} ${scene.height}`, role: "group", "aria-label": "attention on the picture" },
    scene.kind === "molecule" ? svg("rect", { width: scene.width, height: scene.height, fill: "#fff" }) : sceneImage(scene, "under"),
    unitShapes({ units, scene }).map(([tag, shape], i) => svg(tag, {
      ...shape, class: i === view.patch && query >= 0 ? "cell weight chosen" : "cell weight", "fill-opacity": ((0.9 * received[i]) / largest).toFixed(3),
      role: "button", tabindex: 0, "data-unit": i, "aria-label": `${context.prediction.noun} ${units[i].text}, weight ${received[i].toFixed(3)}`,
      on: { click: () => choose(i), keydown: (event) => { if (event.key === "Enter") choose(i); } },
    }, svg("title", { text: received[i].toFixed(3) }))),
    scene.kind === "molecule" ? sceneImage(scene) : null);
  const { noun } = context.prediction;
  const who = query < 0 ? `Average over all positions. Click a ${noun} to see what it attends to.` : `What the outlined ${noun} attends to. Click it again for the average.`;
  return [
    tools(box, context, [layerMenu(box, context, layers), headMenu(box, context, heads)], true),
    html("p", { class: "dim", text: `${who} The stronger the blue, the larger the weight; full colour: ${largest.toFixed(3)}. ${WEIGHTS}` }),
    picture,
  ];
}

const decoded = (head) => Uint8Array.from(atob(head), (letter) => letter.charCodeAt(0));

// One layer: every token on the left is joined to those it attends to, a colour for each head.
function headView(box, context, layers) {
  const { queries, keys, heads } = layers[view.layer - 1];
  const [line, left, width] = [22, 95, Math.min(420, box.clientWidth || 420)];
  const maps = heads.map(decoded);
  const lines = svg("g", { class: "head-lines" });
  const draw = (only = null) => {
    const drawn = [];
    maps.forEach((map, h) => {
      if (view.hidden.has(h)) return;
      queries.forEach((_, q) => {
        if (only !== null && q !== only) return;
        keys.forEach((__, k) => {
          const weight = map[q * keys.length + k] / 255;
          if (weight < (only === null ? 0.08 : 0.02)) return;
          drawn.push(svg("line", {
            x1: left, y1: line * (q + 0.5), x2: left + width - 2 * left, y2: line * (k + 0.5),
            stroke: COLOURS[h % COLOURS.length], "stroke-opacity": Math.min(1, weight).toFixed(2), "stroke-width": only === null ? 1.5 : 2.5,
          }));
        });
      });
    });
    setChildren(lines, drawn);
  };
  draw();
  const name = (text, attributes, on = {}) => svg("text", { ...attributes, class: "name", text: shorten(text), on });
  const picture = svg("svg", { class: "attention-map", width, height: line * Math.max(queries.length, keys.length), role: "img", "aria-label": `the heads of layer ${view.layer}` },
    lines,
    queries.map((text, q) => name(text, { x: left - 6, y: line * (q + 0.7), "text-anchor": "end", "data-query": q },
      { mouseenter: () => draw(q), mouseleave: () => draw(), click: () => draw(q) })),
    keys.map((text, k) => name(text, { x: left + width - 2 * left + 6, y: line * (k + 0.7) })));
  const switches = html("div", { class: "heads", role: "group", "aria-label": "Heads" }, heads.map((_, h) => html("button", {
    type: "button", text: String(h + 1), "data-head": h, "aria-pressed": String(!view.hidden.has(h)), title: `head ${h + 1}: click to show or hide, double-click to show only this head`,
    style: { "--head": COLOURS[h % COLOURS.length], "--on-head": LIGHT.has(COLOURS[h % COLOURS.length]) ? "#000" : "#fff" },
    on: {
      click: () => { view.hidden[view.hidden.has(h) ? "delete" : "add"](h); showAttention(box, context); },
      dblclick: () => { view.hidden = new Set(heads.keys()); view.hidden.delete(h); showAttention(box, context); },
    },
  })));
  return [
    tools(box, context, [layerMenu(box, context, layers.length), switches]),
    html("p", { class: "dim", text: `Each token on the left (query) attends to tokens on the right (keys), a colour for each head; the stronger a line, the larger the weight. Point at a token on the left to see only its lines. ${WEIGHTS}` }),
    html("div", { class: "scroll" }, picture),
  ];
}

// All layers and heads, each as a small map; a click opens one.
function modelView(box, context, layers) {
  const width = Math.max(...layers.map(({ heads }) => heads.length));
  const thumbnail = ({ queries, keys }, layer, head, index) => {
    const canvas = html("canvas", { width: keys.length, height: queries.length });
    const map = decoded(head);
    paint(canvas, [...map], Math.max(...map) || 1);
    return html("td", {}, html("button", {
      type: "button", class: "thumbnail", "data-layer": layer, "data-head": index + 1, "aria-label": `layer ${layer}, head ${index + 1}`,
      title: `layer ${layer}, head ${index + 1}`,
      on: { click: () => { Object.assign(view, { name: "map", layer, head: index + 1 }); showAttention(box, context); } },
    }, canvas));
  };
  return [
    tools(box, context, []),
    html("p", { class: "dim", text: `Layers from top to bottom, heads from left to right; full blue is the largest weight of each map. Click one to enlarge it. ${WEIGHTS}` }),
    html("div", { class: "scroll" }, html("table", { class: "attention-map model-view" },
      html("tr", {}, html("th", {}), Array.from({ length: width }, (_, h) => html("th", { text: `head ${h + 1}` }))),
      layers.map((layer, l) => html("tr", {}, html("th", { text: `layer ${l + 1}` }),
        layer.heads.map((head, h) => thumbnail(layer, l + 1, head, h)))))),
  ];
}
