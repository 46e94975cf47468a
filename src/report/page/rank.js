// Ranks of attention matrices without their band: a histogram a bandwidth, and typical singular values.

const RANK_BINS = 32;

// Bandwidths are ordered, so their colours are too: from muted (nothing removed) to strong.
function bandColour(index, count) {
  const colours = PALETTE[dark.matches ? "dark" : "light"];
  return index === 0 ? style("--muted") : colours[[0, 2, 1, 3][(index - 1) % 4] ?? count];
}

function binned(histogram, width, bins) {
  const counts = Array.from({ length: bins }, () => 0);
  histogram.forEach(([rank, count]) => { counts[Math.min(Math.floor(rank / width), bins - 1)] += count; });
  return counts;
}

function histogramConfig(rank, kind) {
  const highest = Math.max(...rank.bands.flatMap((band) => [band.bound, ...band[kind].map(([value]) => value)]));
  const width = Math.max(1, Math.ceil((highest + 1) / RANK_BINS));
  const bins = Math.floor(highest / width) + 1;
  const range = (bin) => (width === 1 ? `${bin}` : `${bin * width}–${(bin + 1) * width - 1}`);
  return {
    type: "bar",
    data: {
      labels: Array.from({ length: bins }, (_, bin) => range(bin)),
      datasets: rank.bands.map((band, i) => ({
        label: bandName(band), data: binned(band[kind], width, bins),
        backgroundColor: bandColour(i, rank.bands.length), categoryPercentage: 0.9, barPercentage: 1,
      })),
    },
    options: {
      interaction: { mode: "index", intersect: false },
      scales: { x: axis("rank", { ticks: { maxTicksLimit: 9 }, grid: { display: false } }), y: axis("matrices", { beginAtZero: true }) },
      plugins: { tooltip: { filter: (item) => item.parsed.y > 0, callbacks: { title: (items) => (items.length ? `rank ${items[0].label}` : "") } } },
    },
  };
}

function spectrumConfig(rank) {
  return {
    type: "line",
    data: { datasets: rank.bands.map((band, i) => ({
      label: bandName(band),
      // What is below the double's own noise is drawn at its edge.
      data: band.singular_values.map((value, place) => ({ x: place + 1, y: Math.max(value, 1e-18) })),
      borderColor: bandColour(i, rank.bands.length), backgroundColor: bandColour(i, rank.bands.length),
      borderWidth: 2, pointRadius: 0, pointHoverRadius: 4,
    })) },
    options: {
      interaction: { mode: "samePlace" },
      scales: {
        x: axis("number of the singular value", { type: "linear", min: 1, ticks: { maxTicksLimit: 8 } }),
        y: axis("", { type: "logarithmic", afterBuildTicks: (scale) => {
          scale.ticks = logTicks(scale.min, scale.max);
        }, ticks: { callback: (value) => digits(value, 1) } }),
      },
      plugins: { tooltip: { callbacks: {
        title: (items) => (items.length ? `singular value ${items[0].parsed.x}` : ""),
        label: (item) => `${item.dataset.label}: ${digits(item.parsed.y)}`,
      } } },
    },
  };
}

function bandName(band) {
  return band.bandwidth === 0 ? "nothing removed" : `without band ${band.bandwidth}`;
}

// The rank that `share` of the matrices do not exceed.
function rankQuantile(histogram, share) {
  const total = histogram.reduce((sum, [, count]) => sum + count, 0);
  let seen = 0;
  for (const [rank, count] of histogram) {
    seen += count;
    if (seen >= share * total) return rank;
  }
  return null;
}

function rankTable(rank) {
  const titles = ["Matrices", "Bound", "Above 1e-6: median", "10% to 90%", "Above 1e-6 of the largest: median", "10% to 90%"];
  const cells = (histogram) => [whole(rankQuantile(histogram, 0.5)),
    `${whole(rankQuantile(histogram, 0.1))} to ${whole(rankQuantile(histogram, 0.9))}`];
  return plainTable(titles, rank.bands.map((band) =>
    plainRow(titles, bandName(band), [whole(band.bound), ...cells(band.absolute), ...cells(band.relative)])));
}

function bandLegend(rank) {
  return element("div", { class: "legend still" }, rank.bands.map((band, i) => {
    const canvas = element("canvas", { class: "mark", width: 28, height: 28, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    context.fillStyle = bandColour(i, rank.bands.length);
    context.fillRect(4, 4, 20, 20);
    return element("span", { class: "entry" }, canvas, bandName(band));
  }));
}

function drawRank(report) {
  report.runs.filter((run) => run.findings.rank).forEach((run) => {
    const { rank } = run.findings;
    const histogram = chartPanel("Ranks", choice("Threshold", [["absolute", "above 1e-6"], ["relative", "of the largest"]],
      "absolute", (kind) => drawChart(histogram.canvas, () => histogramConfig(rank, kind))));
    const spectrum = chartPanel("Typical singular values");
    openSection("rank").append(
      element("h3", { class: "task" }, run.name),
      element("div", { class: "controls" }, bandLegend(rank)),
      element("div", { class: "pair" }, histogram.panel, spectrum.panel),
      rankTable(rank),
      origin([run], `, ${whole(rank.matrices)} matrices of ${whole(rank.tokens)} tokens (median), weights of step ${whole(rank.step)}`));
    drawChart(histogram.canvas, () => histogramConfig(rank, "absolute"));
    drawChart(spectrum.canvas, () => spectrumConfig(rank));
  });
}
