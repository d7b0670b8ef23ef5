// A heatmap: the pieces of a text, or the cells of an image, coloured by their strength.

import { el, roving, signed, svg } from "./dom.js";

// The strongest piece that is no special token has strength ±1, as the library has it.
export function strengths(marks, scores) {
  const plain = marks.map((mark, i) => (mark.special ? 0 : Math.abs(scores[i])));
  const scale = Math.max(...plain, 0) || Math.max(...scores.map(Math.abs), 0) || 1;
  return scores.map((score) => Math.max(-1, Math.min(1, score / scale)));
}

export function shade(strength) {
  const size = Math.abs(strength);
  if (size < 0.02) return "transparent";
  return `rgba(var(--${strength > 0 ? "for" : "against"}),${(0.85 * size).toFixed(3)})`;
}

// What units that are no text are drawn with, in the coordinates of the scene.
const SHAPES = {
  image: ({ units, scene }) => units.map(({ box }) => {
    const [left, top, right, bottom] = box ?? [0, 0, scene.width, scene.height];
    return ["rect", { x: left, y: top, width: right - left, height: bottom - top }];
  }),
  superpixels: ({ scene }) => scene.paths.map((d) => ["path", { d }]),
  molecule: ({ scene }) => {
    const apart = scene.points.flatMap(([a, b], i) => scene.points.slice(0, i).map(([c, d]) => Math.hypot(a - c, b - d)));
    const r = 0.52 * Math.min(...apart, 115);
    return scene.points.map(([cx, cy]) => ["circle", { cx, cy, r }]);
  },
};

export const drawn = (scene) => (scene?.kind ?? "") in SHAPES;
export const shapes = (shown) => SHAPES[shown.scene.kind](shown);

// The picture that a scene brings along.
export function seen(scene, kind = "") {
  const source = scene.kind === "molecule" ? `svg+xml;base64,${scene.svg}` : `png;base64,${scene.png}`;
  return svg("image", {
    href: `data:image/${source}`, width: scene.width, height: scene.height,
    preserveAspectRatio: "none", class: kind, "pointer-events": "none",
  });
}

// `shown` is {marks, scores, scene, units, removed?, toggle?, notes?, small?}.
export function heat(shown) {
  if (!drawn(shown.scene)) return sentence(shown);
  if (shown.small || shown.scene.kind === "molecule") return picture(shown);
  return el("div", { class: "pair" }, bare(shown), picture(shown));
}

function sentence({ marks, scores, removed = [], toggle, notes, small }) {
  const box = el("div", { class: `heat${small ? " small" : ""}`, dir: direction(marks) });
  const strong = strengths(marks, scores);
  const gone = new Set(removed);
  marks.forEach((mark, i) => {
    const kinds = ["u"];
    if (mark.special) kinds.push("s");
    if (strong[i] < -0.05 && !gone.has(i)) kinds.push("n");
    if (gone.has(i)) kinds.push("gone");
    if (Math.abs(strong[i]) > 0.6 && !gone.has(i)) kinds.push("strong");
    const note = notes ? notes(i) : signed(scores[i]);
    const style = gone.has(i) ? {} : { background: shade(strong[i]) };
    const text = mark.text.replaceAll("\n", "⏎") || "·";
    box.append(mark.gap);
    const shown = { class: kinds.join(" "), title: note, style, text };
    if (toggle) Object.assign(shown, pressed(i, gone.has(i), `${text}, ${note}`, toggle));
    box.append(el("span", shown));
  });
  if (toggle) roving(box, "[role=button]");
  return box;
}

// Spans rather than buttons: a button would stand in the way of text that runs both ways.
function pressed(i, gone, name, toggle) {
  return {
    role: "button", tabindex: i === 0 ? 0 : -1, "data-unit": i, "aria-pressed": String(gone),
    "aria-label": gone ? `${name}, taken out` : name,
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

// The way the text runs by its first letter; special tokens are no part of it.
function direction(marks) {
  const text = marks.filter((mark) => !mark.special).map((mark) => mark.text).join("");
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(text.match(/\p{L}/u)?.[0] ?? "") ? "rtl" : "ltr";
}

function bare({ scene }) {
  return svg("svg", { class: "image", viewBox: `0 0 ${scene.width} ${scene.height}`, role: "img", "aria-label": "the image as the model sees it" }, seen(scene));
}

let patterns = 0;

function picture(shown) {
  const { marks, scores, scene, units, removed = [], toggle, notes, small } = shown;
  const gone = new Set(removed);
  const strong = strengths(marks, scores);
  const hatch = `hatch${++patterns}`;
  const lines = scene.kind === "molecule"; // of a structure, which lie over its colours
  const step = scene.width / (lines ? 70 : 14);
  const box = svg("svg", {
    class: `image ${scene.kind}${small ? " small" : ""}`, viewBox: `0 0 ${scene.width} ${scene.height}`,
    role: "group", "aria-label": "the input with its heatmap",
  }, svg("defs", {}, svg("pattern", {
    id: hatch, width: step, height: step, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  }, svg("rect", { width: step / 4, height: step, class: "hatch" }))),
  lines ? svg("rect", { width: scene.width, height: scene.height, fill: "#fff" }) : seen(scene, "under"));
  shapes(shown).forEach(([tag, place], i) => {
    const note = notes ? notes(i) : signed(scores[i]);
    box.append(svg(tag, {
      ...place, class: gone.has(i) ? "cell gone" : "cell",
      style: gone.has(i) ? {} : { fill: shade(strong[i]) },
      ...(toggle && pressed(i, gone.has(i), `${units[i].text}, ${note}`, toggle)),
    }, svg("title", { text: note })));
    if (strong[i] < -0.05 && !gone.has(i)) {
      box.append(svg(tag, { ...place, fill: `url(#${hatch})`, "pointer-events": "none" }));
    }
  });
  if (lines) box.append(seen(scene));
  if (toggle) roving(box, ".cell");
  return box;
}
