// The final numbers, sortable by any column.

function tableColumns(rows) {
  const result = (key, title, text) => ({
    key, title, number: true,
    value: (row) => row.results[key]?.mean ?? null,
    text: (row) => spreadText(row.results[key], (value, like) => text(value, like, row)),
  });
  const metricName = [...new Set(rows.map((row) => row.metric.name))];
  const title = metricName.length === 1 ? metricName[0] : "metric";
  const metric = (value, like, row) => metricText(row.metric, value);
  const columns = [
    { key: "name", title: "Model", value: (row) => row.label, text: (row) => row.label },
    { key: "task", title: "Task", value: (row) => row.task, text: (row) => row.task || "–" },
    { key: "seeds", title: "Seeds", number: true, value: (row) => row.seeds, text: (row) => whole(row.seeds) },
    result("parameters", "Parameters", whole),
    result("best_metric", `Best ${title}`, metric),
    result("test_metric", `Test ${title}`, metric),
    result("best_step", "At step", whole),
    result("tokens_per_second", "Tokens/s", count),
    result("seconds", "Time", seconds),
    result("peak_bytes", "Memory", bytes),
  ];
  const optional = new Set(["task", "seeds", "test_metric"]);
  return columns.filter((column) => {
    const values = new Set(rows.map(column.value));
    if (column.key === "task" || column.key === "seeds") return values.size > 1 || column.key === "seeds";
    return !optional.has(column.key) || [...values].some((value) => value !== null);
  });
}

function tableRows(report, each) {
  return report.groups.flatMap((group) => {
    const base = { name: group.name, task: group.task, metric: group.metric };
    if (!each) return [{ ...base, label: group.name, seeds: group.runs.length, results: group.results }];
    return group.runs.map((index, i) => (
      { ...base, label: report.runs[index].name, seeds: 1, results: group.each[i] }));
  });
}

function compared(left, right) {
  if (left === null || right === null) return Number(left === null) - Number(right === null);
  return typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right;
}

function tableBody(columns, rows, order) {
  const column = columns.find(({ key }) => key === order.key);
  const sorted = column === undefined ? rows : [...rows].sort((left, right) => {
    const [a, b] = [column.value(left), column.value(right)];
    // What is unknown stays below, whichever way the rest goes.
    return a === null || b === null ? compared(a, b) : order.sign * compared(a, b);
  });
  return element("tbody", {}, sorted.map((row) => element("tr", {}, columns.map((one) =>
    (one.key === "name"
      ? element("th", { scope: "row" }, mark(row.name), element("span", {}, one.text(row)))
      : element("td", { class: one.number ? "number" : undefined, "data-title": one.title }, one.text(row)))))));
}

function tableHead(columns, order, sortBy) {
  return element("thead", {}, element("tr", {}, columns.map((column) => element("th", {
    scope: "col", class: column.number ? "number" : undefined,
    "aria-sort": order.key !== column.key ? undefined : order.sign > 0 ? "ascending" : "descending",
  }, element("button", { type: "button", "data-key": column.key, onclick: () => sortBy(column.key) }, column.title)))));
}

function drawTable(report) {
  if (report.groups.length === 0) return;
  const content = openSection("results");
  const state = { each: false, order: { key: null, sign: 1 } };
  const columns = tableColumns(tableRows(report, false));
  const table = element("table", { class: "results" });

  function redraw() {
    table.replaceChildren(tableHead(columns, state.order, sortBy),
      tableBody(columns, tableRows(report, state.each), state.order));
  }
  function sortBy(key) {
    // Numbers are asked for from the largest down, names from A on.
    const first = columns.find((column) => column.key === key)?.number ? -1 : 1;
    state.order = { key, sign: state.order.key === key ? -state.order.sign : first };
    redraw();
    table.querySelector(`th button[data-key="${key}"]`)?.focus();
  }
  redraw();
  content.append(
    element("div", { class: "controls" },
      choice("Rows", [[false, "models"], [true, "single runs"]], state.each, (each) => {
        state.each = each;
        redraw();
      }),
      element("div", { class: "narrow-only" },
        picker("Sort by", [["", "–"], ...columns.map((column) => [column.key, column.title])], "", sortBy))),
    table,
    origin(report.groups.flatMap((group) => group.runs.map((index) => report.runs[index]))));
}
