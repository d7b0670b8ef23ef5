// The map of layers × units: scrolling zooms where not all columns have room, dragging moves it.
"use strict";
const drawMap = (data, place) => {
  const ROW = 17, LEFT = 34, BOTTOM = 78, LABEL = 13; // pixels
  const canvas = place.querySelector("canvas"), note = place.querySelector(".note");
  const context = canvas.getContext("2d");
  const count = data.units.length;
  let rows = data.maps[0].rows;
  let first = 0, shown = count; // the columns in view; fractions while zooming
  let here = null; // [row, column] of which the note tells

  const width = () => canvas.clientWidth - LEFT;
  const cell = () => width() / shown;
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toPrecision(3);
  const strength = (value) => Math.sqrt(Math.abs(value) / data.largest);

  const view = (start, size) => {
    const fewest = Math.min(count, width() / 40);
    shown = Math.min(count, Math.max(fewest, size));
    first = Math.min(count - shown, Math.max(0, start));
    draw();
  };
  const zoom = (factor, at = 0.5) => {
    const column = first + at * shown, size = shown * factor;
    view(column - at * Math.min(size, count), size);
  };

  const labelled = () => { // columns with room for a label, the strongest first
    const room = LABEL / cell(), taken = [];
    const sizes = data.units.map((_, i) => Math.max(...rows.map((row) => Math.abs(row[i]))));
    const order = [...sizes.keys()].sort((a, b) => sizes[b] - sizes[a]);
    for (const i of order) {
      if (i < first - 0.5 || i >= first + shown) continue;
      if (taken.every((other) => Math.abs(other - i) >= room)) taken.push(i);
    }
    return taken;
  };

  const draw = () => {
    const style = getComputedStyle(place), sharp = window.devicePixelRatio || 1;
    const color = (name) => style.getPropertyValue(`--${name}`);
    const height = ROW * rows.length + BOTTOM;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * sharp;
    canvas.height = height * sharp;
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, height);
    context.font = "11px system-ui,sans-serif";
    context.textBaseline = "middle";
    const y = (row) => ROW * (rows.length - 1 - row); // the input is at the bottom
    const x = (column) => LEFT + (column - first) * cell();
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width(), height);
    context.clip();
    const last = Math.min(count - 1, Math.ceil(first + shown));
    for (let column = Math.floor(first); column <= last; column += 1) {
      rows.forEach((row, i) => {
        const alpha = strength(row[column]);
        if (alpha < 0.02) return;
        context.fillStyle = `rgba(${color(row[column] > 0 ? "for" : "against")},${alpha})`;
        context.fillRect(x(column), y(i), cell() + 0.3, ROW - 1);
        if (row[column] < 0 && alpha > 0.15 && cell() > 5) { // a bar below: negative without colour
          context.fillStyle = `rgb(${color("against")})`;
          context.fillRect(x(column) + 1, y(i) + ROW - 3, cell() - 2, 1.5);
        }
      });
    }
    context.fillStyle = color("ink");
    for (const column of labelled()) {
      context.save();
      context.translate(x(column + 0.5), ROW * rows.length + 4);
      context.rotate(Math.PI / 2);
      context.fillText(data.units[column].slice(0, 12), 0, 0);
      context.restore();
    }
    if (here) {
      context.strokeStyle = color("ink");
      context.strokeRect(x(here[1]), y(here[0]), Math.max(2, cell()), ROW - 1);
    }
    context.restore();
    context.fillStyle = color("dim");
    const every = rows.length > 20 ? 2 : 1;
    rows.forEach((_, i) => {
      if (i % every === 0 || i === rows.length - 1) context.fillText(data.names[i] ?? i, 0, y(i) + ROW / 2);
    });
  };

  const tell = () => {
    if (!here) return;
    const [row, column] = here;
    const values = data.maps.filter((map) => row < map.rows.length)
      .map((map) => `${map.name} ${signed(map.rows[row][column])}`);
    note.textContent = `layer ${data.names[row]}, ${column} “${data.units[column]}”: ${values.join(" · ")}`;
  };
  const look = (row, column) => {
    here = [Math.min(rows.length - 1, Math.max(0, row)), Math.min(count - 1, Math.max(0, column))];
    tell();
    draw();
  };

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    dragged = { x: event.clientX, first };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointercancel", () => { dragged = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged && shown < count) view(dragged.first - (event.clientX - dragged.x) / cell(), shown);
    const column = Math.floor(first + (event.offsetX - LEFT) / cell());
    const row = rows.length - 1 - Math.floor(event.offsetY / ROW);
    if (event.offsetX >= LEFT && row >= 0) look(row, column);
  });
  canvas.addEventListener("wheel", (event) => {
    if (width() / count >= LABEL) return; // all labels have room: the page scrolls
    const factor = event.deltaY < 0 ? 0.8 : 1.25;
    if (factor > 1 && shown >= count) return;
    event.preventDefault();
    zoom(factor, Math.min(1, Math.max(0, (event.offsetX - LEFT) / width())));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
    if (event.key === "+") zoom(0.8);
    else if (event.key === "-") zoom(1.25);
    else if (event.key in steps) {
      const [row, column] = here ?? [0, 0], [up, right] = steps[event.key];
      look(row + up, column + right);
      if (here[1] < first || here[1] >= first + shown - 1) view(here[1] - shown / 2, shown);
    } else return;
    event.preventDefault();
  });
  const actions = { in: () => zoom(0.6), out: () => zoom(1.7), all: () => view(0, count) };
  for (const [name, action] of Object.entries(actions)) {
    place.querySelector(`[data-zoom=${name}]`).addEventListener("click", action);
  }
  place.querySelector("select").addEventListener("change", (event) => {
    ({ rows } = data.maps[event.target.value]);
    if (here) look(...here); else draw();
  });
  window.addEventListener("resize", () => view(first, shown));
  window.matchMedia("(prefers-color-scheme:dark)").addEventListener("change", draw);
  draw();
};
drawMap(JSON.parse(document.getElementById("data").textContent), document.querySelector(".map"));
