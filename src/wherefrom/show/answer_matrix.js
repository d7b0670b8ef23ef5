// The matrix of an answer: its tokens × the words of the prompt with most relevance, then earlier tokens of the answer.
"use strict";
const drawMatrix = (data, rows, place, choose) => {
  const SIDE = 15;
  const MOST = 60; // columns of the prompt
  const svg = (tag, { style = "", ...props } = {}, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
    if (style) node.style.cssText = style; // the page allows no style attribute in markup
    node.append(...children);
    return node;
  };
  const short = (text) => {
    const line = text.trim().replace(/\s+/g, " ") || "␣";
    return line.length > 16 ? line.slice(0, 15) + "…" : line;
  };

  // Columns: an image is one, and so is a word.
  const found = new Map();
  data.units.forEach(([start, end, field, word, group, text], unit) => {
    if (group !== "prompt" && group !== "image") return;
    const key = group === "image" ? field : word === null ? `unit ${unit}` : word;
    if (!found.has(key)) found.set(key, { text: "", units: [] });
    const column = found.get(key);
    column.units.push(unit);
    column.text = group === "image" ? field : column.text + (start === null ? text : data.prompt.slice(start, end));
  });
  const all = [...found.values()].filter(({ text }) => text.trim());
  for (const column of all) {
    column.values = rows.map((row) => column.units.reduce((sum, unit) => sum + row.values[unit], 0));
    column.size = column.values.reduce((sum, value) => sum + Math.abs(value), 0);
  }
  const kept = new Set([...all].sort((a, b) => b.size - a.size).slice(0, MOST));
  const prompt = all.filter((column) => kept.has(column));
  const earlier = data.tokens.slice(0, -1).map(([text], token) => ({
    text, values: rows.map((row) => row.values[data.start + token]),
  }));
  const columns = [...prompt, ...earlier];
  const sizes = rows.map((_, i) => all.reduce((sum, { values }) => sum + Math.abs(values[i]), 0) || 1);
  const share = (column, i) => column.values[i] / sizes[i];
  let most = 1e-30; // colours are scaled to the prompt: tokens next to each other would outshine it
  for (const column of prompt) rows.forEach((_, i) => { most = Math.max(most, Math.abs(share(column, i))); });

  const letters = (texts) => Math.max(1, ...texts.map((text) => short(text).length));
  const left = 7 * letters(data.tokens.map(([text]) => text)) + 10;
  const top = 7 * letters(columns.map(({ text }) => text)) + 10;
  const width = left + SIDE * columns.length + (earlier.length ? 6 : 0) + 2;
  const height = top + SIDE * rows.length + 2;
  const x = (i) => left + SIDE * i + (i >= prompt.length ? 6 : 0);
  const picture = svg("svg", {
    class: "matrix", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Relevance / Σ |relevance| of the prompt for each answer token: words of the prompt, then earlier tokens of the answer",
  });
  columns.forEach((column, i) => {
    picture.append(svg("text", {
      transform: `translate(${x(i) + 11} ${top - 5}) rotate(-90)`, class: i < prompt.length ? "" : "earlier",
    }, short(column.text)));
  });
  const bands = data.tokens.map(([text], token) => {
    const y = top + SIDE * token;
    const band = svg("g", { class: "row" });
    band.append(
      svg("rect", { class: "band", x: 0, y, width: left - 3, height: SIDE }),
      svg("text", { x: left - 6, y: y + 11, "text-anchor": "end" }, short(text)),
    );
    columns.forEach((column, i) => {
      if (i >= prompt.length && i - prompt.length >= token) return; // not yet written
      const value = share(column, token);
      const strength = Math.min(1, Math.abs(value) / most);
      const cell = svg("rect", {
        x: x(i), y, width: SIDE - 1, height: SIDE - 1, rx: 2,
        style: strength < 0.02 ? "fill:var(--cell)" : `fill:rgba(var(--${data.signed ? (value < 0 ? "against" : "for") : "strength"}),${strength.toFixed(2)})`,
      });
      cell.append(svg("title", {}, `${short(text)} ← ${short(column.text)}: ${(100 * value).toFixed(0)} %`));
      band.append(cell);
    });
    band.addEventListener("click", () => choose(token, token + 1));
    picture.append(band);
    return band;
  });
  place.replaceChildren(picture);
  return {
    mark: (first, last) => bands.forEach((band, token) => band.classList.toggle("on", first <= token && token < last)),
    note: `${prompt.length < all.length ? `${prompt.length} of ${all.length} words` : "words"} of the prompt${earlier.length ? ", then earlier tokens of the answer" : ""}; colours are shares: relevance / Σ |relevance| of the prompt`,
  };
};
