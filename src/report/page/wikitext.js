// Perplexities beside the paper's two tables, a table for each corpus.

const CORPORA = { wikitext103: "WikiText-103", wikitext2: "WikiText-2" };

function perplexity(spread) {
  return spread ? spreadText(spread, (value) => (known(value) ? value.toFixed(2) : "–")) : "–";
}

function drawWikitext(report) {
  const groups = report.groups.filter((group) => group.wikitext);
  if (groups.length === 0) return;
  const content = openSection("wikitext");
  const corpora = Object.keys(CORPORA).filter((corpus) => groups.some((group) => group.wikitext.corpus === corpus));
  corpora.forEach((corpus) => {
    const ours = groups.filter((group) => group.wikitext.corpus === corpus);
    const titles = ["Model", "Valid", "Test", "Paper, valid", "Paper, test", "Seeds", "Steps"];
    const rows = report.wikitext.flatMap((paper) => {
      const same = ours.filter((group) => group.wikitext.row === paper.row);
      // What was changed is not the paper's model.
      const papers = (group, value) => (group.wikitext.changed ? "" : value.toFixed(2));
      return same.map((group) => plainRow(titles, [mark(group.name), element("span", {}, same.length > 1 ? group.name : paper.title)],
        [perplexity(group.results.best_metric), perplexity(group.results.test_metric), papers(group, paper.valid),
          papers(group, paper.test), whole(group.runs.length), whole(group.results.steps?.mean)]));
    });
    content.append(element("h3", { class: "task" }, CORPORA[corpus]), plainTable(titles, rows),
      origin(ours.flatMap((group) => group.runs.map((index) => report.runs[index]))));
  });
}
