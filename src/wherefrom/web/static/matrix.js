// Scores as a matrix, a column for each unit; pictures have one small picture in each row instead.

import { html, signed } from "./dom.js";
import { colour, hasShapes, heatmap, isUnderlined, scoreText, strengths, visibleText } from "./heatmap.js";

const MOST_NAMED = 64; // columns with a name above; with more, the name is shown where the mouse points

// `rows` has {name, scores, isSigned?, cells: [[text, class]], attributes?}: `name` is a node, `cells` stand left of the
// scores under the names in `head`. All rows share the colour scale `scale`; without one, each has its own.
export function matrix(head, rows, { marks, units, scene }, scale = null) {
  const isPicture = hasShapes(scene);
  const names = isPicture ? [html("th", { class: "map", text: "heatmap" })] : marks.map((mark) => html("th", { class: "unit", scope: "col" },
    marks.length <= MOST_NAMED ? html("span", { text: visibleText(mark) }) : html("span", { class: "sr", text: visibleText(mark) })));
  return html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "scores of each row" }, html("table", { class: `matrix${isPicture ? " heatmap-rows" : ""}`, style: { "--units": marks.length } },
    html("thead", {}, html("tr", {}, head.map((cell, i) => (cell instanceof Node ? cell : html("th", { text: cell, class: i ? "num" : "", scope: "col" }))), names)),
    html("tbody", {}, rows.map((row) => matrixRow(row, head, { marks, units, scene, isPicture, scale })))));
}

function matrixRow({ name, scores, isSigned = true, cells, attributes = {} }, head, { marks, units, scene, isPicture, scale }) {
  const start = [html("th", { scope: "row" }, name), ...cells.map(([text, kind], i) => html("td", { class: `num ${kind ?? ""}`, "data-head": head[i + 1], text }))];
  if (!scores) return html("tr", attributes, start);
  if (isPicture) {
    return html("tr", attributes, start, html("td", { class: "map" }, heatmap({ marks, scores, scene, units, isSigned, scale, small: true })));
  }
  const strength = strengths(marks, scores, scale);
  return html("tr", { ...attributes, class: `${attributes.class ?? ""}${isSigned ? "" : " unsigned"}` }, start, scores.map((score, i) => html("td", {
    class: isUnderlined(strength[i]) ? "cell n" : "cell", style: { background: colour(strength[i]) },
    title: `${visibleText(marks[i])} ${scoreText(score, isSigned)}`,
  }, html("span", { class: "sr", text: scoreText(score, isSigned) }))));
}

// The largest |score| of rows, special tokens aside: a scale that all of them can share.
export function commonScale(marks, rows) {
  return Math.max(...rows.flatMap((scores) => scores.map((score, i) => (marks[i].special ? 0 : Math.abs(score)))), 0)
    || Math.max(...rows.flat().map(Math.abs), 0) || 1;
}

export const scaleText = (scale) => `full colour: ${signed(scale).slice(1)} in every row`;
