// Tables that sort and filter, and open the texts behind a row. Text enters as text, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const make = (tag, props = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };
  const signed = (v) => (v > 0 ? "+" : "") + v.toFixed(Math.abs(v) >= 0.0995 ? 2 : 4);
  const shown = (v, kind) =>
    v === null ? "–" : kind === "signed" ? signed(v) : kind === "share" ? (100 * v).toFixed(0) + " %" : String(v);

  const sentence = (id, from, to, relevance) => {
    const held = data.texts[id];
    const line = make("div", { className: "heat" });
    let at = 0;
    for (const [start, end, score, strength] of held.words) {
      line.append(held.text.slice(at, start));
      const inside = from !== null && start < to && end > from;
      const span = make("span", {
        className: "u" + (strength < -5 ? " n" : "") + (inside ? " here" : ""),
        title: signed(score),
        textContent: held.text.slice(start, end),
      });
      const tint = strength > 0 ? "for" : "against";
      if (Math.abs(strength) >= 2)
        span.style.background = `rgba(var(--${tint}),${((0.85 * Math.abs(strength)) / 100).toFixed(2)})`;
      line.append(span);
      at = end;
    }
    line.append(held.text.slice(at));
    const said = held.label === null || held.label === held.predicted ? "" : `, labelled ${held.label}`;
    const own = relevance === null ? "" : `here ${signed(relevance)} · `;
    const note = `${own}words ${signed(held.sum)} of the output ${signed(held.output)} · ${held.predicted}${said} · row ${held.row}`;
    return make("div", { className: "text" }, line, make("div", { className: "dim", textContent: note }));
  };

  const build = (table, place) => {
    let by = table.sort[0], down = table.sort[1], limit = 25;
    const body = make("tbody"), count = make("span", { className: "dim" });
    const find = make("input", { type: "search", placeholder: "filter" });
    find.setAttribute("aria-label", "filter " + table.title);
    const picks = table.columns.flatMap((column, k) => {
      if (column.kind !== "choice") return [];
      const pick = make("select", {}, make("option", { value: "", textContent: "all" }));
      for (const value of new Set(table.rows.map((row) => row.cells[k])))
        pick.append(make("option", { value, textContent: value }));
      pick.setAttribute("aria-label", column.label);
      pick.addEventListener("change", () => draw());
      return [[k, pick]];
    });
    const more = make("button", { type: "button", textContent: "show more" });
    const heads = table.columns.map((column, k) => {
      const button = make("button", { type: "button", textContent: column.label, title: column.note || "" });
      button.addEventListener("click", () => {
        down = by === k ? !down : column.kind !== "text" && column.kind !== "choice";
        by = k;
        draw();
      });
      return make("th", { className: /text|choice/.test(column.kind) ? "" : "num" }, button);
    });
    const open = (row, line) => {
      const next = line.nextSibling;
      const was = next && next.classList.contains("detail");
      line.setAttribute("aria-expanded", String(!was));
      if (was) return next.remove();
      const cell = make("td", { colSpan: table.columns.length });
      for (const [id, from, to, relevance] of row.texts) cell.append(sentence(id, from, to, relevance));
      if (row.hidden) cell.append(make("p", { className: "dim", textContent: `${row.hidden} more in the tables beside this page` }));
      line.after(make("tr", { className: "detail" }, cell));
    };
    const draw = () => {
      const asked = find.value.trim().toLowerCase();
      const fits = (row) =>
        picks.every(([k, pick]) => !pick.value || row.cells[k] === pick.value) &&
        (!asked || row.cells.some((cell) => typeof cell === "string" && cell.toLowerCase().includes(asked)));
      const rows = table.rows.filter(fits).sort((a, b) => {
        const [x, y] = [a.cells[by], b.cells[by]];
        const order = typeof x === "string" ? x.localeCompare(y) : x - y;
        return down ? -order : order;
      });
      heads.forEach((head, k) => head.setAttribute("aria-sort", by !== k ? "none" : down ? "descending" : "ascending"));
      body.replaceChildren(
        ...rows.slice(0, limit).map((row) => {
          const line = make("tr", { tabIndex: 0, className: "row" });
          table.columns.forEach((column, k) =>
            line.append(make("td", { className: /text|choice/.test(column.kind) ? "" : "num", textContent: shown(row.cells[k], column.kind) })));
          line.setAttribute("aria-expanded", "false");
          line.addEventListener("click", () => open(row, line));
          line.addEventListener("keydown", (event) => {
            if (event.key === "Enter") open(row, line);
          });
          return line;
        }),
      );
      count.textContent = `${Math.min(limit, rows.length)} of ${rows.length}`;
      more.hidden = rows.length <= limit;
    };
    find.addEventListener("input", () => draw());
    more.addEventListener("click", () => ((limit += 200), draw()));
    place.append(
      make("div", { className: "tools" }, find, ...picks.map(([, pick]) => pick), count),
      make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body),
      more,
    );
    draw();
    if (table.open) body.querySelectorAll("tr.row")[0]?.click();
  };
  data.tables.forEach((table, k) => build(table, document.getElementById("table-" + k)));
})();
