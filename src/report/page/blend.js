// The learned weights of the near field and of each far field, head by head: one small chart a layer.

function meanOf(values) {
  const numbers = values.filter(known);
  return numbers.length ? numbers.reduce((sum, value) => sum + value, 0) / numbers.length : null;
}

// The fields of a layer with the place of their marks beside the head's number.
function blendFields(layer) {
  const far = layer.far.map((weights, i) => ({
    name: layer.far.length > 1 || layer.feature_maps[i] ? `far: ${layer.feature_maps[i] ?? i + 1}` : "far",
    weights, index: i }));
  const fields = [...(layer.near.length ? [{ name: "near", weights: layer.near, index: -1 }] : []), ...far];
  return fields.map((field, i) => ({ ...field, offset: (i - (fields.length - 1) / 2) * 0.2 }));
}

function fieldLook(field) {
  const far = [style("--far"), style("--far-2"), style("--far-3")];
  return field.index < 0 ? { colour: style("--near"), shape: "circle" }
    : { colour: far[field.index % far.length], shape: ["triangle", "rect", "rectRot"][field.index % 3] };
}

function blendDatasets(layer) {
  return blendFields(layer).flatMap((field) => {
    const { colour, shape } = fieldLook(field);
    const perChannel = field.weights.some((channels) => channels.length > 1);
    const means = { label: field.name, weights: field.weights, pointStyle: shape, pointRadius: 5,
      backgroundColor: colour, borderColor: perChannel ? style("--page") : colour, borderWidth: 1, order: 0,
      data: field.weights.map((channels, head) => ({ x: head + 1 + field.offset, y: meanOf(channels) })) };
    if (!perChannel) return [means];
    return [means, { label: field.name, isDecoration: true, pointStyle: "line", pointRadius: 5, pointHitRadius: 0,
      pointHoverRadius: 5, borderColor: transparent(colour, 0.4), borderWidth: 1, order: 1,
      data: field.weights.flatMap((channels, head) =>
        channels.map((y) => ({ x: head + 1 + field.offset, y }))) }];
  });
}

function blendConfig(layer, limits) {
  const heads = Math.max(layer.near.length, ...layer.far.map((weights) => weights.length));
  return {
    type: "scatter",
    data: { datasets: blendDatasets(layer) },
    options: {
      interaction: { mode: "samePlace" },
      scales: {
        x: axis("head", { type: "linear", min: 0.5, max: heads + 0.5, afterBuildTicks: (scale) => {
          scale.ticks = Array.from({ length: heads }, (_, head) => ({ value: head + 1 }));
        }, grid: { display: false } }),
        y: axis("", { ...limits, ticks: { maxTicksLimit: 6, callback: (value) => digits(value, 2) } }),
      },
      plugins: { tooltip: {
        callbacks: {
          title: (items) => (items.length ? `layer ${layer.layer + 1}, head ${items[0].dataIndex + 1}` : ""),
          label: (item) => {
            const channels = item.dataset.weights[item.dataIndex].filter(known);
            const range = channels.length > 1
              ? `  (${channels.length} channels, ${digits(Math.min(...channels))} to ${digits(Math.max(...channels))})` : "";
            return `${item.dataset.label}: ${digits(item.parsed.y)}${range}`;
          },
        },
      } },
    },
  };
}

// One range for all layers, so that they can be compared.
function blendLimits(layers) {
  const values = layers.flatMap((layer) => [layer.near, ...layer.far].flat(2)).filter(known);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  return { suggestedMin: low, suggestedMax: high };
}

function blendLegend(layer) {
  return element("div", { class: "legend still" }, blendFields(layer).map((field) => {
    const { colour, shape } = fieldLook(field);
    const canvas = element("canvas", { class: "mark", width: 28, height: 28, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    context.fillStyle = context.strokeStyle = colour;
    Chart.helpers.drawPoint(context, { pointStyle: shape, radius: 9, borderWidth: 1 }, 14, 14);
    return element("span", { class: "entry" }, canvas, field.name);
  }));
}

function drawBlend(report) {
  const runs = report.runs.filter((run) => run.blend.length > 0);
  if (runs.length === 0) return;
  const content = openSection("blend");
  const [grid, key, from] = [element("div", { class: "quad" }), element("div", { class: "slot" }), element("div", {})];
  const chooseRun = (run) => {
    const limits = blendLimits(run.blend);
    forgetCharts(grid);
    const panels = run.blend.map((layer) => ({ layer, ...chartPanel(`Layer ${layer.layer + 1}`) }));
    grid.replaceChildren(...panels.map(({ panel }) => panel));
    panels.forEach(({ layer, canvas }) => drawChart(canvas, () => blendConfig(layer, limits)));
    key.replaceChildren(blendLegend(run.blend[0]));
    from.replaceChildren(origin([run], pictured(run)));
  };
  let current = runs[0];
  dark.addEventListener("change", () => key.replaceChildren(blendLegend(current.blend[0])));
  content.append(
    element("div", { class: "controls" }, key,
      picker("Run", runs.map((run, i) => [i, run.name]), 0, (index) => chooseRun(current = runs[index]))),
    grid, from);
  chooseRun(current);
}
