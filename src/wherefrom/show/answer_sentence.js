// The chosen part of an answer in plain sentences: what the prompt accounts for, and which parts and words count most.
"use strict";
const answerSentence = (data, { values, lines, output }, shares, [first, last], signed) => {
  const MOST = 3; // names on a side
  const CLOSE = 0.3; // of the strongest: what is weaker is not named
  const strongest = (pairs) => {
    const sorted = pairs.filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
    return sorted.filter(([, value]) => value >= CLOSE * sorted[0][1]).slice(0, MOST);
  };
  const element = (tag, className, textContent) => Object.assign(document.createElement(tag), { className, textContent });
  const listed = (items) => items.flatMap((item, i) => [...(i ? [i === items.length - 1 ? " and " : ", "] : []), ...[item].flat()]);

  const partName = (name) => [/\d$/.test(name) ? "" : "the ", element("strong", "", name)]; // passage 2, the question

  const words = new Map(); // the words of the prompt: text and relevance
  data.units.forEach(([start, end, , word, group, text], unit) => {
    if (group !== "prompt") return;
    const key = word === null ? `unit ${unit}` : word;
    const entry = words.get(key) ?? { text: "", value: 0 };
    entry.text += start === null ? text : data.prompt.slice(start, end);
    entry.value += values[unit];
    words.set(key, entry);
  });
  const totals = new Map(); // a word that stands several times is named once
  for (const { text, value } of words.values()) {
    const name = text.trim();
    if (/[\p{L}\p{N}]/u.test(name)) totals.set(name, (totals.get(name) ?? 0) + value);
  }
  const named = (pairs, className) => listed(strongest(pairs).map(([name]) => element("em", className, name)));
  const speaking = named([...totals], "for");
  const parts = strongest([...shares]).map(([name, share]) => [...partName(name), `\u00a0(${(100 * share).toFixed(0)}\u00a0%)`]);
  const against = strongest([...shares].map(([name, share]) => [name, -share])).map(([name]) => partName(name));

  const isWhole = first === 0 && last === data.tokens.length;
  const chosen = data.tokens.slice(first, last).map(([text]) => text).join("").trim();
  const subject = isWhole ? "the answer" : `“${chosen}”`;
  if (!parts.length && !speaking.length) return [`Nothing in the prompt counts for ${subject}.`];

  // what the lines of the ledger allow to be said
  const prompt = (lines.prompt ?? 0) + (lines.image ?? 0);
  const residual = output - Object.values(lines).reduce((sum, value) => sum + value, 0);
  const [HALF, TOO_MUCH, OPEN] = [0.5, 1.5, 0.05];
  const share = prompt / output;
  const hasLedger = Object.keys(lines).length > 0 && output !== 0;
  const isOpen = Math.abs(residual) > OPEN * Math.abs(output);
  const isSource = hasLedger && !isOpen && output > 0 && share >= HALF && share <= TOO_MUCH;
  const account = !hasLedger ? "" : isOpen
    ? ` The scores do not add up to the output: the residual is ${signed(residual)}, the output ${signed(output)}.`
    : share < 0 || share > TOO_MUCH
      ? ` The parts of the prompt sum to ${signed(prompt)}, the output is ${signed(output)}.`
      : ` The prompt accounts for ${(100 * share).toFixed(0)}\u00a0% of the output.`;

  const best = shares.size < 2 || !parts.length ? speaking : listed(parts);
  const also = best !== speaking && speaking.length ? [", above all from ", ", above all "].map((text) => [text, ...speaking]) : [[], []];
  const counting = (best === speaking ? speaking.filter((piece) => piece.tagName).length : parts.length) > 1 ? "count" : "counts";
  const main = isSource
    ? [`${isWhole ? "The answer" : subject} comes mostly from `, ...best, ...also[0]]
    : ["In the prompt, ", ...best, ...also[1], ` ${counting} most for ${subject}`];
  const doubts = best !== speaking && against.length ? ["; ", ...listed(against), against.length > 1 ? " count against it" : " counts against it"] : [];
  return [...main, ...doubts, ".", account];
};
