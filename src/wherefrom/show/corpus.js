// Tables that sort and filter, and open the texts behind a row. Text enters as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const svgSpace = make("div", { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;
  const signed = (v) => (v > 0 ? "+" : "") + v.toFixed(Math.abs(v) >= 0.0995 ? 2 : 4);
  const format = (v, kind) =>
    v === null ? "–" : kind === "signed" ? signed(v) : kind === "size" ? v.toFixed(2) : kind === "share" ? (100 * v).toFixed(0) + " %" : String(v);
  const isText = (column) => column.kind === "text" || column.kind === "choice";

  // A text as a heatmap; the words between `from` and `to` are outlined.
  const heatmap = (id, from, to, relevance) => {
    const { text, words, label, predicted, sum, output, row } = data.texts[id];
    const line = make("div", { className: "heat" });
    let at = 0;
    for (const [start, end, score, strength] of words) {
      line.append(text.slice(at, start));
      const inside = start < to && end > from;
      const span = make("span", {
        className: "u" + (strength < -5 ? " n" : "") + (inside ? " here" : ""),
        title: signed(score),
        textContent: text.slice(start, end),
      });
      const tint = strength > 0 ? "for" : "against";
      if (Math.abs(strength) >= 2)
        span.style.background = `rgba(var(--${tint}),${((0.85 * Math.abs(strength)) / 100).toFixed(2)})`;
      line.append(span);
      at = end;
    }
    line.append(text.slice(at));
    const labelled = label === null || label === predicted ? "" : `, labelled ${label}`;
    const note = `here ${signed(relevance)} · all words ${signed(sum)}, output ${signed(output)} · predicted ${predicted}${labelled} · row ${row}`;
    return make("div", { className: "text" }, line, make("div", { className: "dim", textContent: note }));
  };

  // A number as a bar under it: from the middle for signed ones, from the left for others.
  const bar = (fraction, signed) => {
    const fill = make("i", { className: fraction < 0 ? "against" : signed ? "for" : "share" });
    const width = Math.abs(fraction) * (signed ? 50 : 100);
    fill.style.width = `${width}%`;
    fill.style.left = `${signed ? (fraction < 0 ? 50 - width : 50) : 0}%`;
    return make("span", { className: "spark" }, fill);
  };

  // A scatter plot of two columns, one dot for each row; the outermost dots are labelled where there is room.
  const chart = (table, rows) => {
    const [across, up] = table.chart, [width, height, edge] = [720, 300, 46];
    const draw = (tag, props, text = "") => {
      const node = document.createElementNS(svgSpace, tag);
      for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
      node.textContent = text;
      return node;
    };
    const numbers = (k) => rows.map((row) => row.cells[k]);
    const [low, high] = [Math.min(0, ...numbers(up)), Math.max(0, ...numbers(up))];
    const most = Math.log(Math.max(2, ...numbers(across)));
    const x = (v) => edge + (Math.log(Math.max(1, v)) / most) * (width - edge - 70);
    const y = (v) => height - edge + ((low - v) / (high - low || 1)) * (height - edge - 14);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart" });
    const [right, top] = [table.columns[across], table.columns[up]].map(({ label, note }) => note || label);
    svg.setAttribute("aria-label", `${table.title}: ${top} over ${right}, ${rows.length} dots`);
    svg.append(draw("path", { d: `M${edge} ${y(0)}H${width - 10}`, class: "axis" }));
    for (const v of [...new Set([low, 0, high])])
      svg.append(draw("text", { x: edge - 6, y: y(v) + 4, "text-anchor": "end" }, v ? signed(v) : "0"));
    for (let v = 1; Math.log(v) <= most; v *= 10)
      svg.append(draw("text", { x: x(v), y: height - 22, "text-anchor": "middle" }, v));
    svg.append(draw("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, `${right} (log scale); upwards: ${top}`));
    const group = table.columns.findIndex(({ kind }) => kind === "choice");
    const groups = group < 0 ? [] : [...new Set(table.rows.map((row) => row.cells[group]))].sort();
    const place = (row) => [x(row.cells[across]), y(row.cells[up])];
    const taken = rows.map(place).map(([px, py]) => [px - 4, py - 4, px + 4, py + 4]);
    const labels = [];
    const distance = (row) => Math.abs(row.cells[up]) / (high - low || 1) + Math.log(Math.max(1, row.cells[across])) / most / 2;
    for (const row of [...rows].sort((a, b) => distance(b) - distance(a))) {
      const [px, py] = place(row), [value, name] = [row.cells[up], String(row.cells[0])];
      const kind = groups.length ? `group${groups.indexOf(row.cells[group]) % 4}` : value < 0 ? "against" : "for";
      const dot = draw("circle", { cx: px, cy: py, r: 3.5, class: kind });
      dot.append(draw("title", {}, `${name}: ${signed(value)}, ${row.cells[across]} ${table.columns[across].label}`));
      svg.append(dot);
      for (const [left, anchor] of [[px + 6, "start"], [px - 6 - 7 * name.length, "end"]]) {
        const [l, t, r, b] = [left, py - 6, left + 7 * name.length, py + 5];
        if (l < edge || r > width || taken.some((box) => l < box[2] && r > box[0] && t < box[3] && b > box[1])) continue;
        labels.push(draw("text", { x: anchor === "end" ? px - 6 : px + 6, y: py + 4, "text-anchor": anchor }, name));
        taken.push([l, t, r, b]);
        break;
      }
    }
    svg.append(...labels);
    const key = make("p", { className: "dim key" }, ...groups.map((name, k) => make("span", { className: `group${k % 4}`, textContent: `● ${name}` })));
    return [svg, ...(groups.length ? [key] : [])];
  };

  const build = (table, place) => {
    const sizes = table.columns.map(({ kind }, k) =>
      kind === "share" ? 1 : kind === "signed" || kind === "size" ? Math.max(...table.rows.map((row) => Math.abs(row.cells[k] ?? 0)), 0) : 0);
    let [by, descending] = table.sort, limit = 25;
    const body = make("tbody"), count = make("span", { className: "dim" });
    const search = make("input", { type: "search", placeholder: "filter" });
    search.setAttribute("aria-label", "filter " + table.title);
    const choices = table.columns.flatMap((column, k) => {
      if (column.kind !== "choice") return [];
      const select = make("select", {}, make("option", { value: "", textContent: "all" }));
      for (const value of new Set(table.rows.map((row) => row.cells[k])))
        select.append(make("option", { value, textContent: value }));
      select.setAttribute("aria-label", column.label);
      select.addEventListener("change", () => draw());
      return [[k, select]];
    });
    const least = make("input", { type: "number", min: 1, value: table.least ? table.least[1] : 1 });
    least.addEventListener("input", () => draw());
    const words = make("input", { type: "checkbox", checked: true });
    words.addEventListener("change", () => draw());
    const extras = [
      ...(table.least ? [make("label", {}, "in at least ", least, ` ${table.columns[table.least[0]].label}`)] : []),
      ...(table.rows.some((row) => row.function) ? [make("label", {}, words, " English function words and punctuation")] : []),
    ];
    const picture = make("div", { className: "wide" });
    const more = make("button", { type: "button", className: "more", textContent: "show more" });
    const heads = table.columns.map((column, k) => {
      const button = make("button", { type: "button", textContent: column.label, title: column.note || "" });
      button.addEventListener("click", () => {
        descending = by === k ? !descending : !isText(column);
        by = k;
        draw();
      });
      return make("th", { className: isText(column) ? "" : "num" }, button);
    });
    const toggle = (row, line) => {
      const next = line.nextSibling;
      const wasOpen = next && next.classList.contains("detail");
      line.setAttribute("aria-expanded", String(!wasOpen));
      if (wasOpen) return next.remove();
      const cell = make("td", { colSpan: table.columns.length });
      for (const span of row.texts) cell.append(heatmap(...span));
      if (row.hidden) cell.append(make("p", { className: "dim", textContent: `${row.hidden} more in the CSV files` }));
      line.after(make("tr", { className: "detail" }, cell));
    };
    const draw = () => {
      const query = search.value.trim().toLowerCase();
      const matches = (row) =>
        (!table.least || row.cells[table.least[0]] >= (Number(least.value) || 1)) &&
        (words.checked || !row.function) &&
        choices.every(([k, select]) => !select.value || row.cells[k] === select.value) &&
        (!query || row.cells.some((cell) => typeof cell === "string" && cell.toLowerCase().includes(query)));
      const rows = table.rows.filter(matches).sort((a, b) => {
        const [x, y] = [a.cells[by], b.cells[by]];
        const order = typeof x === "string" ? x.localeCompare(y) : x - y;
        return descending ? -order : order;
      });
      heads.forEach((head, k) => head.setAttribute("aria-sort", by !== k ? "none" : descending ? "descending" : "ascending"));
      body.replaceChildren(
        ...rows.slice(0, limit).map((row) => {
          const line = make("tr", { tabIndex: 0, className: "row" });
          table.columns.forEach((column, k) => {
            const cell = make("td", { className: isText(column) ? "" : "num", textContent: format(row.cells[k], column.kind) });
            if (sizes[k] && row.cells[k] !== null) cell.append(bar(row.cells[k] / sizes[k], column.kind === "signed"));
            line.append(cell);
          });
          line.setAttribute("aria-expanded", "false");
          line.addEventListener("click", () => toggle(row, line));
          line.addEventListener("keydown", (event) => {
            if (event.key === "Enter") toggle(row, line);
          });
          return line;
        }),
      );
      if (table.chart) picture.replaceChildren(...chart(table, rows));
      count.textContent = `${Math.min(limit, rows.length)} of ${rows.length}`;
      more.hidden = rows.length <= limit;
    };
    search.addEventListener("input", () => draw());
    more.addEventListener("click", () => ((limit += 200), draw()));
    place.append(
      make("div", { className: "tools" }, search, ...choices.map(([, select]) => select), ...extras, count),
      picture,
      make("div", { className: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body)),
      more,
    );
    draw();
    if (table.open) body.querySelector("tr.row")?.click();
  };
  data.tables.forEach((table, k) => build(table, document.getElementById("table-" + k)));
})();
