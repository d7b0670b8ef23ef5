// The classes with their probabilities, and how removed units change them.

import { html, percent, plural, setChildren, signed } from "./dom.js";

// A line on each bar marks the probability before units were removed. Without `select` a class cannot be chosen.
export function showPrediction(box, before, now, target, select = null) {
  const outputsBefore = new Map(before.outputs.map((output) => [output.index, output]));
  const rank = (output) => (outputsBefore.get(output.index) ?? output).output;
  const outputs = [...now.outputs].sort((a, b) => rank(b) - rank(a));
  box.classList.toggle("two-columns", outputs.length > 4);
  setChildren(box, outputs.map(({ index, label, output, probability }) => {
    const probabilityBefore = outputsBefore.get(index)?.probability ?? null;
    const bar = html("span", { class: "probability-bar", "aria-hidden": "true" },
      html("i", { style: { width: `${100 * (probability ?? 0)}%` } }));
    if (now !== before && probabilityBefore !== null) {
      bar.append(html("b", { style: { left: `${100 * probabilityBefore}%` }, title: `before: ${percent(probabilityBefore)}` }));
    }
    const className = index === target ? "class-row selected" : "class-row";
    const [tag, attributes] = select === null
      ? ["div", { title: `output ${signed(output)}` }]
      : ["button", {
        type: "button", "data-class": index, "aria-pressed": String(index === target),
        title: `output ${signed(output)}; click to explain this class`, on: { click: () => select(index) },
      }];
    return html(tag, { class: className, ...attributes },
      html("span", { class: "label", dir: "auto", text: label }), bar,
      html("span", { class: "num", text: probability === null ? signed(output) : percent(probability) }));
  }));
}

// The menus for the class to explain and the class to contrast it with.
export function showClassMenus(targetMenu, againstMenu, outputs, state, resolvedTarget) {
  const options = (none) => [
    html("option", { value: "", text: none }),
    ...outputs.map(({ index, label }) => html("option", { value: index, text: label })),
  ];
  setChildren(targetMenu, options("the most likely class"));
  setChildren(againstMenu, options("no other class"));
  targetMenu.value = state.target === null ? "" : String(state.target);
  againstMenu.value = state.against === null ? "" : String(state.against);
  for (const option of againstMenu.options) option.disabled = option.value === String(resolvedTarget);
}

// The score of the removed units, and the measured effect of removing them: two quantities that can differ.
export function showRemoval(box, { before, now, target, noun, names, score, restore }) {
  const effect = now.output - now.output_before;
  const probability = ({ outputs }) => outputs.find((output) => output.index === target.index)?.probability ?? null;
  const [probabilityBefore, probabilityNow] = [probability(before), probability(now)];
  const label = before.outputs.find((output) => output.index === target.index)?.label ?? target.label;
  const summary = probabilityBefore === null || probabilityNow === null
    ? label : `${label}: ${percent(probabilityBefore)} → ${percent(probabilityNow)}`;
  const largest = Math.max(Math.abs(effect), Math.abs(score ?? 0)) || 1;
  const changes = [["effect when removed", effect]];
  if (score !== null) changes.unshift(["score", score]);
  setChildren(box,
    html("p", {}, "Without ", ...names.flatMap((name, i) => [i ? ", " : "", html("q", { dir: "auto", text: name })]),
      `, ${summary} `, html("button", { type: "button", class: "pill", text: "restore all", on: { click: restore } })),
    html("table", { class: "changes" }, changes.map(([name, value]) => {
      const width = (50 * Math.abs(value)) / largest;
      return html("tr", {},
        html("td", { text: name }), html("td", { class: "num", text: signed(value) }),
        html("td", { class: "bar" },
          html("i", {
            class: value < 0 ? "against" : "for",
            style: { width: `${width}%`, left: `${value < 0 ? 50 - width : 50}%` },
          }),
          html("u", {})));
    })),
    html("p", { class: "dim", text: score === null
      ? `The scores of this method rank the ${plural(noun)}; they are not parts of the output.`
      : "The score is a part of the output; the effect when removed is measured by running the model without it. They can differ." }));
}
