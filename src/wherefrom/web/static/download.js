// The explanation as a file: HTML and JSON as the command line writes them, SVG and PNG.

import { fetchHtml } from "./api.js";
import { html, percent, signed, svg } from "./dom.js";
import { hasShapes, isUnderlined, opacity, sceneImage, strengths, unitShapes, visibleText } from "./heatmap.js";
import { requestBody } from "./state.js";

const [WIDTH, MARGIN, FONT_SIZE, LINE_HEIGHT, SCENE_WIDTH] = [760, 24, 18, 32, 320];
const FONT = "Georgia, serif";
const [INK, GREY] = ["#1b1b1f", "#6a6a75"];
const COLOURS = { for: "rgb(214,39,40)", against: "rgb(31,119,220)", strength: "rgb(0,130,90)" };

export const DOWNLOADS = { html: saveHtml, svg: saveSvg, png: savePng, json: saveJson };

async function saveHtml() {
  save("wherefrom.html", new Blob([await fetchHtml(requestBody())], { type: "text/html" }));
}

function saveJson({ explanation }) {
  save("wherefrom.json", new Blob([JSON.stringify(explanation, null, 1)], { type: "application/json" }));
}

function saveSvg(context) {
  save("wherefrom.svg", new Blob([serialized(figure(context))], { type: "image/svg+xml" }));
}

async function savePng(context) {
  const drawing = figure(context);
  const [width, height] = ["width", "height"].map((name) => Number(drawing.getAttribute(name)));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serialized(drawing))}`;
  await image.decode();
  const canvas = html("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save("wherefrom.png", blob), "image/png");
}

function save(name, blob) {
  const href = URL.createObjectURL(blob);
  const link = html("a", { href, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

const serialized = (drawing) => new XMLSerializer().serializeToString(drawing);

const fill = (strength, isSigned) => ({
  fill: COLOURS[isSigned ? (strength > 0 ? "for" : "against") : "strength"], "fill-opacity": opacity(strength),
});

function figure(context) {
  const { ledger, target, probability, method, model, scene, output } = context.explanation;
  const name = target.against_label === null ? target.label : `${target.label} − ${target.against_label}`;
  const title = probability === null || target.against !== null ? name : `${name}  ${percent(probability)}`;
  const [content, contentHeight] = hasShapes(scene) ? sceneFigure(context) : textFigure(context);
  const footer = ledger
    ? `${method.name}: adds up to ${signed(ledger.output - ledger.residual)}, residual ${signed(ledger.residual)}, output ${signed(ledger.output)}`
    : `${method.name}: output ${signed(output)}`;
  const height = contentHeight + 110;
  return svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}` },
    svg("rect", { width: WIDTH, height, fill: "#fff" }),
    label(title, MARGIN, 40, { "font-weight": "bold", "font-size": 20 }),
    svg("g", { transform: `translate(${MARGIN},62)` }, content),
    label(`${footer}  ·  ${model}`, MARGIN, height - 20, { fill: GREY, "font-size": 13 }));
}

const label = (text, x, y, attributes = {}) => svg("text", { x, y, "font-family": "system-ui, sans-serif", fill: INK, "xml:space": "preserve", text, ...attributes });

function textFigure({ marks, explanation }) {
  const ruler = html("canvas").getContext("2d");
  const strength = strengths(marks, explanation.scores);
  const content = [];
  let [x, y] = [0, 0];
  marks.forEach((mark, i) => {
    const size = mark.special ? 0.75 * FONT_SIZE : FONT_SIZE;
    ruler.font = `${size}px ${FONT}`;
    const text = visibleText(mark);
    const width = ruler.measureText(text).width + 4;
    if (mark.gap) x += ruler.measureText(" ").width;
    if (x + width > WIDTH - 2 * MARGIN && x > 0) [x, y] = [0, y + LINE_HEIGHT];
    content.push(svg("rect", { x, y: y + 3, width, height: FONT_SIZE + 8, rx: 3, ...fill(strength[i], explanation.signed) }));
    if (isUnderlined(strength[i])) {
      content.push(svg("line", { x1: x + 2, x2: x + width - 2, y1: y + FONT_SIZE + 9, y2: y + FONT_SIZE + 9, stroke: INK, "stroke-dasharray": "2 2" }));
    }
    content.push(label(text, x + 2, y + FONT_SIZE + 3, { "font-family": FONT, "font-size": size, fill: mark.special ? GREY : INK }));
    x += width;
  });
  return [content, y + LINE_HEIGHT];
}

function sceneFigure({ marks, explanation }) {
  const { scene, scores } = explanation;
  const strength = strengths(marks, scores);
  const scale = SCENE_WIDTH / scene.width;
  const cells = unitShapes(explanation).map(([tag, shape], i) => svg(tag, { ...shape, ...fill(strength[i], explanation.signed) }));
  const veil = svg("rect", { width: scene.width, height: scene.height, fill: "#fff", "fill-opacity": 0.45 });
  const overlay = scene.kind === "molecule" ? [...cells, sceneImage(scene)] : [sceneImage(scene), veil, ...cells];
  return [[
    svg("g", { transform: `scale(${scale})` }, sceneImage(scene)),
    svg("g", { transform: `translate(${SCENE_WIDTH + 30},0) scale(${scale})` }, overlay),
  ], scene.height * scale];
}
