// What was compared, on what, and the numbers that matter.

function distinct(values) {
  return [...new Set(values.filter((value) => value))];
}

function writeSummary(report) {
  const tasks = distinct(report.groups.map((group) => group.task));
  const training = report.runs.filter((run) => run.kind === "training");
  const machines = distinct(report.runs.map((run) => run.machine));
  const dates = distinct(report.runs.map((run) => run.created)).sort();
  const versions = distinct(report.runs.flatMap((run) => run.versions.map((pair) => pair.join(" "))));
  const commits = distinct(report.runs.map((run) => run.commit));

  const sentences = [];
  if (report.groups.length > 0) {
    const names = distinct(report.groups.map((group) => group.name));
    sentences.push(`${listed(names)}${names.length > 1 ? " side by side" : ""}` +
      `${tasks.length ? ` on ${listed(tasks)}` : ""}: ${training.length} run${training.length > 1 ? "s" : ""}.`);
  }
  if (report.scaling.length > 0) {
    const series = distinct(report.scaling.flatMap((scaling) => scaling.series.map((one) => one.name)));
    sentences.push(`Time and memory against length for ${listed(series)}.`);
  }
  if (machines.length > 0) sentences.push(`Measured on ${machines.join("; and on ")}.`);
  const days = distinct(dates.map(dateText));
  const made = [days.length > 1 ? `${days[0]} to ${days.at(-1)}` : days[0], ...versions,
    commits.length ? `commit ${commits.join(", ")}` : null].filter(Boolean);
  if (made.length > 0) sentences.push(`${capital(made.join(", "))}.`);
  document.getElementById("summary").textContent =
    sentences.join(" ") || "No runs were given: train a model, then render its folder again.";
}

function card(label, value, note, name) {
  return element("div", { class: "card" },
    element("p", { class: "label" }, name ? mark(name) : null, element("span", {}, label)),
    element("p", { class: "value" }, value),
    element("p", { class: "note" }, note));
}

function accuracyCard(group, severalTasks) {
  const best = group.results.best_metric;
  const note = [`best ${group.metric.name}`,
    known(best.deviation) ? `± ${metricText(group.metric, best.deviation)} over ${best.count} seeds` : null,
    severalTasks ? group.task : null].filter(Boolean).join(", ");
  return card(group.name, metricText(group.metric, best.mean), note, group.name);
}

function range(values, text) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [from, to] = [text(low), text(high)];
  return from === to ? from : `${from.replace("×", "")}–${to}`;
}

function savingCard(savings) {
  const length = Math.max(...savings.map((saving) => saving.length));
  const same = savings.filter((saving) => saving.length === length);
  const memory = same.map((saving) => saving.memory_ratio).filter(known);
  const note = [`than ${same[0].slow} at length ${whole(length)}`,
    memory.length ? `${range(memory, times)} less memory` : null].filter(Boolean).join(", ");
  return card("FMM speed-up", `${range(same.map((saving) => saving.time_ratio), times)}`, `faster ${note}`,
    same.length === 1 ? same[0].fast : undefined);
}

function drawHeadline(report) {
  writeSummary(report);
  const tasks = distinct(report.groups.map((group) => group.task));
  document.getElementById("headline").append(
    ...report.groups.filter((group) => group.results.best_metric)
      .map((group) => accuracyCard(group, tasks.length > 1)),
    ...report.scaling.filter((scaling) => scaling.savings.length > 0)
      .map((scaling) => savingCard(scaling.savings)));
  document.getElementById("footer").textContent =
    `${report.runs.length} record${report.runs.length === 1 ? "" : "s"}` +
    `${report.written ? `, rendered ${report.written.replace("T", " ").replace("Z", " UTC")}` : ""}.` +
    " This page needs no network. Charts by Chart.js (MIT licence).";
}
