// The chosen part of an answer in one plain sentence: which parts of the prompt it comes from, and which words.
"use strict";
const answerSentence = (data, values, shares, [first, last]) => {
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
  const subject = isWhole ? "The answer" : `“${chosen}”`;
  if (!parts.length && !speaking.length) return [`Nothing in the prompt speaks for ${isWhole ? "the answer" : subject}.`];
  if (shares.size < 2 || !parts.length) return [`${subject} comes mostly from `, ...speaking, "."];
  return [
    `${subject} comes mostly from `, ...listed(parts),
    ...(speaking.length ? [", above all from ", ...speaking] : []),
    ...(against.length ? ["; ", ...listed(against), against.length > 1 ? " speak against it" : " speaks against it"] : []), ".",
  ];
};
