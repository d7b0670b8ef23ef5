// What is on the page as a file: HTML and JSON as the command line writes them, SVG and PNG.

import { page } from "./api.js";
import { el, percent, signed, svg } from "./dom.js";
import { drawn, seen, shapes, strengths } from "./heat.js";
import { question } from "./state.js";

const [WIDE, EDGE, SIZE, LINE] = [760, 24, 18, 32];
const FONT = `${SIZE}px Georgia, serif`;
const TINTS = { for: "214,39,40", against: "31,119,220" };

export const saveJson = ({ explanation }) => offer("wherefrom.json", "application/json", JSON.stringify(explanation, null, 1));
export const saveSvg = (context) => offer("wherefrom.svg", "image/svg+xml", written(sheet(context)));

export async function saveHtml() {
  offer("wherefrom.html", "text/html", await page(question()));
}

export async function savePng(context) {
  const made = sheet(context);
  const [width, height] = ["width", "height"].map((name) => Number(made.getAttribute(name)));
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(written(made))}`;
  await picture.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => hand("wherefrom.png", blob), "image/png");
}

function offer(name, kind, text) {
  hand(name, new Blob([text], { type: kind }));
}

function hand(name, blob) {
  const href = URL.createObjectURL(blob);
  const link = el("a", { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

const written = (made) => new XMLSerializer().serializeToString(made);

const tint = (strength) => ({ fill: `rgb(${TINTS[strength > 0 ? "for" : "against"]})`, "fill-opacity": (0.85 * Math.abs(strength)).toFixed(3) });

function sheet(context) {
  const { explanation } = context;
  const { ledger, target } = explanation;
  const name = target.against_label === null ? target.label : `${target.label} − ${target.against_label}`;
  const chance = explanation.probability === null || target.against !== null ? "" : `  ${percent(explanation.probability)}`;
  const [body, height] = drawn(explanation.scene) ? sceneBody(context) : textBody(context);
  const foot = ledger
    ? `${explanation.method.name}: adds up to ${signed(ledger.output - ledger.residual)}, residual ${signed(ledger.residual)}, output ${signed(ledger.output)}`
    : `${explanation.method.name}: output ${signed(explanation.output)}`;
  const tall = height + 110;
  return svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDE, height: tall, viewBox: `0 0 ${WIDE} ${tall}` },
    svg("rect", { width: WIDE, height: tall, fill: "#fff" }),
    label(`${name}${chance}`, EDGE, 40, { "font-weight": "bold", "font-size": 20 }),
    svg("g", { transform: `translate(${EDGE},62)` }, body),
    label(`${foot}  ·  ${explanation.model}`, EDGE, tall - 20, { fill: "#6a6a75", "font-size": 13 }));
}

const label = (text, x, y, more = {}) => svg("text", { x, y, "font-family": "system-ui, sans-serif", fill: "#1b1b1f", "xml:space": "preserve", text, ...more });

function textBody({ marks, explanation }) {
  const brush = el("canvas").getContext("2d");
  const strong = strengths(marks, explanation.scores);
  const made = [];
  let [x, y] = [0, 0];
  marks.forEach((mark, i) => {
    brush.font = mark.special ? `${0.75 * SIZE}px Georgia, serif` : FONT;
    const text = mark.text.replaceAll("\n", "⏎") || "·";
    const wide = brush.measureText(text).width + 4;
    if (mark.gap) x += brush.measureText(" ").width;
    if (x + wide > WIDE - 2 * EDGE && x > 0) [x, y] = [0, y + LINE];
    made.push(svg("rect", { x, y: y + 3, width: wide, height: SIZE + 8, rx: 3, ...tint(strong[i]) }));
    if (strong[i] < -0.05) made.push(svg("line", { x1: x + 2, x2: x + wide - 2, y1: y + SIZE + 9, y2: y + SIZE + 9, stroke: "#1b1b1f", "stroke-dasharray": "2 2" }));
    made.push(label(text, x + 2, y + SIZE + 3, { "font-family": "Georgia, serif", "font-size": mark.special ? 0.75 * SIZE : SIZE, fill: mark.special ? "#6a6a75" : "#1b1b1f" }));
    x += wide;
  });
  return [made, y + LINE];
}

function sceneBody({ marks, explanation }) {
  const { scene, scores } = explanation;
  const strong = strengths(marks, scores);
  const scale = 320 / scene.width;
  const cells = shapes(explanation).map(([tag, place], i) => svg(tag, { ...place, ...tint(strong[i]) }));
  const veil = svg("rect", { width: scene.width, height: scene.height, fill: "#fff", "fill-opacity": 0.45 });
  const over = scene.kind === "molecule" ? [cells, seen(scene)] : [seen(scene), veil, cells];
  return [[
    svg("g", { transform: `scale(${scale})` }, seen(scene)),
    svg("g", { transform: `translate(350,0) scale(${scale})` }, over.flat()),
  ], scene.height * scale];
}
