// Elements built without markup, so text always stays text; numbers as the page shows them.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function html(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, { on = {}, style = {}, text, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const [name, value] of Object.entries(style)) node.style.setProperty(name, value);
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  if (text !== undefined) node.textContent = text;
  node.append(...withoutNulls(children));
  return node;
}

export function setChildren(node, ...children) {
  node.replaceChildren(...withoutNulls(children));
  return node;
}

const withoutNulls = (children) => children.flat().filter((child) => child !== null && child !== undefined);

// A number as the library's reports show it.
export function signed(value) {
  const size = Math.abs(value);
  const sign = value < 0 || Object.is(value, -0) ? "−" : "+";
  if (size >= 1000) return sign + size.toFixed(1);
  if (size >= 0.0005 || size === 0) return sign + size.toFixed(3);
  return sign + size.toExponential(0).replace(/-(\d)$/, "-0$1");
}

export function percent(fraction) {
  const value = 100 * fraction;
  if (value > 99.95 && value < 100) return ">99.9\u00a0%";
  if (value < 0.05 && value > 0) return "<0.1\u00a0%";
  return `${value.toFixed(1)}\u00a0%`;
}

// Layers count from 1: "encoder.layer.0" is layer 1.
export const layerName = (name) => name.replace(/^.*\.(\d+)$/, (_, number) => `layer ${Number(number) + 1}`);

export const duration = (seconds) => (seconds < 1 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${seconds.toFixed(1)} s`);

export const plural = (noun) => noun + (/(s|ch)$/.test(noun) ? "es" : "s");

export const sum = (values) => values.reduce((total, value) => total + value, 0);

// Arrow keys move the focus within a group, of which the tab key reaches one element only.
export function enableArrowKeys(group, selector) {
  group.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const elements = [...group.querySelectorAll(selector)];
    const current = elements.indexOf(document.activeElement);
    if (current < 0) return;
    let next = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : null;
    if (event.key in steps) next = (current + steps[event.key] + elements.length) % elements.length;
    if (next === null) return;
    event.preventDefault();
    for (const element of elements) element.setAttribute("tabindex", "-1");
    elements[next].setAttribute("tabindex", "0");
    elements[next].focus();
  });
}
