#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens a report of synthetic runs in Chromium: no errors, every chart drawn, on a laptop and on a phone, in both
themes; the controls do what they say. Usage: browser_test.py MAKE_SAMPLE_REPORT [FOLDER_FOR_SCREENSHOTS]"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from browser import Browser

SKIPPED = 77  # what CTest takes for "not run"
VIEWS = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "phone": (390, 844, "light"),
         "phone-dark": (390, 844, "dark")}

# How many colours each canvas shows; 1 is a blank one.
COLOURS = """[...document.querySelectorAll("main canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4) colours.add((data[i] << 16 | data[i + 1] << 8 | data[i + 2]) * 256 + data[i + 3]);
  return colours.size;
})"""
OVERFLOWING = """[...document.querySelectorAll("body *")].filter((node) => {
  const box = node.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map((node) => node.tagName + "." + node.className)"""

failures = []


def expect(condition, text):
    if not condition:
        failures.append(text)
        print(f"FAILED: {text}")


def check_errors(browser, view):
    collected = browser.evaluate("document.getElementById('errors').textContent")
    expect(collected == "" and not browser.errors, f"{view}: errors: {collected} {browser.errors}")


def check_view(browser, page, view, pictures):
    width, height, theme = VIEWS[view]
    browser.open(page, width, height, theme)
    state = browser.evaluate("({...document.body.dataset})")
    expect(state.get("ready") == "1", f"{view}: the page did not become ready: {state}")
    expect(state.get("charts") == "8", f"{view}: 8 charts wanted (2 curves, 4 blend, 2 scaling): {state}")
    expect(state.get("maps") == "24", f"{view}: 24 maps wanted (8 heads, 3 fields): {state}")
    check_errors(browser, view)
    colours = browser.evaluate(COLOURS)
    expect(len(colours) > 32 and min(colours) > 1, f"{view}: a canvas is blank: {colours}")
    wide = browser.evaluate("document.scrollingElement.scrollWidth")
    expect(wide == width, f"{view}: the page is {wide} px wide in a window of {width} px")
    overflowing = browser.evaluate(OVERFLOWING)
    expect(not overflowing, f"{view}: reaches beyond the window: {overflowing[:5]}")
    if pictures:
        browser.screenshot(os.path.join(pictures, f"{view}.png"))


def check_controls(browser, page):
    browser.open(page, *VIEWS["light"])
    click = "[...document.querySelectorAll('{}')].find((b) => b.textContent.includes('{}')).click()"
    chart = "Chart.getChart(document.querySelector('#curves canvas:not(.mark)'))"

    lines = browser.evaluate(f"{chart}.data.datasets.filter((set) => !set.isDecoration).length")
    expect(lines == 3, f"one line a model wanted, seeds joined: {lines}")
    browser.evaluate(click.format("#curves button", "log"))
    expect(browser.evaluate(f"{chart}.scales.y.type") == "logarithmic", "log does not switch the axis")
    browser.evaluate(click.format("#curves button", "both"))
    lines = browser.evaluate(f"{chart}.data.datasets.filter((set) => !set.isDecoration).length")
    expect(lines == 6, f"train and valid of three models wanted: {lines}")
    browser.evaluate(click.format("#curves .legend button", "linear"))
    lines = browser.evaluate(f"{chart}.data.datasets.filter((set) => !set.isDecoration).length")
    expect(lines == 4, f"the legend does not hide a model: {lines}")

    browser.evaluate(click.format("#results thead button", "Best"))
    first = "document.querySelector('#results tbody th').textContent"
    expect(browser.evaluate(first) == "softmax transformer", "sorting by accuracy: softmax should lead")
    browser.evaluate(click.format("#results thead button", "Best"))
    expect(browser.evaluate(first) == "linear transformer", "sorting the other way: linear should lead")
    browser.evaluate(click.format("#results button", "single runs"))
    expect(browser.evaluate("document.querySelectorAll('#results tbody tr').length") == 6, "six runs wanted")

    gpu = "document.querySelector('#gpu tbody').innerText"
    expect("0.2 ms" in (text := browser.evaluate(gpu)) or "200 µs" in text, f"the GPU's time is missing: {text}")
    expect("missed" in text and "out of memory" in text, f"a missed limit and a failure should show: {text}")
    browser.evaluate(click.format("#gpu button", "fp32"))
    expect("missed" not in browser.evaluate(gpu), "the type of the GPU's table does not switch")

    browser.evaluate("document.querySelector('.map canvas').focus()")
    for _ in range(2):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowDown", code="ArrowDown",
                         windowsVirtualKeyCode=40)
    readout = browser.evaluate("document.querySelector('.readout').textContent")
    expect("query 2 “4”" in readout and "key 0 “0”" in readout, f"arrow keys do not move: {readout}")
    run = "document.querySelector('#maps select')"
    browser.evaluate(f"{run}.value = [...{run}.options].findIndex((o) => o.text === 'softmax-s1');"
                     f"{run}.dispatchEvent(new Event('change'))")
    expect(browser.evaluate("document.querySelectorAll('.map canvas').length") == 8, "softmax has one map a head")

    before = browser.evaluate(f"{chart}.data.datasets.find((set) => !set.isDecoration).borderColor")
    browser.set_theme("dark")
    browser.evaluate("new Promise((done) => setTimeout(done, 100))")
    after = browser.evaluate(f"{chart}.data.datasets.find((set) => !set.isDecoration).borderColor")
    expect(before != after, "the charts do not follow the theme")
    check_errors(browser, "controls")


# What the page's own functions say.
TEXTS = {
    "seconds(0.01234)": "12.3 ms", "seconds(75)": "75 s", "seconds(185)": "3 min 5 s", "seconds(40000)": "11 h 6 min",
    "seconds(null)": "–", "bytes(3 * 2 ** 20)": "3 MiB", "count(412000)": "412 k", "whole(3163787)": "3,163,787",
    "digits(0.000012345)": "1.23e-5", "times(19.4)": "19×", "times(1234)": "1,234×",
    "metricText({name: 'accuracy', is_share: true}, 0.98765)": "98.77%", "metricText({name: 'perplexity'}, 33.7)": "33.70",
    "spreadText({mean: 418000, deviation: 2900}, count)": "418 ± 2.9 k",
    "spreadText({mean: 2000, deviation: 0}, whole)": "2,000", "spreadText(null, whole)": "–",
    "comparedTime(0.5)": "2× slower", "comparedTime(8)": "8× faster",
    "listed(['a', 'b', 'c'])": "a, b and c",
    "logTicks(0.004, 3).map((tick) => tick.value).join()": "0.01,0.1,1",
    "logTicks(0.15, 1).map((tick) => tick.value).join()": "0.2,0.5,1",
    **{f"savingCard({{about: '{about}', savings: [{{fast: 'fmm', slow: 'softmax', length: 4096, time_ratio: 8}}]}})"
       ".querySelector('.note').textContent": f"faster than softmax at length 4,096{type}"
       for about, type in (("one layer, fp32, causal", " in fp32"), ("", ""))},
}


def check_texts(browser, page):
    browser.open(page, *VIEWS["light"])
    for expression, wanted in TEXTS.items():
        shown = browser.evaluate(expression)
        expect(shown == wanted, f"{expression} is '{shown}', not '{wanted}'")


def check_lra(browser, make_page, folder):
    """Runs of Long Range Arena stand in the paper's table."""
    files = []
    published = [("listops", 0.36), ("text", None), ("retrieval", 0.5), ("image", 0.5), ("pathfinder", 0.5)]
    for task, test, recipe in [(*one, "published") for one in published] + [("listops", 0.4, "tuned")]:
        name = f"lra/{task}/softmax.{recipe}"
        files.append(os.path.join(folder, "lra", task, recipe, "record.json"))
        os.makedirs(os.path.dirname(files[-1]))
        with open(files[-1], "w", encoding="utf-8") as file:
            json.dump({"format": "fmmformer-record", "version": 1, "kind": "training", "name": name, "task": task,
                       "group": name + " #7", "metric": {"name": "accuracy", "is_share": True},
                       "curves": {"valid": [{"step": 1, "loss": 1, "metric": 0.5}, {"step": 2, "loss": 0.9, "metric": 0.6}]},
                       "result": {"test_metric": test, "best_metric": 0.6, "best_step": 2}}, file)
    page = os.path.join(folder, "lra.html")
    subprocess.run([make_page, "--render", page, *files], check=True)
    browser.open(page, *VIEWS["phone"])
    check_errors(browser, "lra")
    text = browser.evaluate("document.querySelector('#lra tbody').innerText")
    for wanted in ("softmax, the paper", "37.10%", "softmax.published", "36.00% (−1.10)", "60.00% (−4.17) *",
                   "60.00% (+1.30) *"):  # the last: an average of one split, since one task has no test
        expect(wanted in text, f"the table of Long Range Arena lacks '{wanted}': {text}")
    tuned = browser.evaluate("document.querySelector('#lra tbody tr:last-child').innerText")
    for wanted in ("softmax.tuned", "40.00% (+2.90)", "60.00% (−4.17) *"):  # the last is the published recipe's run
        expect(wanted in tuned, f"the tuned line of Long Range Arena lacks '{wanted}': {tuned}")
    expect(browser.evaluate("document.body.dataset.charts") == "10", "loss and accuracy of five tasks wanted")
    expect(not (wide := browser.evaluate(OVERFLOWING)), f"lra: reaches beyond the window: {wide[:5]}")


def check_language_model(browser, make_page, folder, pictures):
    """A language model has perplexities beside the paper's, samples, ranks and bands."""
    page = os.path.join(folder, "language_model.html")
    subprocess.run([make_page, "--render", page, os.path.join(folder, "language_model", "record.json")], check=True)
    for view in ("light", "phone-dark"):
        browser.open(page, *VIEWS[view])
        check_errors(browser, "language model")
        colours = browser.evaluate(COLOURS)
        expect(min(colours) > 1, f"language model, {view}: a canvas is blank: {colours}")
        expect(not (wide := browser.evaluate(OVERFLOWING)), f"language model: reaches beyond the window: {wide[:5]}")
        if pictures:
            browser.screenshot(os.path.join(pictures, f"language_model-{view}.png"))
    for section, texts in {"wikitext": ("WikiText-2", "92.25", "33.15", "34.29"), "rank": ("without band 5", "251"),
                           "bands": ("80.0%", "50.0%"), "curves": ("Perplexity",),
                           "samples": ("The game was <unk> in 1999", "temperature 0.8, top_k 40", "<b>bold</b>")}.items():
        shown = browser.evaluate(f"document.getElementById('{section}').innerText")
        for wanted in texts:
            expect(wanted in shown, f"language model: {section} lacks '{wanted}': {shown}")
    best = browser.evaluate("document.querySelector('.card .value').textContent")
    expect("%" not in best, f"a perplexity is no share: {best}")
    expect(browser.evaluate("document.body.dataset.charts") == "5", "2 curves, 2 of ranks, 1 of bands wanted")
    browser.evaluate("[...document.querySelectorAll('#bands button')].find((b) => b.textContent === 'mass').click()")
    chart = "Chart.getChart(document.querySelector('#bands canvas'))"
    expect(browser.evaluate(f"{chart}.data.datasets[0].data[1].y") == 0.5, "mass does not switch the chart")
    check_errors(browser, "language model")


def check_hostile(browser, make_page, folder):
    """Names that are markup are shown; records with nothing in them draw nothing and break nothing."""
    record = {"format": "fmmformer-record", "version": 1, "kind": "training"}
    hostile = {**record, "name": "<b>x</b>", "task": "</script><img src=x onerror=alert(1)>",
               "curves": {"train": [{"step": 1, "loss": None}, {"step": 2, "loss": 1}]},
               "blend": [{"near": [0.5], "far": [[0.25]]}],
               "maps": {"heads": [{"blend": [[0, -1], [0.5, 0]]}]}}
    files = []
    for name, value in (("hostile", hostile), ("empty", record), ("scaling", {**record, "kind": "scaling"}),
                        ("gpu", {**record, "kind": "gpu"})):
        os.makedirs(os.path.join(folder, "odd", name))
        files.append(os.path.join(folder, "odd", name, "record.json"))
        with open(files[-1], "w", encoding="utf-8") as file:
            json.dump(value, file)
    page = os.path.join(folder, "odd.html")
    subprocess.run([make_page, "--render", page, *files], check=True)
    browser.open(page, *VIEWS["phone"])
    expect(browser.evaluate("document.body.dataset.ready") == "1", "odd records: not ready")
    check_errors(browser, "odd records")
    expect("<b>x</b>" in browser.evaluate("document.body.innerText"), "odd records: markup is not shown as text")
    expect(browser.evaluate("document.querySelectorAll('img').length") == 0, "odd records: markup was run")


def main():
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("skipped: no chromium found (apt-get install chromium)")
        return SKIPPED
    make_page = sys.argv[1]
    pictures = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder, Browser(program) as browser:
        subprocess.run([make_page, folder], check=True)
        page = os.path.join(folder, "report.html")
        for view in VIEWS:
            check_view(browser, page, view, pictures)
        check_controls(browser, page)
        check_texts(browser, page)
        check_hostile(browser, make_page, folder)
        check_lra(browser, make_page, folder)
        check_language_model(browser, make_page, folder, pictures)
    print(f"{len(failures)} failures" if failures else "the page is fine in every view")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
