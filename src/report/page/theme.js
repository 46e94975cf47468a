// Colours and Chart.js defaults. The palette (after Okabe and Ito) stays distinct for colour-blind
// readers; shapes repeat what colours say.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

const PALETTE = {
  light: ["#0072b2", "#c44e00", "#00855f", "#a8447f", "#8a6a00", "#3f8fc4", "#5b5b5b", "#7a3db8"],
  dark: ["#5db4ef", "#ff8f4a", "#35c79b", "#e594c3", "#e3c04a", "#9ad1f5", "#b9b9b9", "#c39bf0"],
};
const SHAPES = [["circle"], ["rect"], ["triangle"], ["rectRot"], ["triangle", 180], ["rectRounded"], ["star"],
  ["triangle", 90], ["crossRot"]];

// One kind of attention keeps its colour from chart to chart and from report to report.
const PREFERRED = { fmm: 0, softmax: 1, linear: 2, band: 3 };
const slots = new Map();

function slotOf(name, attention) {
  if (!slots.has(name)) {
    const taken = new Set(slots.values());
    const wanted = PREFERRED[attention];
    let slot = wanted !== undefined && !taken.has(wanted) ? wanted : 4;
    while (taken.has(slot)) slot += 1;
    slots.set(name, slot);
  }
  return slots.get(name);
}

function colourOf(name) {
  const colours = PALETTE[dark.matches ? "dark" : "light"];
  return colours[(slots.get(name) ?? 0) % colours.length];
}

function shapeOf(name) {
  const [pointStyle, rotation = 0] = SHAPES[(slots.get(name) ?? 0) % SHAPES.length];
  return { pointStyle, rotation, pointRotation: rotation };
}

function style(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

function transparent(hex, share) {
  return hex + Math.round(share * 255).toString(16).padStart(2, "0");
}

// Every chart is drawn by a function that can be called again: when a control or the theme changes.
const drawings = new Map();

function drawChart(canvas, makeConfig) {
  drawings.get(canvas)?.chart.destroy();
  drawings.set(canvas, { chart: new Chart(canvas, makeConfig()), makeConfig });
}

function forgetCharts(parent) {
  for (const [canvas, drawing] of drawings) {
    if (!parent.contains(canvas)) continue;
    drawing.chart.destroy();
    drawings.delete(canvas);
  }
}

// Under the pointer: the point nearest in x, and of every other line the point nearest to that one, when it is near
// enough to be read as the same place. Lines may have points at different steps, or end early.
Chart.Interaction.modes.samePlace = function samePlace(chart, event) {
  const REACH = 24;  // pixels
  const nearest = (items, x) => items.reduce((best, item) =>
    (best === null || Math.abs(item.element.x - x) < Math.abs(best.element.x - x) ? item : best), null);
  const lines = chart.getSortedVisibleDatasetMetas()
    .filter((meta) => !chart.data.datasets[meta.index].isDecoration)
    .map((meta) => meta.data.map((element, index) => ({ element, datasetIndex: meta.index, index }))
      .filter(({ element }) => !element.skip));
  const anchor = nearest(lines.flat(), event.x);
  if (anchor === null) return [];
  return lines.map((items) => nearest(items, anchor.element.x))
    .filter((item) => item !== null && Math.abs(item.element.x - anchor.element.x) <= REACH)
    .sort((a, b) => a.datasetIndex - b.datasetIndex);
};

// Round ticks of a logarithmic axis: whole decades, or 1 and 3, or 1, 2 and 5 of each; the first that gives three.
function logTicks(low, high) {
  const ticksOf = (steps) => {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
      ticks.push(...steps.map((step) => ({ value: Number(`${step}e${power}`) })));
    }
    return ticks.filter(({ value }) => value >= low * 0.999 && value <= high * 1.001);
  };
  const candidates = [[1], [1, 3], [1, 2, 5]].map(ticksOf);
  return candidates.find((ticks) => ticks.length >= 3) ?? candidates.at(-1);
}

function applyTheme() {
  Chart.defaults.animation = false;
  Chart.defaults.responsive = true;
  Chart.defaults.maintainAspectRatio = false;
  Chart.defaults.font.family = style("--sans");
  Chart.defaults.font.size = 12;
  Chart.defaults.color = style("--muted");
  Chart.defaults.borderColor = style("--grid");
  Chart.defaults.plugins.legend.display = false;
  Object.assign(Chart.defaults.plugins.tooltip, {
    backgroundColor: style("--raised"),
    titleColor: style("--ink"),
    bodyColor: style("--ink"),
    footerColor: style("--muted"),
    borderColor: style("--line"),
    borderWidth: 1,
    padding: 10,
    caretPadding: 12,
    caretSize: 0,
    boxPadding: 5,
    usePointStyle: true,
    titleFont: { weight: "600" },
    footerFont: { weight: "400" },
  });
}

// An axis with a title, for all charts alike.
function axis(title, options = {}) {
  const { ticks, ...rest } = options;
  return {
    title: { display: title !== "", text: title, color: style("--muted"), padding: 6 },
    grid: { color: style("--grid"), borderColor: style("--line"), tickLength: 4 },
    ticks: { maxRotation: 0, padding: 4, ...ticks },
    ...rest,
  };
}
