// What the page shows, and its place in the address.

export const state = {
  model: "", text: "", image: null, method: "lrp", target: null, against: null,
  truncate: false, removed: [], tab: "",
};
const LONGEST_IMAGE = 8000; // letters of base64 that an address may hold

export function question(more = {}) {
  const { model, method, target, against, truncate } = state;
  const given = state.image ? { image: state.image } : { text: state.text };
  return { model, method, target, against, truncate, ...given, ...more };
}

export function written() {
  const parts = new URLSearchParams();
  parts.set("model", state.model);
  if (state.image) {
    if (state.image.length <= LONGEST_IMAGE) parts.set("image", state.image);
  } else parts.set("text", state.text);
  if (state.method !== "lrp") parts.set("method", state.method);
  if (state.target !== null) parts.set("target", state.target);
  if (state.against !== null) parts.set("against", state.against);
  if (state.truncate) parts.set("cut", "1");
  if (state.removed.length) parts.set("without", state.removed.join("."));
  if (state.tab) parts.set("look", state.tab);
  return `#${parts}`;
}

export function read(fragment, about) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  const model = about.models.find((each) => each.name === parts.get("model")) ?? about.models[0];
  const index = (name) => (/^\d+$/.test(parts.get(name) ?? "") ? Number(parts.get(name)) : null);
  const known = about.methods.some((each) => each.name === parts.get("method"));
  const sees = model.takes === "image";
  Object.assign(state, {
    model: model.name,
    text: sees ? "" : parts.get("text") ?? model.examples[0] ?? "",
    image: sees ? parts.get("image") : null,
    method: known ? parts.get("method") : "lrp",
    target: index("target"),
    against: index("against"),
    truncate: parts.get("cut") === "1",
    removed: (parts.get("without") ?? "").split(".").filter((n) => /^\d+$/.test(n)).map(Number),
    tab: ["compare", "curve", "layers", "attention"].includes(parts.get("look")) ? parts.get("look") : "",
  });
}
