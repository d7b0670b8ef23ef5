// A table of texts: pasted lines, or a CSV with a header, separated by commas, semicolons or tabs.

// {names, rows, columns, isSure}: `columns` says which of the names are {text, second, label}, each an index or −1. Pasted
// lines have no names. `usual` has the names that are guessed, as in the library: {text, label, pairs: [[first, second], …]}.
// It is not sure where a table has no usual name and several columns: the first line may also be a text.
export function readTable(content, usual) {
  const lines = content.replace(/^\ufeff/, "").trim();
  const header = lines.split(/\r?\n/, 1)[0];
  const separator = [",", ";", "\t"].map((mark) => [header.split(mark).length, mark]).sort((a, b) => b[0] - a[0])[0][1];
  const all = cells(lines, separator);
  const names = all[0]?.map((name) => name.trim()) ?? [];
  const small = names.map((name) => name.toLowerCase());
  const find = (wanted) => small.indexOf(wanted.find((name) => small.includes(name)));
  const [text, second] = usual.pairs.map((pair) => pair.map((name) => small.indexOf(name)))
    .find((pair) => !pair.includes(-1)) ?? [find(usual.text), -1];
  const isTable = text >= 0 || (names.length > 1 && all.length > 1 && all.every((row) => row.length === names.length));
  if (!isTable) return { names: [], rows: lines.split(/\r?\n/).map((line) => [line.trim()]).filter(([line]) => line), columns: { text: 0, second: -1, label: -1 }, isSure: true };
  return { names, rows: all.slice(1), columns: { text, second, label: find(usual.label) }, isSure: text >= 0 };
}

// The cells of a CSV, where a quoted cell may hold separators, quotes and line breaks.
function cells(content, separator) {
  const rows = [[""]];
  let quoted = false;
  for (let i = 0; i < content.length; i += 1) {
    const [letter, row] = [content[i], rows.at(-1)];
    if (quoted && letter === '"' && content[i + 1] === '"') row[row.length - 1] += content[(i += 1)];
    else if (letter === '"' && (quoted || row.at(-1) === "")) quoted = !quoted;
    else if (!quoted && letter === separator) row.push("");
    else if (!quoted && (letter === "\n" || letter === "\r")) {
      if (letter === "\r" && content[i + 1] === "\n") i += 1;
      rows.push([""]);
    } else row[row.length - 1] += letter;
  }
  return rows;
}
