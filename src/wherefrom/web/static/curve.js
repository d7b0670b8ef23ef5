// The activation and the pruning curve, to be dragged through: the input fills, or empties.

import { ask, given_up } from "./api.js";
import { el, fill, percent, signed, svg } from "./dom.js";
import { heat } from "./heat.js";
import { question, state } from "./state.js";

const KINDS = {
  fill: "Fill: pieces come back, the most relevant first. A faithful method rises early.",
  empty: "Empty: pieces go, the least relevant first. A faithful method stays up long.",
};
const [WIDE, HIGH] = [600, 150];

export async function showCurve(box, context, kind = "fill") {
  const choice = el("div", { class: "chips", role: "group", "aria-label": "Direction" }, Object.keys(KINDS).map((name) => el("button", {
    type: "button", "aria-pressed": String(name === kind), "data-curve": name, text: name,
    on: { click: () => showCurve(box, context, name) },
  })));
  const rest = el("div", {}, el("p", { class: "dim", text: "…" }));
  fill(box, choice, el("p", { class: "dim", text: KINDS[kind] }), rest);
  try {
    draw(rest, context, await ask("curve", question({ curve: kind })));
  } catch (error) {
    if (!given_up(error)) fill(rest, el("p", { text: error.message }));
  }
}

function draw(box, context, found) {
  const { explanation, marks } = context;
  const values = found.probabilities ?? found.outputs;
  const [low, high] = found.probabilities ? [0, 1] : [Math.min(...values), Math.max(...values)];
  const last = values.length - 1;
  const across = (i) => (WIDE * i) / last;
  const up = (value) => HIGH - (HIGH * (value - low)) / (high - low || 1);
  const dot = svg("circle", { r: 6, class: "dot" });
  const picture = svg("svg", { class: "curve", viewBox: `-8 -16 ${WIDE + 16} ${HIGH + 24}`, role: "img", "aria-label": `${found.metric} curve of ${state.method}` },
    [0, 0.5, 1].map((share) => svg("line", { x1: 0, x2: WIDE, y1: HIGH * share, y2: HIGH * share, class: "grid" })),
    found.probabilities ? [["100 %", -1], ["50 %", HIGH / 2 - 1], ["0 %", HIGH - 1]].map(([text, y]) => svg("text", { x: 0, y: y - 2, text })) : null,
    svg("polygon", { class: "area", points: `0,${HIGH} ${values.map((value, i) => `${across(i)},${up(value)}`).join(" ")} ${WIDE},${HIGH}` }),
    svg("polyline", { class: "stroke", points: values.map((value, i) => `${across(i)},${up(value)}`).join(" ") }),
    dot);
  const told = el("p", { class: "reading", "aria-live": "polite" });
  const text = el("div");
  const slider = el("input", {
    type: "range", min: 0, max: last, value: 0, id: "step", "aria-label": "Step",
    on: { input: () => at(Number(slider.value)) },
  });
  function at(i) {
    const present = found.present[i];
    const removed = [...present].flatMap((bit, k) => (bit === "0" ? [k] : []));
    dot.setAttribute("cx", across(i));
    dot.setAttribute("cy", up(values[i]));
    const shown = found.probabilities ? percent(values[i]) : signed(values[i]);
    told.textContent = `${present.length - removed.length} of ${present.length} pieces there: ${explanation.target.label} ${shown}, output ${signed(found.outputs[i])}`;
    slider.setAttribute("aria-valuetext", told.textContent);
    fill(text, heat({ marks, scores: explanation.scores, scene: explanation.scene, units: explanation.units, removed }));
  }
  const area = found.area.toFixed(3);
  fill(box, picture, slider, told, text,
    el("p", { class: "dim", text: `${found.metric} of ${state.method} here: ${area} (${found.better} is better).` }));
  at(Math.ceil(last / 3));
  slider.value = Math.ceil(last / 3);
}
