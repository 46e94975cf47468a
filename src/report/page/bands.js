// How much of the attention lies in a band, against its width: a line a layer, and one for all.

function bandsConfig(bands, kind) {
  const colours = PALETTE[dark.matches ? "dark" : "light"];
  const line = (label, shares, colour, width) => ({
    label, data: bands.widths.map((width, i) => ({ x: width, y: shares[kind][i] })),
    borderColor: colour, backgroundColor: colour, borderWidth: width, pointRadius: width > 2 ? 3 : 0, pointHoverRadius: 5,
  });
  return {
    type: "line",
    data: { datasets: [line("all layers", bands.all, style("--ink"), 2.5),
      ...bands.layers.map((layer, i) => line(`layer ${i + 1}`, layer, transparent(colours[i % colours.length], 0.7), 1.3))] },
    options: {
      interaction: { mode: "samePlace" },
      scales: {
        x: axis("width of the band", { type: "logarithmic", afterBuildTicks: (scale) => {
          scale.ticks = bands.widths.map((value) => ({ value }));
        }, ticks: { callback: (value) => whole(value) } }),
        y: axis("", { min: 0, max: 1, ticks: { callback: (value) => `${Math.round(100 * value)}%` } }),
      },
      plugins: { tooltip: { callbacks: {
        title: (items) => (items.length ? `|i − j| < ${whole(items[0].parsed.x)}` : ""),
        label: (item) => `${item.dataset.label}: ${(100 * item.parsed.y).toFixed(1)}%`,
      } } },
    },
  };
}

function drawBands(report) {
  report.runs.filter((run) => run.findings.bands).forEach((run) => {
    const { bands } = run.findings;
    const panel = chartPanel(run.name, choice("Share", [["energy", "energy"], ["mass", "mass"]], "energy",
      (kind) => drawChart(panel.canvas, () => bandsConfig(bands, kind))));
    const titles = ["Width", ...bands.widths.map(whole)];
    const shares = (kind) => bands.all[kind].map((share) => `${(100 * share).toFixed(1)}%`);
    openSection("bands").append(element("div", { class: "pair" }, panel.panel),
      plainTable(titles, [plainRow(titles, "energy", shares("energy")), plainRow(titles, "mass", shares("mass"))]),
      origin([run], `, ${whole(bands.matrices)} matrices, weights of step ${whole(bands.step)}`));
    drawChart(panel.canvas, () => bandsConfig(bands, "energy"));
  });
}
