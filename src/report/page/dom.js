// Elements without markup strings: whatever a record contains ends up as text.

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function openSection(id) {
  const section = document.getElementById(id);
  section.hidden = false;
  return section.querySelector(".content");
}

// A row of buttons of which one is pressed.
function choice(label, options, chosen, change) {
  const buttons = options.map(([value, text]) =>
    element("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === value)));
      change(value);
    } }, text));
  return element("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

function picker(label, options, chosen, change) {
  const select = element("select", { onchange: () => change(select.value) },
    options.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text)));
  return element("label", { class: "picker" }, element("span", {}, label), select);
}

// The mark of a model: the colour and the shape that its line has.
function mark(name) {
  const canvas = element("canvas", { class: "mark", width: 28, height: 28, "aria-hidden": "true" });
  canvas.dataset.name = name;
  paintMark(canvas);
  return canvas;
}

function paintMark(canvas) {
  const context = canvas.getContext("2d");
  const colour = colourOf(canvas.dataset.name);
  context.clearRect(0, 0, 28, 28);
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 3;
  Chart.helpers.drawPoint(context, { ...shapeOf(canvas.dataset.name), radius: 9, borderWidth: 3 }, 14, 14);
}

// A legend whose entries switch their lines on and off.
function legend(names, hidden, change, note = () => null) {
  return element("div", { class: "legend" }, names.map((name) => {
    const button = element("button", { type: "button", "aria-pressed": String(!hidden.has(name)), onclick: () => {
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      change();
    } }, mark(name), element("span", {}, name), note(name));
    return button;
  }));
}

// A row of numbers under its titles, and a table of such rows.
function plainRow(titles, head, cells) {
  return element("tr", {}, element("th", { scope: "row" }, head),
    cells.map((cell, i) => element("td", { class: "number", "data-title": titles[i + 1] }, cell)));
}

function plainTable(titles, rows) {
  return element("table", { class: "results plain" },
    element("thead", {}, element("tr", {}, titles.map((title, i) =>
      element("th", { scope: "col", class: i ? "number" : undefined }, title)))),
    element("tbody", {}, rows));
}

function chartPanel(title, controls = null) {
  const canvas = element("canvas", { role: "img", "aria-label": title });
  const panel = element("figure", { class: "panel" },
    element("figcaption", {}, element("h3", {}, title), controls),
    element("div", { class: "plot" }, canvas));
  return { panel, canvas };
}

// "fmm (seeds 1, 2), linear (seed 1)": which runs a picture came from.
function origin(runs, detail = "") {
  const groups = new Map();
  for (const run of runs) groups.set(run.group, [...(groups.get(run.group) ?? []), run]);
  const parts = [...groups].map(([group, members]) => {
    const seeds = [...new Set(members.filter((run) => run.seed !== null).map((run) => run.seed))];
    if (seeds.length === 0) return members.map((run) => run.name).join(", ");
    return `${group} (seed${seeds.length > 1 ? "s" : ""} ${seeds.join(", ")})`;
  });
  return element("p", { class: "origin" }, `From ${parts.join(" · ")}${detail}`);
}

// Whose weights the pictures of a model show.
function pictured(run) {
  if (!run.pictures) return "";
  const { step, weights } = run.pictures;
  const whose = { best: "its best weights on the validation set", last: "its last weights" }[weights] ?? "its weights";
  return `, ${whose}, step ${whole(step)}`;
}
