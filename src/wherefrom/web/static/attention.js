// Attention: the map of one head, the heads of a layer as lines between tokens, all heads of the
// model at a glance, and for images the patches that a clicked patch attends to.

import { fetchJson, isCancelled } from "./api.js";
import { html, percent, setChildren, sum, svg } from "./dom.js";
import { hasShapes, sceneImage, unitShapes } from "./heatmap.js";
import { requestBody } from "./state.js";

const MAX_CELLS = 64; // rows of a map with names beside it; with more, the names are shown where the mouse points
const STRONGEST = 3; // heads that are shown first
const THUMBNAIL = 120; // pixels of a side
const LEAST = 0.08; // weights of lines that are drawn
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8860b", "#7f3c8d"];
const LIGHT = new Set(["#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8860b"]); // black is easier to read on these than white
const WEIGHTS = "A weight shows where the model attends, not what this contributes to the output; the methods measure that.";
const view = { name: "map", layer: 1, head: 0, zoom: 1, shown: null, patch: null }; // `shown`: the heads whose lines are drawn

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
    on: { change: (event) => { Object.assign(view, { [name]: Number(event.target.value), shown: null }); showAttention(box, context); } },
  }, values.map((value) => html("option", { value, text: label(value), selected: value === view[name] }))));
}

const layerMenu = (box, context, count) => menu(box, context, "layer", Array.from({ length: count }, (_, i) => i + 1), String);
const headMenu = (box, context, count) => menu(box, context, "head", Array.from({ length: count + 1 }, (_, i) => i), (i) => (i ? String(i) : "mean of all"));

function mapView(box, context, attention) {
  const isLarge = attention.weights.length > MAX_CELLS || attention.keys.length > MAX_CELLS;
  const largest = Math.max(...attention.weights.map((row) => Math.max(...row))) || 1;
  return [
    tools(box, context, [layerMenu(box, context, attention.layers), headMenu(box, context, attention.heads)]),
    html("p", { class: "dim", text: `A row shows where one token attends (rows are queries, columns keys). ${WEIGHTS}` }),
    html("p", { class: "scale dim" }, "weight 0 ", html("i", {}), ` ${largest.toFixed(3)}`),
    ...(isLarge ? canvasMap(attention, largest) : [cellMap(attention, largest)]),
  ];
}

const scrolling = (name, ...children) => html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, children);

function cellMap({ queries, keys, weights }, largest) {
  const [cell, margin] = [18, 110];
  const label = (name, attributes) => svg("text", { ...attributes, class: "name", text: shorten(name) });
  return scrolling("attention map", svg("svg", {
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

// A map without room for names: they are shown where the mouse points, and the map can be enlarged.
function canvasMap({ queries, keys, weights }, largest) {
  const canvas = html("canvas", { class: "attention-map scaled", width: keys.length, height: queries.length, role: "img", "aria-label": `attention map, ${queries.length} by ${keys.length}` });
  paint(canvas, weights.flat(), largest);
  const pointed = html("p", { class: "pointed", text: "Point at the map to see a weight." });
  const setZoom = (zoom) => {
    view.zoom = zoom;
    canvas.style.width = `calc(min(100%, 44rem) * ${zoom})`;
  };
  canvas.addEventListener("mousemove", ({ offsetX, offsetY }) => {
    const k = Math.min(keys.length - 1, Math.floor((keys.length * offsetX) / canvas.clientWidth));
    const q = Math.min(queries.length - 1, Math.floor((queries.length * offsetY) / canvas.clientHeight));
    if (weights[q]?.[k] !== undefined) pointed.textContent = `${queries[q]} (${q + 1}) → ${keys[k]} (${k + 1}): ${weights[q][k].toFixed(3)}`;
  });
  setZoom(view.zoom);
  return [
    html("label", {}, "zoom ", html("input", { type: "range", id: "zoom", min: 1, max: 8, step: 0.5, value: view.zoom, on: { input: (event) => setZoom(Number(event.target.value)) } })),
    pointed, scrolling("attention map", canvas),
  ];
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
      role: "button", tabindex: 0, "data-unit": i, "aria-pressed": String(i === view.patch && query >= 0),
      on: { click: () => choose(i), keydown: (event) => { if (event.key === "Enter") choose(i); } },
    }, svg("title", { text: `${units[i].text}, weight ${received[i].toFixed(3)}` }))),
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

// What a head gives to other ordinary tokens, on average over these: heads that look at separators or at themselves have
// little.
function betweenWords(map, width, isPlain) {
  const plain = [...isPlain.keys()].filter((i) => isPlain[i]);
  const given = plain.map((q) => sum(plain.filter((k) => k !== q).map((k) => map[q * width + k])) / 255);
  return plain.length ? sum(given) / plain.length : 0;
}

// Which positions are ordinary tokens; all of them where the positions are not those of the units.
const plainPositions = ({ units }, { queries, keys }) => (queries.length === units.length && keys.length === units.length
  ? units.map(({ special }) => !special) : new Array(Math.min(queries.length, keys.length)).fill(true));

// One layer: every token on the left is joined to those it attends to, a colour for each head.
function headView(box, context, layers) {
  const { queries, keys, heads } = layers[view.layer - 1];
  const [line, left, width] = [22, 95, Math.min(420, box.clientWidth || 420)];
  const maps = heads.map(decoded);
  const isPlain = plainPositions(context.explanation, layers[view.layer - 1]);
  const given = maps.map((map) => betweenWords(map, keys.length, isPlain));
  const ranked = [...heads.keys()].sort((a, b) => given[b] - given[a]);
  const strongest = () => new Set(ranked.slice(0, STRONGEST));
  view.shown ??= strongest();
  const lines = svg("g", { class: "head-lines" });
  const draw = (only = null) => {
    const drawn = [];
    maps.forEach((map, h) => {
      if (!view.shown.has(h)) return;
      queries.forEach((_, q) => {
        if (only !== null && q !== only) return;
        keys.forEach((__, k) => {
          const weight = map[q * keys.length + k] / 255;
          if (weight < (only === null ? LEAST : 0.02)) return;
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
  const choose = (shown) => { view.shown = shown; showAttention(box, context); };
  const switches = html("div", { class: "heads", role: "group", "aria-label": "Heads, the strongest first" }, ranked.map((h) => html("button", {
    type: "button", text: `${h + 1}: ${percent(given[h])}`, "data-head": h, "aria-pressed": String(view.shown.has(h)), title: `head ${h + 1}: click to show or hide, double-click to show only this head`,
    style: { "--head": COLOURS[h % COLOURS.length], "--on-head": LIGHT.has(COLOURS[h % COLOURS.length]) ? "#000" : "#fff" },
    on: {
      click: () => { const next = new Set(view.shown); next[next.has(h) ? "delete" : "add"](h); choose(next); },
      dblclick: () => choose(new Set([h])),
    },
  })),
  html("button", { type: "button", class: "pill", "data-heads": "strongest", text: `the ${Math.min(STRONGEST, heads.length)} strongest`, on: { click: () => choose(strongest()) } }),
  html("button", { type: "button", class: "pill", "data-heads": "all", text: "all", on: { click: () => choose(new Set(heads.keys())) } }));
  return [
    tools(box, context, [layerMenu(box, context, layers.length), switches]),
    html("p", { class: "dim", text: `Each token on the left (query) attends to tokens on the right (keys), a colour for each head; the stronger a line, the larger the weight. Point at a token on the left to see only its lines. A head's share is the weight that ordinary tokens give to other ordinary tokens, on average. ${WEIGHTS}` }),
    scrolling("lines between tokens", picture),
  ];
}

// All layers and heads as small multiples, each with its lines from the queries on the left to the keys on the right; a
// click opens the map of one.
function modelView(box, context, layers) {
  const width = Math.max(...layers.map(({ heads }) => heads.length));
  const colour = getComputedStyle(box).color;
  const thumbnail = ({ queries, keys }, layer, head, index) => {
    const canvas = html("canvas", { width: THUMBNAIL, height: THUMBNAIL });
    drawLines(canvas, decoded(head), queries.length, keys.length, colour);
    return html("td", {}, html("button", {
      type: "button", class: "thumbnail", "data-layer": layer, "data-head": index + 1, "aria-label": `layer ${layer}, head ${index + 1}`,
      title: `layer ${layer}, head ${index + 1}`,
      on: { click: () => { Object.assign(view, { name: "map", layer, head: index + 1 }); showAttention(box, context); } },
    }, canvas));
  };
  return [
    tools(box, context, []),
    html("p", { class: "dim", text: `Layers from top to bottom, heads from left to right. In each, lines join the tokens on the left (queries) to those that they attend to on the right (keys); the darker, the larger the weight. Click one to see its map. ${WEIGHTS}` }),
    scrolling("all layers and heads", html("table", { class: "attention-map model-view", style: { "--heads": width } },
      html("thead", {}, html("tr", {}, html("td", {}), Array.from({ length: width }, (_, h) => html("th", { scope: "col", text: String(h + 1) })))),
      html("tbody", {}, layers.map((layer, l) => html("tr", {}, html("th", { scope: "row", text: `layer ${l + 1}` }),
        layer.heads.map((head, h) => thumbnail(layer, l + 1, head, h))))))),
  ];
}

function drawLines(canvas, map, queries, keys, colour) {
  const drawing = canvas.getContext("2d");
  Object.assign(drawing, { strokeStyle: colour, lineWidth: 1.5 });
  for (let q = 0; q < queries; q += 1) {
    for (let k = 0; k < keys; k += 1) {
      const weight = map[q * keys + k] / 255;
      if (weight < LEAST) continue;
      drawing.globalAlpha = weight;
      drawing.beginPath();
      drawing.moveTo(8, (THUMBNAIL * (q + 0.5)) / queries);
      drawing.lineTo(THUMBNAIL - 8, (THUMBNAIL * (k + 0.5)) / keys);
      drawing.stroke();
    }
  }
}
