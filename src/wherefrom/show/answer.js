// An answer of which any part can be chosen: the prompt lights up. Text enters as text, never as markup.
"use strict";
const drawAnswer = (data) => {
  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const signed = (v) => { // as all pages write a number
    const size = Math.abs(v);
    const digits = size >= 1000 ? size.toFixed(1) : size >= 0.0005 || size === 0 ? size.toFixed(3) : size.toExponential(0).replace(/-(\d)$/, "-0$1");
    return (v < 0 || Object.is(v, -0) ? "−" : "+") + digits;
  };
  const percent = (v) => (v < 0 ? "−" : "") + Math.abs(100 * v).toFixed(0) + " %";
  const place = (id) => document.getElementById(id);
  const hue = (v) => (data.signed ? (v < 0 ? "against" : "for") : "strength");
  const scoreText = (v) => (data.signed ? signed(v) : signed(v).replace("+", ""));
  place("key").replaceChildren(
    ...data.key.map(([tint, name, meaning]) =>
      make("span", {}, make("span", { className: `u ${tint}${tint === "against" ? " n" : ""}`, textContent: name }), ` ${meaning}`)),
    make("span", { textContent: data.share }),
  );
  let hops = 0; // how often earlier tokens of the answer pass their relevance on; Infinity: until none is left
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

  // Choices: the whole answer, its sentences, and the number of hops.
  const choices = [["whole answer", 0, data.tokens.length]];
  if (data.sentences.length > 1)
    for (const [a, b, text] of data.sentences) choices.push([text.length > 40 ? text.slice(0, 39) + "…" : text, a, b]);
  const buttons = choices.map(([text, a, b]) =>
    make("button", { type: "button", textContent: text, onclick: () => choose(a, b) }),
  );
  place("choices").replaceChildren(...buttons);

  // Hops as steps: earlier tokens of the answer pass their relevance on in the proportions of their rows.
  const plus = (lines, more, factor) => {
    for (const [name, value] of Object.entries(more)) lines[name] = (lines[name] || 0) + factor * value;
  };
  const total = (rows) => {
    const sum = { values: rows[0].values.map(() => 0), lines: {}, output: 0 };
    for (const row of rows) {
      row.values.forEach((value, unit) => { sum.values[unit] += value; });
      plus(sum.lines, row.lines, 1);
      sum.output += row.output;
    }
    return sum;
  };
  const hop = (row) => {
    const next = { values: [...row.values], lines: { ...row.lines }, output: row.output };
    data.rows.forEach((source, token) => {
      const amount = data.keeps.includes(token) ? 0 : row.values[data.start + token];
      if (!amount) return;
      const share = amount / source.output;
      next.values[data.start + token] -= amount;
      source.values.forEach((value, unit) => { next.values[unit] += share * value; });
      plus(next.lines, { answer: -amount }, 1);
      plus(next.lines, source.lines, share);
      const open = source.output - Object.values(source.lines).reduce((sum, value) => sum + value, 0);
      plus(next.lines, { residual: open }, share);
    });
    return next;
  };
  const handedOn = (rows) => {
    let row = total(rows);
    for (let step = 0; step < hops; step++) row = hop(row);
    return row;
  };
  const steps = [];
  place("hops").replaceChildren();
  if (data.all_hops) {
    const size = (values) => values.reduce((sum, value) => sum + Math.abs(value), 0);
    let count = 0;
    for (let row = total(data.rows); count < 5; count++) {
      const next = hop(row);
      if (size(next.values.map((value, unit) => value - row.values[unit])) <= 1e-3 * size(row.values)) break;
      row = next;
    }
    const labels = [[0, "direct"], ...Array.from({ length: count }, (_, i) => [i + 1, `${i + 1} hop${i ? "s" : ""}`]), [Infinity, "all hops"]];
    for (const [number, text] of labels) {
      const node = make("button", { type: "button", textContent: text });
      node.onclick = () => {
        hops = number;
        draw();
      };
      steps.push([number, node]);
    }
    const label = make("span", { className: "dim", textContent: "through earlier answer tokens" });
    label.title = "Earlier tokens of the answer pass their relevance on to what caused them; the sum stays the same.";
    place("hops").replaceChildren(label, ...steps.map(([, node]) => node));
  }

  // An image with its patches, in the card of its part.
  const patch = (card, box) => {
    const image = data.images[data.parts.findIndex((part) => part[0] === card.field)];
    if (!card.picture) {
      card.picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      card.picture.setAttribute("viewBox", `0 0 ${image.width} ${image.height}`);
      card.picture.style.aspectRatio = `${image.width} / ${image.height}`;
      const under = make("img", { src: `data:image/png;base64,${image.png}`, alt: image.name || card.field });
      card.heat.replaceWith(make("div", { className: "picture" }, under, card.picture));
    }
    if (!box) return null; // padding
    const [left, top, right, bottom] = box;
    const node = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) node.setAttribute(key, value);
    node.append(document.createElementNS("http://www.w3.org/2000/svg", "title"));
    card.picture.append(node);
    return node;
  };

  // Parts as cards, in the order of the prompt.
  const pieces = data.units.map(() => null);
  const cards = [];
  place("parts").replaceChildren();
  {
    let at = 0;
    let card = null;
    data.units.forEach(([start, end, field, word, group, text, box], unit) => {
      if (!card || card.field !== field) {
        const known = data.parts.find((part) => part[0] === field);
        card = known ? undefined : cards.find((one) => one.template);
        if (card) {
          card.field = field;
          card.heat.append(" … ");
        } else {
          card = { field, template: !known, units: [], heat: make("div", { className: "heat" }), share: make("b"), bar: make("i") };
          const title = known && known[1] ? `${field}: ${known[1]}` : field;
          card.node = known
            ? make("section", { className: "part" }, make("h2", {}, title, card.share), make("div", { className: "track" }, card.bar), card.heat)
            : make("details", { className: "part template" }, make("summary", {}, card.share), card.heat);
          cards.push(card);
        }
      }
      card.units.push(unit);
      if (group === "image") {
        pieces[unit] = patch(card, box);
        return;
      }
      if (group === "template" && start === null && data.images.length) return; // stands for a part of an image
      if (start !== null && start > at) card.heat.append(data.prompt.slice(at, start));
      let shown = start === null ? text : data.prompt.slice(Math.max(start, at), end);
      const gap = shown.match(/^\s*/)[0]; // a space belongs to its token, and stays without colour
      shown = shown.slice(gap.length);
      if (card.heat.childNodes.length) card.heat.append(gap);
      const node = make("span", { className: "u", textContent: shown });
      card.heat.append(node);
      pieces[unit] = node;
      if (end !== null) at = Math.max(at, end);
    });
    place("parts").append(...[...cards].sort((a, b) => a.template - b.template).map(({ node }) => node)); // the template, folded, at the end
  }

  const choose = (a, b) => {
    [first, last] = [a, b];
    draw();
  };

  let matrix = null;
  let drawn = null; // of which rows
  const draw = () => {
    const rows = hops === Infinity ? data.all_hops : data.rows;
    const row = hops === Infinity ? total(rows.slice(first, last)) : handedOn(rows.slice(first, last));
    const { values, output } = row;
    spans.forEach((node, token) => node.classList.toggle("on", first <= token && token < last));
    buttons.forEach((node, i) => node.setAttribute("aria-pressed", choices[i][1] === first && choices[i][2] === last));
    for (const [number, node] of steps) node.setAttribute("aria-pressed", number === hops);
    if (drawn !== hops) {
      const each = hops === 0 || hops === Infinity ? rows : data.rows.map((one) => handedOn([one]));
      matrix = drawMatrix(data, each, place("matrix"), choose);
      place("matrix-note").textContent = matrix.note;
      drawn = hops;
    }
    matrix.mark(first, last);

    // tokens of a word share their sum
    const words = new Map();
    data.units.forEach(([, , , word], unit) => {
      if (word !== null) words.set(word, (words.get(word) || 0) + values[unit]);
    });
    const shown = data.units.map(([, , , word], unit) => (word === null ? values[unit] : words.get(word)));
    const inPrompt = (unit) => data.units[unit][4] === "prompt";
    const isPatch = (unit) => data.units[unit][4] === "image";
    const largest = (test) => shown.reduce((most, value, unit) => (test(unit) ? Math.max(most, Math.abs(value)) : most), 1e-30);
    const [scale, ofPatches] = [largest(inPrompt), largest(isPatch)]; // a word is worth many patches
    shown.forEach((score, unit) => {
      const node = pieces[unit];
      if (!node) return;
      const strength = Math.max(-1, Math.min(1, score / (isPatch(unit) ? ofPatches : scale)));
      if (isPatch(unit)) {
        node.style.fill = `rgb(var(--${hue(strength)}))`;
        node.style.fillOpacity = (0.75 * Math.abs(strength)).toFixed(2);
        node.firstChild.textContent = scoreText(score);
        return;
      }
      const tint = hue(strength);
      node.style.background = Math.abs(strength) < 0.02 ? "" : `rgba(var(--${tint}),${(0.75 * Math.abs(strength)).toFixed(2)})`;
      node.classList.toggle("n", strength < -0.05);
      node.title = `${scoreText(score)}${data.units[unit][4] === "first token" ? ", the first token: not ranked" : ""}`;
    });

    const sums = new Map(data.sources.map(([name, units]) => [name, units.reduce((sum, unit) => sum + values[unit], 0)]));
    const size = [...sums.values()].reduce((sum, v) => sum + Math.abs(v), 0) || 1;
    const shares = new Map([...sums].map(([name, value]) => [name, value / size]));
    place("sentence").replaceChildren(...answerSentence(data, row, shares, [first, last], signed));
    const most = Math.max(...shares.values(), 0);
    for (const card of cards) {
      if (card.template) {
        const size = card.units.reduce((sum, unit) => sum + values[unit], 0);
        card.share.textContent = `${card.units.length} token${card.units.length === 1 ? "" : "s"} of the template, ${scoreText(size)}`;
        continue;
      }
      const share = shares.get(card.field) ?? 0;
      card.node.classList.toggle("lit", share > 0 && share === most && cards.length > 1);
      card.share.textContent = percent(share);
      card.bar.style.width = `${(100 * Math.abs(share)).toFixed(1)}%`;
      card.bar.style.background = `rgb(var(--${hue(share)}))`;
    }

    place("what").textContent = `Explained: ${data.what}${last - first > 1 ? ", summed over the chosen tokens" : ""}, ${signed(output)}. ${data.source}`;
    const lines = new Map(Object.entries(row.lines));
    const sum = [...lines.values()].reduce((so_far, value) => so_far + value, 0);
    const entry = (name, value, kind = "") =>
      make("tr", { className: kind }, make("td", { textContent: name }), make("td", { className: "num", textContent: signed(value) }));
    const ledger = lines.size
      ? [...[...lines].filter(([, value]) => value !== 0).map(([kind, value]) => entry(data.kinds[kind]?.name ?? kind, value)), entry("residual", output - sum)]
      : [];
    place("ledger").replaceChildren(make("tbody", {}, ...ledger, entry("output", output, "total")));
    place("ledger-note").textContent = [...lines].filter(([kind, value]) => value !== 0 && data.kinds[kind])
      .map(([kind]) => `${data.kinds[kind].name}: ${data.kinds[kind].meaning}`).concat(lines.size ? ["residual: what the lines do not account for"] : []).join("; ");
  };
  draw();
};
// a file of its own has its data in it; the served page calls this when an answer has come
const embedded = document.getElementById("data");
if (embedded) drawAnswer(JSON.parse(embedded.textContent));
else window.drawAnswer = drawAnswer;
