// Texts that language models went on with.

function sampleFigure(run, sample) {
  const about = [known(sample.seed) ? `seed ${sample.seed}` : null, sample.settings || null,
    known(sample.step) ? `weights of step ${whole(sample.step)}` : null].filter(Boolean).join(", ");
  return element("figure", { class: "sample" },
    element("blockquote", {}, element("b", {}, sample.prompt), sample.text),
    element("figcaption", { class: "origin" }, `${run.name}: ${about}`));
}

function drawSamples(report) {
  const runs = report.runs.filter((run) => run.findings.samples.length > 0);
  if (runs.length === 0) return;
  openSection("samples").append(...runs.flatMap((run) =>
    run.findings.samples.map((sample) => sampleFigure(run, sample))));
}
