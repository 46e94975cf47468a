// Every run with its settings, those that differ between runs marked.

function differingKeys(runs) {
  const values = new Map();
  runs.forEach((run) => run.config.forEach(([key, value]) =>
    values.set(key, (values.get(key) ?? new Set()).add(value))));
  const holders = (key) => runs.filter((run) => run.config.some(([name]) => name === key)).length;
  return new Set([...values].filter(([key, seen]) => seen.size > 1 || holders(key) < runs.length).map(([key]) => key));
}

function configRows(pairs, marked = new Set()) {
  return element("dl", { class: "settings" }, pairs.filter(([, value]) => value).flatMap(([key, value]) => [
    element("dt", { class: marked.has(key) ? "differs" : undefined }, key),
    element("dd", { class: marked.has(key) ? "differs" : undefined }, value)]));
}

function drawConfigs(report) {
  if (report.runs.length === 0) return;
  const content = openSection("config");
  const training = report.runs.filter((run) => run.kind === "training");
  const marked = differingKeys(training);
  content.append(...report.runs.map((run) => element("details", {},
    element("summary", {}, slots.has(run.group) ? mark(run.group) : null, element("span", {}, run.name),
      element("span", { class: "aside" }, [run.task, run.seed === null ? "" : `seed ${run.seed}`].filter(Boolean).join(", "))),
    configRows([["file", run.source], ["command", run.command], ["created", run.created], ["commit", run.commit],
      ["machine", run.machine], ["versions", run.versions.map((pair) => pair.join(" ")).join(", ")]]),
    run.config.length ? configRows(run.config, run.kind === "training" ? marked : undefined) : null)));
}
