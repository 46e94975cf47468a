// Long Range Arena as the paper's Table 1 has it: a line of the paper, then those of our recipes.

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

// The test split's accuracy, or, marked, the validation split's where there is no test.
function lraScore(group) {
  const tested = known(group.results.test_metric?.mean);
  const spread = tested ? group.results.test_metric : group.results.best_metric;
  return known(spread?.mean) ? { spread, mark: tested ? "" : " *" } : null;
}

function lraCell(group) {
  const score = group ? lraScore(group) : null;
  if (score === null) return "–";
  const text = spreadText(score.spread, (value) => metricText(group.metric, value));
  const { paper } = group.lra;
  return text + (known(paper) ? ` (${signed(100 * (score.spread.mean - paper))})` : "") + score.mark;
}

// Over all tasks the same split: test where all have it, else, marked, valid.
function lraAverage(groups, paper) {
  if (!groups.every(Boolean)) return "–";
  const tested = groups.every((group) => known(group.results.test_metric?.mean));
  const values = groups.map((group) => (tested ? group.results.test_metric : group.results.best_metric)?.mean);
  if (!values.every(known)) return "–";
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return `${(100 * mean).toFixed(2)}%${known(paper) ? ` (${signed(100 * (mean - paper))})` : ""}${tested ? "" : " *"}`;
}

function drawLra(report) {
  const groups = report.groups.filter((group) => group.lra);
  if (groups.length === 0) return;
  const { tasks, rows: order, averages, stand_ins: standIns } = report.lra;
  const place = (row) => (order.includes(row) ? order.indexOf(row) : order.length);
  const names = [...new Set(groups.map((group) => group.lra.row))].sort((a, b) => place(a) - place(b));
  const titles = ["Model", ...tasks.map(capital), "Average"];
  const rows = names.flatMap((row) => {
    const ofRow = groups.filter((group) => group.lra.row === row);
    const papers = tasks.map((task) => ofRow.find((group) => group.lra.task === task)?.lra.paper);
    const percent = (share) => (known(share) ? `${(100 * share).toFixed(2)}%` : "–");
    const average = papers.some(known) ? averages[row] : null;
    const paper = papers.some(known)
      ? [plainRow(titles, `${row}, the paper`, [...papers.map(percent), percent(average)])] : [];
    const ours = [...new Set(ofRow.map((group) => group.name))].map((name) => {
      // Where a recipe is another one's, its cell is that one's.
      const find = (task, wanted) => ofRow.find((group) => group.lra.task === task && group.name === wanted);
      const line = tasks.map((task) => find(task, name) ?? find(task, standIns[`${task}/${name}`]?.split("/")[1]));
      return plainRow(titles, name, [...line.map(lraCell), lraAverage(line, average)]);
    });
    return [...paper, ...ours];
  });
  openSection("lra").append(plainTable(titles, rows),
    origin(groups.flatMap((group) => group.runs.map((index) => report.runs[index]))));
}
