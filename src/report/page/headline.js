// What was compared, on what, and the numbers that matter.

function distinct(values) {
  return [...new Set(values.filter((value) => value))];
}

// Names stand out from the sentence: they may hold commas of their own.
function named(names) {
  return names.flatMap((name, i) => [
    i === 0 ? "" : i === names.length - 1 ? " and " : ", ", element("b", {}, name)]);
}

function plural(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function lengthSentence(scaling) {
  const lengths = scaling.flatMap((one) => one.series.flatMap((series) => series.points.map((point) => point.length)));
  const methods = distinct(scaling.flatMap((one) => one.series.map((series) => series.name)));
  return `Time and memory of ${plural(methods.length, "method")} at lengths ` +
    `from ${whole(Math.min(...lengths))} to ${whole(Math.max(...lengths))}. `;
}

function writeSummary(report) {
  const { runs, groups, scaling } = report;
  const tasks = distinct(groups.map((group) => group.task));
  const machines = distinct(runs.map((run) => run.machine));
  const days = distinct(runs.map((run) => run.created).sort().map(dateText));
  const versions = distinct(runs.flatMap((run) => run.versions.map((pair) => pair.join(" "))));
  const commits = distinct(runs.map((run) => run.commit));
  const made = [days.length > 1 ? `${days[0]} to ${days.at(-1)}` : days[0], ...versions,
    commits.length ? `commit ${commits.join(", ")}` : null].filter(Boolean);

  const text = [];
  if (groups.length > 0) {
    const training = runs.filter((run) => run.kind === "training").length;
    text.push(...named(distinct(groups.map((group) => group.name))),
      tasks.length ? ` on ${listed(tasks)}` : "", `: ${plural(training, "run")}. `);
  }
  if (scaling.some((one) => one.series.some((series) => series.points.length))) text.push(lengthSentence(scaling));
  if (machines.length > 0) text.push(`Measured on ${machines.join("; and on ")}. `);
  if (made.length > 0) text.push(`${capital(made.join(", "))}.`);
  if (runs.length === 0) text.push("No runs were given: train a model, then render its folder.");
  document.getElementById("summary").append(...text);
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
  const [from, to] = [text(Math.min(...values)), text(Math.max(...values))];
  return from === to ? from : `${from.replace("×", "")}–${to}`;
}

// Every FMM method against softmax, at the longest length that was common to them. The type of the numbers belongs to it:
// softmax in fp32 has no tensor cores.
function savingCard({ savings, about }) {
  const length = Math.max(...savings.map((saving) => saving.length));
  const same = savings.filter((saving) => saving.length === length);
  const [time, memory] = [same.map((saving) => saving.time_ratio), same.map((saving) => saving.memory_ratio).filter(known)];
  const relation = Math.min(...time) >= 1 ? "faster than" : "the speed of";
  const [type] = /\b(fp64|fp32|bf16|fp16)\b/.exec(about ?? "") ?? [];
  const notes = [`${relation} ${same[0].slow} at length ${whole(length)}${type ? ` in ${type}` : ""}`];
  // Both keep no N x N matrix, so memory is often about the same: that is no headline.
  if (memory.length && memory.some((ratio) => ratio > 1.5 || ratio < 1 / 1.5)) {
    notes.push(Math.min(...memory) >= 1 ? `${range(memory, times)} less memory`
      : `${range(memory.map((ratio) => 1 / ratio), times)} its memory`);
  }
  return card("FMM speed-up", range(time, times), notes.join(", "), same.length === 1 ? same[0].fast : undefined);
}

function drawHeadline(report) {
  writeSummary(report);
  const tasks = distinct(report.groups.map((group) => group.task));
  document.getElementById("headline").append(
    ...report.groups.filter((group) => group.results.best_metric && !group.lra)  // those have a table below
      .map((group) => accuracyCard(group, tasks.length > 1)),
    ...report.scaling.filter((scaling) => scaling.savings.length > 0)
      .map(savingCard));
  document.getElementById("footer").textContent =
    `${report.runs.length} record${report.runs.length === 1 ? "" : "s"}` +
    `${report.written ? `, rendered ${report.written.replace("T", " ").replace("Z", " UTC")}` : ""}.` +
    " This page needs no network. Charts by Chart.js (MIT licence).";
}
