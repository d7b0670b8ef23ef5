// An answer of which any part can be chosen: the prompt lights up. Text enters as text, never as markup.
"use strict";
const drawAnswer = (data) => {
  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const signed = (v) => (v > 0 ? "+" : v < 0 ? "−" : "") + Math.abs(v).toFixed(Math.abs(v) >= 0.0995 ? 2 : 4);
  const percent = (v) => (v < 0 ? "−" : "") + Math.abs(100 * v).toFixed(0) + " %";
  const place = (id) => document.getElementById(id);
  let through = false;
  let [first, last] = data.chosen;

  // The answer: a click takes a word, a sweep or Shift-click several.
  const wordOf = data.tokens.map((_, token) => data.words.find(([a, b]) => a <= token && token < b) || [token, token + 1]);
  const spans = data.tokens.map(([text, p, other, q], token) =>
    make("span", {
      textContent: text,
      title: `${(100 * p).toFixed(1)} %; runner-up or compared with ${JSON.stringify(other)} ${(100 * q).toFixed(1)} %`,
    }),
  );
  place("answer").replaceChildren(...spans);
  const tokenAt = (event) => {
    const under = document.elementFromPoint(event.clientX, event.clientY);
    return spans.indexOf(under);
  };
  let anchor = null;
  const extend = (token) => {
    const [a, b] = wordOf[anchor];
    const [c, d] = wordOf[token];
    choose(Math.min(a, c), Math.max(b, d));
  };
  place("answer").onpointerdown = (event) => {
    const token = tokenAt(event);
    if (token < 0) return;
    if (!event.shiftKey || anchor === null) anchor = token;
    extend(token);
    event.preventDefault();
    place("answer").focus();
  };
  place("answer").onpointermove = (event) => {
    if (!(event.buttons & 1) || anchor === null) return;
    const token = tokenAt(event);
    if (token >= 0) extend(token);
  };
  place("answer").onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !data.words.length) return;
    event.preventDefault();
    let at = data.words.findIndex(([a, b]) => a <= first && first < b);
    at = Math.min(data.words.length - 1, Math.max(0, at < 0 ? 0 : at + step));
    anchor = data.words[at][0];
    choose(...data.words[at]);
  };

  // Choices: the whole answer, its sentences, and whether relevance is handed on.
  const choices = [["whole answer", 0, data.tokens.length]];
  if (data.sentences.length > 1)
    for (const [a, b, text] of data.sentences) choices.push([text.length > 40 ? text.slice(0, 39) + "…" : text, a, b]);
  const buttons = choices.map(([text, a, b]) =>
    make("button", { type: "button", textContent: text, onclick: () => choose(a, b) }),
  );
  place("choices").replaceChildren(...buttons);
  let handing = null;
  if (data.through) {
    handing = make("button", { type: "button", textContent: "through earlier answer tokens" });
    handing.title = "Relevance on earlier tokens of the answer is handed on to what caused them.";
    handing.onclick = () => {
      through = !through;
      draw();
    };
    place("choices").append(handing);
  }

  // Parts as cards, in the order of the prompt, the template between them.
  const pieces = data.units.map(() => null);
  const cards = [];
  place("parts").replaceChildren();
  {
    let at = 0;
    let card = null;
    data.units.forEach(([start, end, field, word, group, text], unit) => {
      if (!card || card.field !== field) {
        const known = data.parts.find((part) => part[0] === field);
        card = { field, template: !known, units: [], heat: make("div", { className: "heat" }) };
        card.share = make("b");
        card.bar = make("i");
        const title = known && known[1] ? `${field}: ${known[1]}` : field;
        card.node = known
          ? make("section", { className: "part" }, make("h2", {}, title, card.share), make("div", { className: "track" }, card.bar), card.heat)
          : make("section", { className: "part template" }, card.heat);
        cards.push(card);
        place("parts").append(card.node);
      }
      if (start !== null && start > at) card.heat.append(data.prompt.slice(at, start));
      const node = make("span", { className: "u", textContent: start === null ? text : data.prompt.slice(Math.max(start, at), end) });
      card.heat.append(node);
      card.units.push(unit);
      pieces[unit] = node;
      if (end !== null) at = Math.max(at, end);
    });
  }

  const NAMES = {
    prompt: "the prompt's parts",
    answer: "earlier tokens of the answer",
    residual: "residual of handed-on relevance",
    normaliser: "normaliser of the log-probability",
  };

  const choose = (a, b) => {
    [first, last] = [a, b];
    draw();
  };

  const draw = () => {
    const rows = (through ? data.through : data.rows).slice(first, last);
    spans.forEach((node, token) => node.classList.toggle("on", first <= token && token < last));
    buttons.forEach((node, i) => node.setAttribute("aria-pressed", choices[i][1] === first && choices[i][2] === last));
    if (handing) handing.setAttribute("aria-pressed", through);
    const values = data.units.map((_, unit) => rows.reduce((sum, row) => sum + row.values[unit], 0));
    const output = rows.reduce((sum, row) => sum + row.output, 0);

    // tokens of a word share their sum
    const words = new Map();
    data.units.forEach(([, , , word], unit) => {
      if (word !== null) words.set(word, (words.get(word) || 0) + values[unit]);
    });
    const shown = data.units.map(([, , , word], unit) => (word === null ? values[unit] : words.get(word)));
    const inPrompt = (unit) => data.units[unit][4] === "prompt";
    const scale = Math.max(1e-30, ...shown.filter((_, unit) => inPrompt(unit)).map(Math.abs));
    shown.forEach((score, unit) => {
      const strength = Math.max(-1, Math.min(1, score / scale));
      const node = pieces[unit];
      const tint = strength > 0 ? "for" : "against";
      node.style.background = Math.abs(strength) < 0.02 ? "" : `rgba(var(--${tint}),${(0.85 * Math.abs(strength)).toFixed(2)})`;
      node.classList.toggle("n", strength < -0.05);
      node.title = `${signed(score)}${data.units[unit][4] === "first token" ? ", the first token: not ranked" : ""}`;
    });

    const sums = new Map();
    for (const card of cards.filter((one) => !one.template)) {
      const own = card.units.filter(inPrompt).reduce((sum, unit) => sum + values[unit], 0);
      sums.set(card.field, (sums.get(card.field) || 0) + own);
    }
    const size = [...sums.values()].reduce((sum, v) => sum + Math.abs(v), 0) || 1;
    for (const card of cards.filter((one) => !one.template)) {
      const share = sums.get(card.field) / size;
      card.share.textContent = percent(share);
      card.bar.style.width = `${(100 * Math.abs(share)).toFixed(1)}%`;
      card.bar.style.background = `rgb(var(--${share < 0 ? "against" : "for"}))`;
    }

    const text = data.tokens.slice(first, last).map(([piece]) => piece).join("").trim();
    place("what").textContent = `“${text}”: ${data.what}, ${signed(output)}`;
    const lines = new Map();
    for (const row of rows)
      for (const [name, value] of Object.entries(row.lines)) lines.set(name, (lines.get(name) || 0) + value);
    const total = [...lines.values()].reduce((sum, v) => sum + v, 0);
    const entry = (name, value, kind = "") =>
      make("tr", { className: kind }, make("td", { textContent: name }), make("td", { className: "num", textContent: signed(value) }));
    const ledger = lines.size
      ? [...[...lines].filter(([, value]) => value !== 0).map(([name, value]) => entry(NAMES[name] || name, value)), entry("rounding", output - total)]
      : [];
    place("ledger").replaceChildren(make("tbody", {}, ...ledger, entry("total", output, "total")));
  };
  draw();
};
// a file of its own has its data in it; the served page calls this when an answer has come
const embedded = document.getElementById("data");
if (embedded) drawAnswer(JSON.parse(embedded.textContent));
else window.drawAnswer = drawAnswer;
