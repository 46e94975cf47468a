// Loss and metric against steps, one line per model.

const [STEP, MEAN, LOW, HIGH, COUNT] = [0, 1, 2, 3, 4];

// Three datasets a line: the line, and the two edges of its band.
function curveDatasets(group, part, points) {
  const colour = colourOf(group.name);
  const edge = (side, fill) => ({
    data: points.map((point) => ({ x: point[STEP], y: point[side] })),
    borderWidth: 0, pointRadius: 0, pointHitRadius: 0, pointHoverRadius: 0, fill, backgroundColor: transparent(colour, 0.16), isDecoration: true,
  });
  const line = {
    label: group.name, part, points,
    data: points.map((point) => ({ x: point[STEP], y: point[MEAN] })),
    borderColor: colour, backgroundColor: colour, borderWidth: part === "train" ? 1.3 : 2,
    borderDash: part === "train" ? [4, 3] : [], ...shapeOf(group.name),
    pointRadius: part === "train" || points.length > 40 ? 0 : 3, pointHoverRadius: 5, clip: 8, order: 0,
  };
  const banded = points.some((point) => point[COUNT] > 1);
  return banded ? [{ ...edge(LOW, false), order: 1 }, { ...edge(HIGH, "-1"), order: 1 }, line] : [line];
}

function curveTooltip(text, view) {
  return {
    callbacks: {
      title: (items) => `step ${[...new Set(items.map((item) => item.parsed.x))].map(whole).join(", ")}`,
      label: (item) => {
        const point = item.dataset.points[item.dataIndex];
        const seeds = point[COUNT] > 1 ? `  (${text(point[LOW])} to ${text(point[HIGH])})` : "";
        const part = view.parts === "both" ? `, ${item.dataset.part}` : "";
        return `${item.dataset.label}${part}: ${text(point[MEAN])}${seeds}`;
      },
    },
  };
}

// Zero, and of a share 100%, are on the axis where the lines come near them.
function valueLimits(value, metric, view, datasets) {
  if (view.scales[value] === "logarithmic") {
    return { afterBuildTicks: (scale) => {
      scale.ticks = logTicks(scale.min, scale.max);
    } };
  }
  const values = datasets.flatMap((set) => set.data.map((point) => point.y)).filter(known);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const share = value === "metric" && metric.is_share;
  return { suggestedMin: low >= 0 && low < high / 2 ? 0 : undefined, suggestedMax: share && high > 0.7 ? 1 : undefined };
}

function curveConfig(groups, value, view) {
  const { metric } = groups[0];
  const text = value === "loss" ? (number) => digits(number, 4) : (number) => metricText(metric, number);
  const tick = value === "loss" || !metric.is_share ? (number) => digits(number, 3)
    : (number) => `${Number((100 * number).toFixed(4))}%`;
  const datasets = groups.filter((group) => !view.hidden.has(group.name)).flatMap((group) =>
    (view.parts === "both" ? ["train", "valid"] : [view.parts])
      .flatMap((part) => curveDatasets(group, part, group.curves[part][value])));
  return {
    type: "line",
    data: { datasets },
    options: {
      interaction: { mode: "samePlace" },
      scales: {
        x: axis("step", { type: "linear", ticks: { maxTicksLimit: 7, callback: (number) => count(number) } }),
        y: axis("", { type: view.scales[value], ...valueLimits(value, metric, view, datasets),
          ticks: { maxTicksLimit: 8, callback: tick } }),
      },
      plugins: { tooltip: curveTooltip(text, view) },
    },
  };
}

function drawTaskCurves(report, content, task, heading) {
  const groups = report.groups.filter((group) => group.task === task &&
    ["train", "valid"].some((part) => ["loss", "metric"].some((value) => group.curves[part][value].length > 0)));
  if (groups.length === 0) return;
  const view = { parts: "valid", hidden: new Set(), scales: { loss: "linear", metric: "linear" } };
  if (!groups.some((group) => group.curves.valid.loss.length + group.curves.valid.metric.length > 0)) view.parts = "train";

  const charts = ["loss", "metric"].filter((value) =>
    groups.some((group) => group.curves.train[value].length + group.curves.valid[value].length > 0)).map((value) => {
    const title = value === "loss" ? "Loss" : capital(groups[0].metric.name);
    const scale = choice(`Scale of ${title}`, [["linear", "linear"], ["logarithmic", "log"]], "linear", (chosen) => {
      view.scales[value] = chosen;
      redraw();
    });
    return { value, ...chartPanel(title, scale) };
  });
  const redraw = () => charts.forEach(({ value, canvas }) => drawChart(canvas, () => curveConfig(groups, value, view)));

  content.append(
    ...(heading ? [element("h3", { class: "task" }, task || "no task named")] : []),
    element("div", { class: "controls" },
      legend(groups.map((group) => group.name), view.hidden, redraw),
      choice("Which curves", [["valid", "valid"], ["train", "train"], ["both", "both"]], view.parts, (chosen) => {
        view.parts = chosen;
        redraw();
      })),
    element("div", { class: "pair" }, charts.map(({ panel }) => panel)),
    origin(groups.flatMap((group) => group.runs.map((index) => report.runs[index]))));
  redraw();
}

function drawCurves(report) {
  const tasks = [...new Set(report.groups.map((group) => group.task))];
  if (tasks.length === 0) return;
  const content = openSection("curves");
  tasks.forEach((task) => drawTaskCurves(report, content, task, tasks.length > 1));
}
