#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the loss curves of the copy task, as the paper's figures 4 and 5 group them, into one SVG.

    scripts/plot_runs.py bench/results/runs/copy.json > docs/images/copy_curves.svg

Runs of other seeds (fmm2_512_seed2) are dashed. What is not drawn, such as the control in fp32, is named on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path

LENGTHS = (128, 256, 512)
# A figure of the paper a row: what it compares, and the curves by preset.
ROWS = [
    (
        "near field: bands",
        [
            ("softmax", "softmax", "#222222"),
            ("linear", "linear", "#d62728"),
            ("fmm1", "1 kernel, features divided", "#ff7f0e"),
            ("fmm1_band10", "1 kernel + band 10", "#9ecae1"),
            ("fmm1_band20", "1 kernel + band 20", "#4292c6"),
            ("fmm1_band30", "1 kernel + band 30", "#08519c"),
        ],
    ),
    (
        "far field: kernels",
        [
            ("softmax", "softmax", "#222222"),
            ("linear", "linear", "#d62728"),
            ("fmm1", "1 kernel, features divided", "#ff7f0e"),
            ("fmm2", "2 kernels", "#a1d99b"),
            ("fmm3", "3 kernels", "#31a354"),
            ("fmm3_band30", "3 kernels + band 30", "#006d2c"),
        ],
    ),
]
LOWEST, HIGHEST = 1e-4, 3.0  # of the loss
WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 270, 190, 62, 34, 34, 168


class Panel:
    """One pair of axes: updates across, loss down on a logarithmic scale."""

    def __init__(self, x: float, y: float, steps: int) -> None:
        self.x, self.y, self.steps = x, y, steps

    def point(self, step: float, loss: float) -> tuple[float, float]:
        loss = min(max(loss, LOWEST), HIGHEST)
        down = (math.log(HIGHEST) - math.log(loss)) / (math.log(HIGHEST) - math.log(LOWEST))
        return self.x + WIDTH * step / self.steps, self.y + HEIGHT * down

    def frame(self, title: str) -> str:
        parts = [f'<rect x="{self.x}" y="{self.y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
        for power in range(-4, 1):
            _, y = self.point(0, 10.0**power)
            parts.append(f'<line x1="{self.x}" x2="{self.x + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e5e5"/>')
            parts.append(f'<text x="{self.x - 6}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
        for step in range(0, self.steps + 1, self.steps // 4):
            x, _ = self.point(step, LOWEST)
            parts.append(f'<text x="{x:.1f}" y="{self.y + HEIGHT + 15}" text-anchor="middle">{step}</text>')
        parts.append(f'<text x="{self.x + WIDTH / 2}" y="{self.y - 8}" text-anchor="middle" class="title">{title}</text>')
        return "\n".join(parts)

    def curve(self, run: dict, colour: str, dashed: bool) -> str:
        points = zip(run["curve"]["step"], run["curve"]["loss"])
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.point(*point) for point in points))
        dashes = ' stroke-dasharray="4 2"' if dashed else ""
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"{dashes}/>'


def legend(x: float, y: float, heading: str, curves: list[tuple[str, str, str]]) -> str:
    parts = [f'<text x="{x}" y="{y}" class="title">{heading}</text>']
    for number, (_, label, colour) in enumerate(curves):
        line = y + 20 * (number + 1)
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{line - 4}" y2="{line - 4}" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{line}">{label}</text>')
    return "\n".join(parts)


def of_any_seed(model: str, length: int, runs: dict[str, dict]) -> list[str]:
    """The names of a model's runs: of the config's own seed, and of others."""
    return [name for name in runs if re.fullmatch(rf"{model}_{length}(_seed\d+)?", name)]


def draw(runs: dict[str, dict]) -> str:
    lengths = [length for length in LENGTHS if f"softmax_{length}" in runs]
    width = LEFT + len(lengths) * (WIDTH + GAP + 24) + LEGEND
    height = TOP + len(ROWS) * (HEIGHT + GAP + 22)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:12px}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for row, (heading, curves) in enumerate(ROWS):
        top = TOP + row * (HEIGHT + GAP + 22)
        for column, length in enumerate(lengths):
            panel = Panel(LEFT + column * (WIDTH + GAP + 24), top, runs[f"softmax_{length}"]["steps"])
            parts.append(panel.frame(f"loss against update, length {length}"))
            parts += [
                panel.curve(runs[name], colour, dashed="_seed" in name)
                for model, _, colour in curves
                for name in of_any_seed(model, length, runs)
            ]
        drawn = [curve for curve in curves if any(of_any_seed(curve[0], length, runs) for length in lengths)]
        parts.append(legend(LEFT + len(lengths) * (WIDTH + GAP + 24), top + 12, heading, drawn))
    return "\n".join([*parts, "</svg>"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    record = json.loads(parser.parse_args().record.read_text(encoding="utf-8"))
    runs = {run["run"]: run for run in record["runs"]}
    print(draw(runs))
    drawn = {name for _, curves in ROWS for model, *_ in curves for length in LENGTHS
             for name in of_any_seed(model, length, runs)}
    if runs.keys() - drawn:
        print("plot_runs: not drawn:", ", ".join(sorted(runs.keys() - drawn)), file=sys.stderr)


if __name__ == "__main__":
    main()
