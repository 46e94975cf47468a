// Draws everything once, and again when the reader's theme changes.

(function start() {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  report.groups.forEach((group) => slotOf(group.name, group.attention));
  report.scaling.forEach((scaling) => scaling.series.forEach((series) => slotOf(series.name, series.attention)));
  applyTheme();
  [drawHeadline, drawLra, drawWikitext, drawCurves, drawTable, drawSamples, drawMaps, drawBlend, drawRank, drawBands, drawGpu,
    drawScaling, drawConfigs].forEach((draw) => {
    // One broken part must not take the others with it.
    try {
      draw(report);
    } catch (error) {
      console.error(error.stack ?? error);
    }
  });
  dark.addEventListener("change", () => {
    applyTheme();
    for (const [canvas, { makeConfig }] of drawings) drawChart(canvas, makeConfig);
    document.querySelectorAll("canvas.mark[data-name]").forEach(paintMark);
  });
  document.body.dataset.charts = String(drawings.size);
  document.body.dataset.maps = String(document.querySelectorAll(".map canvas").length);
  document.body.dataset.ready = "1";
})();
