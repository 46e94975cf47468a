// Heat maps of the near field, the far field and their blend, head by head.

const FIELDS = ["near", "far", "blend"];

// A map that tells its cell under the pointer, or under a cursor that the arrow keys move.
function mapFigure(field, head, matrix, scale, tell) {
  const canvas = element("canvas", { role: "img", tabindex: 0,
    "aria-label": `${field} field of head ${head + 1}, ${matrix.rows} queries by ${matrix.columns} keys` });
  paintMatrix(canvas, matrix, scale);
  const cell = { row: 0, column: 0 };
  const show = (row, column) => {
    cell.row = Math.min(Math.max(row, 0), matrix.rows - 1);
    cell.column = Math.min(Math.max(column, 0), matrix.columns - 1);
    tell({ field, head, ...cell, value: matrix.values[cell.row * matrix.columns + cell.column] });
  };
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    show(Math.floor((event.clientY - box.top) / box.height * matrix.rows),
      Math.floor((event.clientX - box.left) / box.width * matrix.columns));
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    show(cell.row + move[0], cell.column + move[1]);
  });
  return element("div", {}, element("p", { class: "field" }, field), element("div", { class: "map" }, canvas));
}

function scaleBar(field, scale) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  paintScale(canvas, scale);
  return element("div", { class: "scale" }, element("strong", {}, field),
    element("span", {}, digits(scale.low, 2)), canvas,
    element("span", {}, `${digits(scale.high, 2)}${scale.clipped ? " and more" : ""}`));
}

function tokenText(tokens, index, role) {
  const token = tokens[index];
  return `${role} ${index}${token === undefined ? "" : ` “${token}”`}`;
}

function drawMapGrid(run, view, grid, scales, readout) {
  const heads = run.maps.heads.filter((head) => head.layer === view.layer).sort((a, b) => a.head - b.head);
  const fields = FIELDS.filter((field) => heads.some((head) => head[field]));
  const matrices = heads.map((head) => Object.fromEntries(fields.filter((field) => head[field])
    .map((field) => [field, unpackMatrix(head[field])])));
  const scaleOf = Object.fromEntries(fields.map((field) =>
    [field, makeScale(matrices.map((one) => one[field]).filter(Boolean), view.colours)]));
  const tell = ({ field, head, row, column, value }) => {
    readout.textContent = `${field}, head ${head + 1}: ${tokenText(run.maps.tokens, row, "query")} takes ` +
      `${digits(value, 3)} of ${tokenText(run.maps.tokens, column, "key")}`;
  };
  readout.textContent = "Point at a map, or move in it with the arrow keys, to read a cell.";
  scales.replaceChildren(...fields.map((field) => scaleBar(field, scaleOf[field])));
  grid.style.setProperty("--fields", fields.length);
  grid.classList.toggle("few", fields.length === 1);
  grid.replaceChildren(...heads.map((head, i) => element("figure", { class: "head" },
    element("figcaption", {}, `Head ${head.head + 1}`),
    element("div", { class: "maps" }, fields.filter((field) => matrices[i][field]).map((field) =>
      mapFigure(field, head.head, matrices[i][field], scaleOf[field], tell))))));
}

function drawMaps(report) {
  const runs = report.runs.filter((run) => run.maps.heads.length > 0);
  if (runs.length === 0) return;
  const content = openSection("maps");
  // A run with a far field has the most to show.
  const first = runs.find((run) => run.maps.heads.some((head) => head.far && head.near)) ?? runs[0];
  const view = { run: first, layer: 0, colours: "linear" };
  const layersOf = (run) => [...new Set(run.maps.heads.map((head) => head.layer))].sort((a, b) => a - b);
  const layers = element("div", { class: "slot" });
  const [grid, scales] = [element("div", { class: "heads" }), element("div", { class: "scales" })];
  const readout = element("p", { class: "readout", "aria-live": "polite" });
  const from = element("div", {});

  const redraw = () => {
    drawMapGrid(view.run, view, grid, scales, readout);
    from.replaceChildren(origin([view.run], pictured(view.run)));
  };
  const chooseRun = (run) => {
    view.run = run;
    if (!layersOf(run).includes(view.layer)) [view.layer] = layersOf(run);
    layers.replaceChildren(picker("Layer", layersOf(run).map((layer) => [layer, layer + 1]), view.layer, (layer) => {
      view.layer = Number(layer);
      redraw();
    }));
    redraw();
  };
  content.append(
    element("div", { class: "controls" },
      picker("Run", runs.map((run, i) => [i, run.name]), runs.indexOf(first), (index) => chooseRun(runs[index])),
      layers,
      choice("Colour scale", [["linear", "linear"], ["log", "log"]], view.colours, (colours) => {
        view.colours = colours;
        redraw();
      })),
    scales, readout, grid, from);
  dark.addEventListener("change", redraw);
  chooseRun(first);
}
