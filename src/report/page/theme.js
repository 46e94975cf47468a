// Colours and Chart.js defaults. The palette (after Okabe and Ito) stays distinct for colour-blind
// readers; shapes repeat what colours say.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

const PALETTE = {
  light: ["#0072b2", "#c44e00", "#00855f", "#a8447f", "#8a6a00", "#3f8fc4", "#5b5b5b", "#7a3db8"],
  dark: ["#5db4ef", "#ff8f4a", "#35c79b", "#e594c3", "#e3c04a", "#9ad1f5", "#b9b9b9", "#c39bf0"],
};
const SHAPES = ["circle", "rect", "triangle", "rectRot", "star", "crossRot", "cross", "dash"];

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
  return SHAPES[(slots.get(name) ?? 0) % SHAPES.length];
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
