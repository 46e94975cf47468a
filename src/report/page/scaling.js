// Time and memory against length, both axes logarithmic.

const QUANTITIES = {
  seconds: { title: "Time", text: seconds, growth: "time_growth" },
  bytes: { title: "Memory", text: bytes, growth: "memory_growth" },
};

function scalingConfig(scaling, quantity, hidden) {
  const { text } = QUANTITIES[quantity];
  const lengths = [...new Set(scaling.series.flatMap((series) => series.points.map((point) => point.length)))]
    .sort((a, b) => a - b);
  const values = scaling.series.flatMap((series) => series.points.map((point) => point[quantity]))
    .filter((value) => known(value) && value > 0);
  return {
    type: "line",
    data: { datasets: scaling.series.filter((series) => !hidden.has(series.name)).map((series) => ({
      label: series.name,
      points: series.points.filter((point) => known(point[quantity]) && point[quantity] > 0),
      data: series.points.filter((point) => known(point[quantity]) && point[quantity] > 0)
        .map((point) => ({ x: point.length, y: point[quantity] })),
      borderColor: colourOf(series.name), backgroundColor: colourOf(series.name), borderWidth: 2,
      ...shapeOf(series.name), pointRadius: 4, pointHoverRadius: 6, clip: 8,
    })) },
    options: {
      interaction: { mode: "samePlace" },
      scales: {
        x: axis("length", { type: "logarithmic", min: lengths[0] / 1.12, max: lengths.at(-1) * 1.12, afterBuildTicks: (scale) => {
          scale.ticks = lengths.map((value) => ({ value }));
        }, ticks: { callback: (value) => (value >= 1024 ? `${digits(value / 1024)}k` : whole(value)) } }),
        y: axis("", { type: "logarithmic", min: Math.min(...values) / 1.5, max: Math.max(...values) * 1.5, afterBuildTicks: (scale) => {
          scale.ticks = (quantity === "bytes" ? memoryTicks : logTicks)(scale.min, scale.max);
        }, ticks: { callback: (value) => text(value) } }),
      },
      plugins: { tooltip: { callbacks: {
        title: (items) => (items.length ? `length ${whole(items[0].parsed.x)}` : ""),
        label: (item) => {
          const point = item.dataset.points[item.dataIndex];
          const spread = quantity === "seconds" && known(point.low) && known(point.high)
            ? `  (${text(point.low)} to ${text(point.high)})` : "";
          return `${item.dataset.label}: ${text(item.parsed.y)}${spread}`;
        },
      } } },
    },
  };
}

// Powers of 16, 8, 4 or 2 KiB, as far apart as still gives three.
function memoryTicks(low, high) {
  const ticksOf = (base) => {
    const ticks = [];
    for (let value = 2 ** 10; value <= high; value *= base) if (value >= low) ticks.push({ value });
    return ticks;
  };
  return [16, 8, 4].map(ticksOf).find((ticks) => ticks.length >= 3) ?? ticksOf(2);
}

function slopeText(growth) {
  return growth ? growth.exponent.toFixed(2) : "–";
}

function comparedTime(ratio) {
  return ratio >= 1 ? `${times(ratio)} faster` : `${times(1 / ratio)} slower`;
}

function scalingTable(scaling) {
  const titles = ["Method", "Longest", "Time", "Time slope", "Memory", "Memory slope", "Against softmax"];
  const rows = scaling.series.map((series) => {
    const last = series.points.filter((point) => known(point.seconds)).at(-1);
    const saving = scaling.savings.find((one) => one.fast === series.name);
    const cells = [last ? whole(last.length) : "–", seconds(last?.seconds), slopeText(series.time_growth),
      bytes(last?.bytes), slopeText(series.memory_growth),
      saving ? `${comparedTime(saving.time_ratio)} at ${whole(saving.length)}` : "–"];
    return plainRow(titles, [mark(series.name), element("span", {}, series.name)], cells);
  });
  return plainTable(titles, rows);
}

function failureNotes(scaling) {
  return scaling.series.flatMap((series) => {
    const first = series.points.find((point) => point.failure);
    return first ? [element("p", { class: "origin" }, `${series.name}: ${first.failure} at length ${whole(first.length)}.`)] : [];
  });
}

function drawScalingRecord(report, content, scaling) {
  const run = report.runs[scaling.run];
  const hidden = new Set();
  const quantities = Object.keys(QUANTITIES).filter((quantity) =>
    scaling.series.some((series) => series.points.some((point) => known(point[quantity]))));
  const charts = quantities.map((quantity) => ({ quantity, ...chartPanel(QUANTITIES[quantity].title) }));
  const redraw = () => charts.forEach(({ quantity, canvas }) =>
    drawChart(canvas, () => scalingConfig(scaling, quantity, hidden)));
  const growth = scaling.series.map((series) => series.time_growth).find(Boolean);
  content.append(
    ...(report.scaling.length > 1 ? [element("h3", { class: "task" }, run.name)] : []),
    ...(scaling.about ? [element("p", { class: "origin" }, `${capital(scaling.about)}.`)] : []),
    element("div", { class: "controls" }, legend(scaling.series.map((series) => series.name), hidden, redraw, (name) => {
      const { time_growth: slope } = scaling.series.find((series) => series.name === name);
      return slope ? element("span", { class: "slope" }, `time slope ${slopeText(slope)}`) : null;
    })),
    element("div", { class: "pair" }, charts.map(({ panel }) => panel)),
    scalingTable(scaling),
    ...failureNotes(scaling),
    ...(growth ? [element("p", { class: "origin" },
      "Slopes are fitted to the longer half of each method's lengths, where fixed costs no longer count.")] : []),
    origin([run]));
  redraw();
}

function drawScaling(report) {
  if (report.scaling.length === 0) return;
  const content = openSection("scaling");
  report.scaling.forEach((scaling) => drawScalingRecord(report, content, scaling));
}
