// A table of texts: pasted lines, or a CSV with a header, separated by commas, semicolons or tabs.

const TEXT_NAMES = ["text", "sentence", "review", "content", "comment", "message", "document", "smiles"];
const LABEL_NAMES = ["label", "labels", "class", "target", "sentiment", "category"];

// {texts, labels}: labels is null if the table has none.
export function readTable(content) {
  const lines = content.replace(/^\ufeff/, "").trim();
  const header = lines.split(/\r?\n/, 1)[0];
  const separator = [",", ";", "\t"].map((mark) => [header.split(mark).length, mark]).sort((a, b) => b[0] - a[0])[0][1];
  const names = cells(header, separator)[0]?.map((name) => name.trim().toLowerCase()) ?? [];
  const text = names.findIndex((name) => TEXT_NAMES.includes(name));
  if (text < 0) return { texts: lines.split(/\r?\n/).map((line) => line.trim()).filter(Boolean), labels: null };
  const label = names.findIndex((name) => LABEL_NAMES.includes(name));
  const rows = cells(lines, separator).slice(1).filter((row) => row[text]?.trim());
  return { texts: rows.map((row) => row[text]), labels: label < 0 ? null : rows.map((row) => (row[label] ?? "").trim()) };
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
