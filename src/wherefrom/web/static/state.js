// The state of the page, and its form in the address.

export const TABS = ["compare", "layers", "attention", "curves", "check"];
export const state = {
  model: "", text: "", image: null, method: "auto", target: null, against: null,
  pair: null, // the second text of a pair; null: its field is not shown
  truncate: false, removed: [], tab: TABS[0], beside: "", numbers: false,
  off: [], // the methods that are not compared
  pinned: null, // the fields of a request that hold the pinned text
};
const MAX_IMAGE = 8000; // base64 characters of an image that the address may hold

// The body of a request about the current input.
export function requestBody(more = {}) {
  const { model, method, target, against, truncate } = state;
  const input = state.image ? { image: state.image } : textInput();
  return { model, method, target, against, truncate, ...input, ...more };
}

// The text as fields of a request; a second text that is empty is none.
export function textInput() {
  return { text: state.text, text_pair: state.pair?.trim() ? state.pair : null };
}

// Whether a text is pinned that differs from the present one.
export function isPinned() {
  const { pinned } = state;
  const now = textInput();
  return pinned !== null && (pinned.text !== now.text || pinned.text_pair !== now.text_pair);
}

export function toFragment() {
  const fields = new URLSearchParams();
  fields.set("model", state.model);
  if (state.image) {
    if (state.image.length <= MAX_IMAGE) fields.set("image", state.image);
  } else fields.set("text", state.text);
  if (state.pair !== null) fields.set("pair", state.pair);
  if (state.method !== "auto") fields.set("method", state.method);
  if (state.target !== null) fields.set("target", state.target);
  if (state.against !== null) fields.set("against", state.against);
  if (state.truncate) fields.set("truncate", "1");
  if (state.removed.length) fields.set("removed", state.removed.join("."));
  if (state.tab !== TABS[0]) fields.set("tab", state.tab);
  if (state.off.length) fields.set("off", state.off.join("."));
  if (state.beside) fields.set("beside", state.beside);
  if (state.pinned !== null) {
    fields.set("pinned", state.pinned.text);
    if (state.pinned.text_pair !== null) fields.set("pinned_pair", state.pinned.text_pair);
  }
  if (state.numbers) fields.set("numbers", "1");
  return `#${fields}`;
}

export function readFragment(fragment, about) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const isNumber = (text) => /^\d+$/.test(text);
  const index = (name) => (isNumber(fields.get(name) ?? "") ? Number(fields.get(name)) : null);
  const model = about.models.find(({ name }) => name === fields.get("model")) ?? about.models[0];
  const takesImages = model.input_kind === "image";
  Object.assign(state, {
    model: model.name,
    text: takesImages ? "" : fields.get("text") ?? model.examples[0] ?? "",
    image: takesImages ? fields.get("image") : null,
    pair: model.takes_pairs ? fields.get("pair") : null,
    method: about.methods.some(({ name }) => name === fields.get("method")) ? fields.get("method") : "auto",
    target: index("target"),
    against: index("against"),
    truncate: fields.get("truncate") === "1",
    removed: (fields.get("removed") ?? "").split(".").filter(isNumber).map(Number),
    tab: TABS.includes(fields.get("tab")) ? fields.get("tab") : TABS[0],
    off: (fields.get("off") ?? "").split(".").filter((name) => about.methods.some((method) => method.name === name)),
    beside: fields.get("beside") ?? "", // a menu of this page's models checks it
    pinned: takesImages || !fields.has("pinned") ? null : { text: fields.get("pinned"), text_pair: fields.get("pinned_pair") },
    numbers: fields.get("numbers") === "1",
  });
}
