// The classes with their probabilities; a mark shows where each stood before pieces were taken out.

import { el, fill, percent, signed } from "./dom.js";

export function showAnswer(box, before, now, target, choose) {
  const stood = new Map(before.outputs.map((each) => [each.index, each]));
  const rows = [...now.outputs].sort((a, b) => rank(stood, b) - rank(stood, a));
  box.classList.toggle("many", rows.length > 4);
  fill(box, rows.map((each) => {
    const share = each.probability ?? 0;
    const old = stood.get(each.index)?.probability;
    const bar = el("span", { class: "track", "aria-hidden": "true" },
      el("i", { style: { width: `${100 * share}%` } }));
    if (now !== before && old !== undefined && old !== null) {
      bar.append(el("b", { style: { left: `${100 * old}%` }, title: `before: ${percent(old)}` }));
    }
    const shown = each.probability === null ? signed(each.output) : percent(share);
    return el("button", {
      type: "button", class: each.index === target ? "class chosen" : "class",
      "data-class": each.index, "aria-pressed": String(each.index === target),
      title: `output ${signed(each.output)}; click to explain this class`,
      on: { click: () => choose(each.index) },
    }, el("span", { class: "label", dir: "auto", text: each.label }), bar, el("span", { class: "num", text: shown }));
  }));
}

const rank = (stood, each) => (stood.get(each.index) ?? each).output;

// Targets to choose from, and what to hold them against.
export function showTargets(target, against, outputs, state, settled) {
  const options = (none) => [
    none,
    ...outputs.map((each) => el("option", { value: each.index, text: each.label })),
  ];
  fill(target, options(el("option", { value: "", text: "the likeliest" })));
  fill(against, options(el("option", { value: "", text: "nothing" })));
  target.value = state.target === null ? "" : String(state.target);
  against.value = state.against === null ? "" : String(state.against);
  for (const option of against.options) option.disabled = option.value === String(settled);
}

// What taking pieces out did, beside what their relevance foretold.
export function showCheck(box, { now, before, label, names, foretold, back }) {
  const real = now.output - now.before;
  const share = (from) => from.outputs.find((each) => each.label === label)?.probability;
  const [was, is] = [share(before), share(now)];
  const moved = was === undefined || was === null || is === undefined ? "" : `: ${percent(was)} → ${percent(is)}`;
  const scale = Math.max(Math.abs(real), Math.abs(foretold ?? 0)) || 1;
  const bars = [["it really moved by", real]];
  if (foretold !== null) bars.unshift(["relevance foretold", foretold]);
  fill(box,
    el("p", {}, "Without ", ...names.flatMap((name, i) => [i ? ", " : "", el("q", { dir: "auto", text: name })]),
      `, ${label}${moved} `, el("button", { type: "button", class: "plain", text: "put all back", on: { click: back } })),
    el("table", { class: "moves" }, bars.map(([name, value]) => el("tr", {},
      el("td", { text: name }), el("td", { class: "num", text: signed(value) }),
      el("td", { class: "bar" }, el("i", {
        class: value < 0 ? "against" : "for",
        style: { width: `${(50 * Math.abs(value)) / scale}%`, left: `${value < 0 ? 50 - (50 * Math.abs(value)) / scale : 50}%` },
      }), el("u", {})),
    ))),
    foretold === null ? el("p", { class: "dim", text: "The scores of this method rank pieces; they are no amounts of the output, so they foretell no number." }) : null,
  );
}
