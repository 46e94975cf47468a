#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws time and peak memory a sample against length, the paper's figure 6, from a record of `bench scaling` or of
scripts/gpu_check.sh, into one SVG.

    scripts/plot_scaling.py bench/results/nvidia_h200.json > docs/images/scaling_h200.svg
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

COLOURS = {
    "softmax": "#222222",
    "softmax with its N x N matrix": "#999999",
    "linear (1 kernel)": "#d62728",
    "2 kernels": "#a1d99b",
    "3 kernels": "#31a354",
    "FMM: 3 kernels + band 30": "#08519c",
}
WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 330, 250, 62, 34, 84, 232
UNITS = ((1, ""), (1e-3, "m"), (1e-6, "µ"))
OTHER_COLOURS = ("#ff7f0e", "#9467bd", "#8c564b", "#17becf")  # of series that have none above


class Panel:
    """A pair of logarithmic axes: lengths across in powers of two, a quantity up in powers of `base`."""

    def __init__(self, x: float, lengths: list[int], values: list[float], base: int) -> None:
        self.x, self.base = x, base
        self.lengths = [math.log2(min(lengths)), math.log2(max(lengths))]
        lowest = math.floor(math.log(min(values), base))
        self.powers = [lowest, max(math.ceil(math.log(max(values), base)), lowest + 1)]

    def point(self, length: float, value: float) -> tuple[float, float]:
        across = (math.log2(length) - self.lengths[0]) / (self.lengths[1] - self.lengths[0])
        up = (math.log(value, self.base) - self.powers[0]) / (self.powers[1] - self.powers[0])
        return self.x + WIDTH * across, TOP + HEIGHT * (1 - up)

    def frame(self, title: str, label: Callable[[float], str]) -> str:
        parts = [f'<rect x="{self.x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
        for power in range(self.powers[0], self.powers[1] + 1):
            _, y = self.point(2 ** self.lengths[0], float(self.base) ** power)
            parts.append(f'<line x1="{self.x}" x2="{self.x + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e5e5"/>')
            parts.append(f'<text x="{self.x - 6}" y="{y + 4:.1f}" text-anchor="end">{label(float(self.base) ** power)}</text>')
        for power in range(math.ceil(self.lengths[0]), math.floor(self.lengths[1]) + 1):
            if power % 2 == 1:
                x, _ = self.point(2**power, float(self.base) ** self.powers[0])
                parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">2'
                             f'<tspan dy="-5" font-size="9">{power}</tspan></text>')
        parts.append(f'<text x="{self.x + WIDTH / 2}" y="{TOP - 10}" text-anchor="middle" class="title">{title}</text>')
        return "\n".join(parts)

    def curve(self, points: list[tuple[int, float]], colour: str) -> str:
        places = [self.point(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in places)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>{dots}'


def seconds_text(seconds: float) -> str:
    unit, prefix = next(((unit, prefix) for unit, prefix in UNITS if seconds > 0.999 * unit), UNITS[-1])
    return f"{seconds / unit:g} {prefix}s"


def bytes_text(size: float) -> str:
    return f"{size / 2**30:g} GiB" if size >= 2**30 else f"{size / 2**20:g} MiB"


def colours_of(names: list[str]) -> dict[str, str]:
    others = [name for name in names if name not in COLOURS]
    return COLOURS | {name: OTHER_COLOURS[number % len(OTHER_COLOURS)] for number, name in enumerate(others)}


def legend(x: float, colours: dict[str, str]) -> str:
    parts = []
    for number, (name, colour) in enumerate(colours.items()):
        y = TOP + 20 + 22 * number
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{name}</text>')
    return "\n".join(parts)


def measured_points(series: list[dict]) -> dict[str, list[dict]]:
    """Of each series that has any, what was measured."""
    measured = {one["name"]: [point for point in one["points"] if "seconds" in point] for one in series}
    return {name: points for name, points in measured.items() if points}


def drawn(measured: dict[str, list[dict]]) -> str:
    colours = colours_of(list(measured))
    points = [point for one in measured.values() for point in one]
    lengths = [point["length"] for point in points]
    parts = []
    for number, (key, title, base, label) in enumerate((
            ("seconds", "time a sample", 10, seconds_text), ("peak_bytes", "peak memory a sample", 4, bytes_text))):
        panel = Panel(LEFT + number * (WIDTH + GAP), lengths, [point[key] for point in points], base)
        parts.append(panel.frame(title, label))
        parts += [panel.curve([(point["length"], point[key]) for point in one], colours[name])
                  for name, one in measured.items()]
    right = LEFT + 2 * WIDTH + GAP + 16
    parts.append(legend(right, {name: colours[name] for name in measured}))
    width, height = right + LEGEND, TOP + HEIGHT + 34
    style = "text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold }"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n<style>{style}</style>\n' + "\n".join(parts) + "\n</svg>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    path = parser.parse_args().record
    try:
        measured = measured_points(json.loads(path.read_text(encoding="utf-8")).get("series", []))
    except (OSError, ValueError, AttributeError, KeyError) as error:
        parser.error(f"{path} is no record: {error}")
    if len({point["length"] for points in measured.values() for point in points}) < 2:
        parser.error(f"{path} has no times at two lengths or more; `fmmformer bench scaling --json` makes them")
    print(drawn(measured))


if __name__ == "__main__":
    main()
