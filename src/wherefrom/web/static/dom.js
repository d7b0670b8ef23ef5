// Elements, made without any markup: text is only ever text.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function el(tag, given = {}, ...children) {
  return filled(document.createElement(tag), given, children);
}

export function svg(tag, given = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), given, children);
}

function filled(node, { on = {}, style = {}, text, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const [name, value] of Object.entries(style)) node.style.setProperty(name, value);
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  if (text !== undefined) node.textContent = text;
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// A number as the library's own pages show it.
export function signed(value) {
  const size = Math.abs(value);
  const mark = value < 0 || Object.is(value, -0) ? "−" : "+";
  if (size >= 1000) return mark + size.toFixed(1);
  if (size >= 0.0005 || size === 0) return mark + size.toFixed(3);
  return mark + size.toExponential(0);
}

export function percent(share) {
  const shown = 100 * share;
  if (shown > 99.95 && shown < 100) return ">99.9 %";
  if (shown < 0.05 && shown > 0) return "<0.1 %";
  return `${shown.toFixed(1)} %`;
}

export const seconds = (s) => (s < 1 ? `${Math.max(1, Math.round(1000 * s))} ms` : `${s.toFixed(1)} s`);

// Arrow keys move among buttons of which one is in the order of the tab key.
export function roving(box, query) {
  box.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const all = [...box.querySelectorAll(query)];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    let next = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : null;
    if (event.key in steps) next = (at + steps[event.key] + all.length) % all.length;
    if (next === null) return;
    event.preventDefault();
    for (const each of all) each.setAttribute("tabindex", "-1");
    all[next].setAttribute("tabindex", "0");
    all[next].focus();
  });
}
