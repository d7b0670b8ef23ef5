// The activation and pruning curves, with a slider that shows the input at every step.

import { fetchJson, isCancelled } from "./api.js";
import { html, percent, plural, setChildren, signed, svg } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { requestBody, state } from "./state.js";

const CURVES = {
  activation: (units) => `Activation: ${units} are added, highest score first. The curve of a faithful method rises early.`,
  pruning: (units) => `Pruning: ${units} are removed, smallest absolute score first. With a faithful method the prediction stays unchanged for many steps.`,
};
const [WIDTH, HEIGHT] = [600, 150];

export async function showCurves(box, context, kind = "activation") {
  const buttons = html("div", { class: "buttons", role: "group", "aria-label": "Curve" }, Object.keys(CURVES).map((name) => html("button", {
    type: "button", "aria-pressed": String(name === kind), "data-curve": name, text: name,
    on: { click: () => showCurves(box, context, name) },
  })));
  const content = html("div", {}, html("p", { class: "dim", text: "…" }));
  setChildren(box, buttons, html("p", { class: "dim", text: CURVES[kind](plural(context.prediction.noun)) }), content);
  try {
    draw(content, context, await fetchJson("curve", requestBody({ curve: kind })));
  } catch (error) {
    if (!isCancelled(error)) setChildren(content, html("p", { text: error.message }));
  }
}

function draw(box, context, curve) {
  const { marks, explanation: { scores, scene, units, signed: isSigned, target, method: { name: method } } } = context;
  const nouns = plural(context.prediction.noun);
  const values = curve.probabilities ?? curve.outputs;
  const control = curve.control[curve.probabilities ? "probabilities" : "outputs"];
  const [low, high] = curve.probabilities ? [0, 1] : [Math.min(...values, ...control), Math.max(...values, ...control)];
  const last = values.length - 1;
  const x = (step) => (WIDTH * step) / last;
  const y = (value) => HEIGHT - (HEIGHT * (value - low)) / (high - low || 1);
  const line = (numbers) => numbers.map((value, step) => `${x(step)},${y(value)}`).join(" ");
  const points = line(values);
  const dot = svg("circle", { r: 6, class: "dot" });
  const plot = svg("svg", { class: "curve", viewBox: `-8 -16 ${WIDTH + 16} ${HEIGHT + 24}`, role: "img", "aria-label": `${curve.metric} curve of ${method}` },
    [0, 0.5, 1].map((fraction) => svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * fraction, y2: HEIGHT * fraction, class: "grid" })),
    curve.probabilities ? [["100 %", -3], ["50 %", HEIGHT / 2 - 3], ["0 %", HEIGHT - 3]].map(([text, height]) => svg("text", { x: 0, y: height, text })) : null,
    svg("polygon", { class: "area", points: `0,${HEIGHT} ${points} ${WIDTH},${HEIGHT}` }),
    svg("polyline", { class: "control", points: line(control) }),
    svg("polyline", { class: "stroke", points }),
    dot);
  const status = html("p", { class: "curve-status", "aria-live": "polite" });
  const input = html("div");
  const slider = html("input", {
    type: "range", min: 0, max: last, value: 0, id: "step", "aria-label": "Step",
    on: { input: () => showStep(Number(slider.value)) },
  });
  function showStep(step) {
    const present = curve.present[step];
    const removed = [...present].flatMap((bit, i) => (bit === "0" ? [i] : []));
    dot.setAttribute("cx", x(step));
    dot.setAttribute("cy", y(values[step]));
    const value = curve.probabilities ? percent(values[step]) : signed(values[step]);
    status.textContent = `${present.length - removed.length} of ${present.length} ${nouns} present: ${target.label} ${value}, output ${signed(curve.outputs[step])}`;
    slider.setAttribute("aria-valuetext", status.textContent);
    setChildren(input, heatmap({ marks, scores, scene, units, isSigned, removed }));
  }
  setChildren(box, plot, slider, status, input,
    html("p", { class: "dim", text: `${curve.metric} of ${method}: ${curve.area.toFixed(3)} (${curve.better} is better); of random scores, dashed, the mean of ${curve.control.count}: ${curve.control.area.toFixed(3)}.` }));
  const firstStep = Math.ceil(last / 3);
  slider.value = firstStep;
  showStep(firstStep);
}
