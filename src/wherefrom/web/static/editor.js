// The text fields. A layer behind each colours its text in place; the caret or a selection chooses words.

import { html, setChildren } from "./dom.js";
import { state } from "./state.js";

const fields = ["text", "pair"].map((id) => ({ id, box: document.getElementById(id), text: "", pieces: [] }));

// Colours the fields. Units have their places in code points of the whole `text`, where the second text follows the
// first and a line break; `look(i)` returns the attributes of the span of a unit.
export function paint(text, units, look) {
  const whole = state.pair?.trim() ? `${state.text}\n${state.pair}` : state.text;
  let start = 0;
  for (const field of fields) {
    const value = state[field.id] ?? "";
    field.text = value;
    field.pieces = [];
    const letters = [...value].length;
    if (text && whole.startsWith(text)) { // a text that was cut is the beginning
      units.forEach((unit, i) => {
        if (unit.start === null || unit.start < start || unit.end > start + letters) return;
        field.pieces.push({ i, word: unit.word, start: unit.start - start, end: unit.end - start, look: look(i) });
      });
    }
    start += letters + 1;
    draw(field);
  }
}

// The field's text in pieces, those of the units with their colour. What was typed since keeps no colour.
function draw(field) {
  const letters = [...field.box.value];
  const old = [...field.text];
  let same = 0;
  while (same < Math.min(old.length, letters.length) && old[same] === letters[same]) same += 1;
  let tail = 0;
  while (tail < Math.min(old.length, letters.length) - same && old.at(-1 - tail) === letters.at(-1 - tail)) tail += 1;
  const shift = letters.length - old.length;
  const nodes = [];
  let at = 0;
  for (const { i, start, end, look } of field.pieces) {
    const moved = end <= same ? 0 : start >= old.length - tail ? shift : null;
    if (moved === null || start + moved < at) continue;
    const text = letters.slice(start + moved, end + moved).join("");
    nodes.push(letters.slice(at, start + moved).join(""), html("span", { ...look, "data-unit": i, text }));
    at = end + moved;
  }
  // a last line that is empty has a height only with a letter on it
  setChildren(field.box.previousElementSibling, ...nodes, `${letters.slice(at).join("")}\u200b`);
}

// Calls `onType` when a text changes, `onChoose` with the places of the chosen units of a field.
export function setUpEditor(onType, onChoose) {
  for (const field of fields) {
    field.box.addEventListener("input", () => {
      draw(field);
      onType();
    });
    // the colours are behind the field, and so are their notes
    field.box.addEventListener("mousemove", ({ clientX, clientY }) => {
      field.box.title = document.elementsFromPoint(clientX, clientY).find((node) => node.matches(".mirror .u"))?.title ?? "";
    });
  }
  document.addEventListener("selectionchange", () => {
    const field = fields.find(({ box }) => box === document.activeElement);
    if (field && field.box.value === field.text) onChoose(chosenUnits(field));
  });
}

// The units of the selection, or of the word at the caret.
function chosenUnits({ box, pieces }) {
  const [first, last] = [box.selectionStart, box.selectionEnd].map((end) => [...box.value.slice(0, end)].length);
  if (first < last) return pieces.filter(({ start, end }) => start < last && end > first).map(({ i }) => i);
  const piece = pieces.find(({ start, end }) => start <= first && first <= end);
  return piece ? pieces.filter(({ word, i }) => i === piece.i || (word !== null && word === piece.word)).map(({ i }) => i) : [];
}

// Shows the state in the fields.
export function showTexts() {
  for (const field of fields) {
    const value = state[field.id] ?? "";
    if (field.box.value !== value) field.box.value = value;
    draw(field);
  }
}

export const typedTexts = () => ({ text: fields[0].box.value, pair: state.pair === null ? null : fields[1].box.value });
