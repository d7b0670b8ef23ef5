// The plain sentence above an explanation, in pieces that the server names.

import { html } from "./dom.js";

const TAGS = { label: ["strong", {}], for: ["em", { class: "for" }], against: ["em", { class: "against" }] };

// A percent sign stays on the line of its number.
export const joined = (text) => text.replaceAll(" %", "\u00a0%");

// The units that the sentence names.
export const namedUnits = (pieces) => new Set(pieces.filter(([kind]) => kind === "for" || kind === "against").map(([, text]) => text));

export function sentence(pieces) {
  return pieces.map(([kind, text]) => {
    if (!(kind in TAGS)) return joined(text);
    const [tag, attributes] = TAGS[kind];
    return html(tag, { ...attributes, dir: "auto", text });
  });
}
