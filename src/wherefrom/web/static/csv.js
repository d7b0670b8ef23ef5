// A table of texts: pasted lines, or a CSV with a header, separated by commas, semicolons or tabs.

// {texts, pairs, labels, uneven}: pairs (second texts) and labels are null if the table has none; uneven is the
// number of rows with more or fewer cells than the header. `columns` has the names that are guessed, as in the
// library: {text, label, pairs: [[first, second], …]}.
export function readTable(content, columns) {
  const lines = content.replace(/^\ufeff/, "").trim();
  const header = lines.split(/\r?\n/, 1)[0];
  const separator = [",", ";", "\t"].map((mark) => [header.split(mark).length, mark]).sort((a, b) => b[0] - a[0])[0][1];
  const names = cells(header, separator)[0]?.map((name) => name.trim().toLowerCase()) ?? [];
  const find = (usual) => names.indexOf(usual.find((name) => names.includes(name)));
  const [text, second] = columns.pairs.map((pair) => pair.map((name) => names.indexOf(name)))
    .find((pair) => !pair.includes(-1)) ?? [find(columns.text), -1];
  if (text < 0) return { texts: lines.split(/\r?\n/).map((line) => line.trim()).filter(Boolean), pairs: null, labels: null, uneven: 0 };
  const label = find(columns.label);
  const rows = cells(lines, separator).slice(1).filter((row) => row[text]?.trim());
  const uneven = rows.filter((row) => row.length !== names.length).length;
  const column = (at) => (at < 0 ? null : rows.map((row) => (row[at] ?? "").trim()));
  return { texts: rows.map((row) => row[text]), pairs: column(second), labels: column(label), uneven };
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
