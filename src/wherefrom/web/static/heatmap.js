// A heatmap: the tokens of a text, the patches of an image or the atoms of a molecule, coloured by score.

import { enableArrowKeys, html, signed, svg } from "./dom.js";

const MAX_NUMBERS = 400; // units of a picture whose scores can be written on it
const UNDERLINED = -0.05; // weaker negative scores are neither underlined nor hatched

// Scores divided by `scale`: by default the largest of a unit that is not a special token, as the
// library's reports do.
export function strengths(marks, scores, scale = null) {
  const ordinary = marks.map((mark, i) => (mark.special ? 0 : Math.abs(scores[i])));
  const divisor = scale || Math.max(...ordinary, 0) || Math.max(...scores.map(Math.abs), 0) || 1;
  return scores.map((score) => Math.max(-1, Math.min(1, score / divisor)));
}

// What the colours mean: `sides` says it of positive and negative scores, `scale` is the full colour.
export function key({ sides }, scene, scale, isSigned = true) {
  if (!isSigned) {
    const full = html("span", { text: `full colour: a score of ${signed(scale).slice(1)}` });
    return [html("span", { class: "unsigned" }, html("b", { class: "u for", text: "green" }), " strength, without a sign"), full];
  }
  const negative = hasShapes(scene) ? "blue, hatched" : "blue, underlined";
  return [
    html("span", {}, html("b", { class: "u for", text: "red" }), ` ${sides[0]}`),
    ...(sides[1] ? [html("span", {}, html("b", { class: "u against n", text: negative }), ` ${sides[1]}`)] : []),
    html("span", { text: `full colour: a score of ${signed(scale).slice(1)}` }),
  ];
}

export const isUnderlined = (strength) => strength < UNDERLINED;
export const opacity = (strength) => (0.75 * Math.abs(strength)).toFixed(3); // text on the full colour can be read

export function colour(strength) {
  if (Math.abs(strength) < 0.02) return "transparent";
  return `rgba(var(--${strength > 0 ? "for" : "against"}),${opacity(strength)})`;
}

// The shapes of units that are not text, in the coordinates of the scene.
const SHAPES = {
  image: ({ units, scene }) => units.map(({ box }) => {
    const [left, top, right, bottom] = box ?? [0, 0, scene.width, scene.height];
    return ["rect", { x: left, y: top, width: right - left, height: bottom - top }];
  }),
  superpixels: ({ scene }) => scene.paths.map((d) => ["path", { d }]),
  molecule: ({ scene }) => {
    const distances = scene.points.flatMap(([a, b], i) => scene.points.slice(0, i).map(([c, d]) => Math.hypot(a - c, b - d)));
    const r = 0.52 * Math.min(...distances, 115);
    return scene.points.map(([cx, cy]) => ["circle", { cx, cy, r }]);
  },
};

export const hasShapes = (scene) => (scene?.kind ?? "") in SHAPES;
export const unitShapes = ({ units, scene }) => SHAPES[scene.kind]({ units, scene });

// The image or the structural formula that a scene contains.
export function sceneImage(scene, className = "") {
  const source = scene.kind === "molecule" ? `svg+xml;base64,${scene.svg}` : `png;base64,${scene.png}`;
  return svg("image", {
    href: `data:image/${source}`, width: scene.width, height: scene.height,
    preserveAspectRatio: "none", class: className, "pointer-events": "none",
  });
}

// `options` is {marks, scores, scene, units, isSigned?, scale?, changed?, named?, removed?, toggle?, note?, small?}: units
// in the set `changed` are outlined, atoms in the set `named` have their names, `toggle(i)` is called when a unit is clicked, `note(i)` returns the text
// shown when the mouse points at it.
export function heatmap(options) {
  return hasShapes(options.scene) ? sceneHeatmap(options) : textHeatmap(options);
}

function textHeatmap(options) {
  const { marks, removed = [], toggle, isSigned = true, small } = options;
  const box = html("div", { class: `heat${small ? " small" : ""}${isSigned ? "" : " unsigned"}`, dir: direction(marks) });
  const look = textLook(options);
  const removedSet = new Set(removed);
  marks.forEach((mark, i) => {
    const span = html("span", { ...look(i), text: visibleText(mark), ...(toggle && toggleAttributes(i, removedSet.has(i), toggle)) });
    box.append(mark.gap, span);
  });
  if (toggle) enableArrowKeys(box, "[role=button]");
  return box;
}

// The attributes of the span of each unit: its colour, its marks, and its score as a note.
export function textLook({ marks, scores, scale, changed, removed = [], isSigned = true, note = (i) => scoreText(scores[i], isSigned) }) {
  const strength = strengths(marks, scores, scale);
  const removedSet = new Set(removed);
  return (i) => {
    const isRemoved = removedSet.has(i);
    const classes = ["u"];
    if (marks[i].special) classes.push("s");
    if (changed?.has(i)) classes.push("changed");
    if (isRemoved) classes.push("removed");
    else {
      if (isUnderlined(strength[i])) classes.push("n");
      if (Math.abs(strength[i]) > 0.15) classes.push("strong");
    }
    return {
      class: classes.join(" "), title: isRemoved ? `${note(i)}, removed` : note(i),
      "data-score": Math.abs(strength[i]) >= 0.05 && !isRemoved ? shortNumber(scores[i], isSigned) : null,
      style: isRemoved ? {} : { background: colour(strength[i]) },
    };
  };
}

// A score in two digits, as the library's pages write it beside a unit.
const shortNumber = (score, isSigned = true) =>
  (score < 0 ? "−" : isSigned ? "+" : "") + String(Number(Math.abs(score).toPrecision(2)));

export const scoreText = (score, isSigned) => (isSigned ? signed(score) : signed(score).slice(1));

export const visibleText = (mark) => mark.text.replaceAll("\n", "⏎") || "·";

// Spans rather than buttons: a button would break up text that runs in both directions. Their name is the text, and
// their description the score, so that both are read once.
export function toggleAttributes(i, isRemoved, toggle, isFirst = i === 0) {
  return {
    role: "button", tabindex: isFirst ? 0 : -1, "data-unit": i, "aria-pressed": String(isRemoved),
    on: {
      click: () => toggle(i),
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle(i);
      },
    },
  };
}

// The direction of the first letter that is not in a special token.
function direction(marks) {
  const text = marks.filter((mark) => !mark.special).map((mark) => mark.text).join("");
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(text.match(/\p{L}/u)?.[0] ?? "") ? "rtl" : "ltr";
}

// The scores as text on the shapes, shown when numbers are switched on.
function sceneNumbers({ units, scene, scores, strength, removedSet, isSigned }) {
  const size = scene.width / Math.max(14, 3.8 * Math.sqrt(units.length));
  return svg("g", { class: "values", "font-size": size, "text-anchor": "middle", "pointer-events": "none" },
    unitShapes({ units, scene }).flatMap(([tag, shape], i) => {
      if (tag === "path" || removedSet.has(i) || Math.abs(strength[i]) < 0.05) return [];
      return [svg("text", { x: shape.x + shape.width / 2, y: shape.y + shape.height / 2 + size / 3, text: shortNumber(scores[i], isSigned) })];
    }));
}

// The atoms that the sentence names; when numbers are switched on, all with their scores.
function atomNames({ units, scene, scores, strength, named, removedSet, isSigned }) {
  const circles = unitShapes({ units, scene });
  const { r } = circles[0][1];
  const labels = (className, text) => svg("g", { class: className, "font-size": 0.6 * r, "text-anchor": "middle", "pointer-events": "none" },
    circles.flatMap(([, { cx, cy }], i) => (removedSet.has(i) ? [] : text(`${units[i].text}${i + 1}`, cx, cy, i))));
  return [
    labels("names", (name, x, y) => (named?.has(name) ? [svg("text", { x, y: y - 0.6 * r, text: name })] : [])),
    labels("values", (name, x, y, i) => (Math.abs(strength[i]) < 0.05 ? []
      : [svg("text", { x, y, text: name }, svg("tspan", { x, dy: "1em", text: shortNumber(scores[i], isSigned) }))])),
  ];
}

let patternCount = 0; // every heatmap needs its own pattern id

function sceneHeatmap({ marks, scores, scene, units, scale, named, removed = [], toggle, isSigned = true, note = (i) => scoreText(scores[i], isSigned), small }) {
  const removedSet = new Set(removed);
  const strength = strengths(marks, scores, scale);
  const hatch = `hatch${++patternCount}`;
  const isMolecule = scene.kind === "molecule"; // its formula is drawn above the colours
  const step = scene.width / (isMolecule ? 70 : 14);
  const box = svg("svg", {
    class: `image ${scene.kind}${small ? " small" : ""}${isSigned ? "" : " unsigned"}`, viewBox: `0 0 ${scene.width} ${scene.height}`,
    role: toggle ? "group" : "img", "aria-label": "the input with its heatmap",
  }, svg("defs", {}, svg("pattern", {
    id: hatch, width: step, height: step, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  }, svg("rect", { width: step / 4, height: step, class: "hatch" }))),
  isMolecule ? svg("rect", { width: scene.width, height: scene.height, fill: "#fff" }) : sceneImage(scene, "under"));
  unitShapes({ units, scene }).forEach(([tag, shape], i) => {
    const isRemoved = removedSet.has(i);
    box.append(svg(tag, {
      ...shape, class: isRemoved ? "cell removed" : "cell",
      style: isRemoved ? {} : { fill: colour(strength[i]) },
      ...(toggle && toggleAttributes(i, isRemoved, toggle)),
    }, svg("title", { text: `${units[i].text}, ${note(i)}` })));
    if (isUnderlined(strength[i]) && !isRemoved) {
      box.append(svg(tag, { ...shape, fill: `url(#${hatch})`, "pointer-events": "none" }));
    }
  });
  if (isMolecule) box.append(sceneImage(scene));
  if (!small && isMolecule) box.append(...atomNames({ units, scene, scores, strength, named, removedSet, isSigned }));
  else if (!small && units.length <= MAX_NUMBERS) box.append(sceneNumbers({ units, scene, scores, strength, removedSet, isSigned }));
  if (toggle) enableArrowKeys(box, ".cell");
  return box;
}
