#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/generators.svg: what our generators make beside what the published ones made.

    cmake --build build --target generator_report
    build/tests/tasks/generator_report | scripts/draw_generators.py > docs/images/generators.svg
"""

import base64
import json
import struct
import sys
import zlib

WIDTH, MARGIN, GAP = 860, 20, 16
PICTURE = 74
CHART_WIDTH, CHART_HEIGHT, TITLE = 194, 84, 34
CHARTS = {
    "ListOps": ["tokens", "operators", "arguments an operator", "outermost operator and answer"],
    "Pathfinder, the picture": ["pixels with ink", "mean grey", "grey 192..255", "connected regions"],
    "Pathfinder, the scene": ["distance between markers", "contour's mean turn", "contour's mean row", "distractors"],
}
STYLE = """
    .panel { fill: #f7f8fa; stroke: #8b949e; }
    .published { fill: #b6bfc9; }
    .ours { fill: none; stroke: #d9480f; stroke-width: 1.5; }
    .axis { stroke: #57606a; }
    text { fill: #1f2328; font-size: 12px; }
    .name { font-weight: 600; font-size: 14px; }
    .small { font-size: 11px; fill: #424a53; }
    .middle { text-anchor: middle; } .end { text-anchor: end; }
    image { image-rendering: pixelated; }"""


def png(pixels, side=32):
    """A grey picture as a data address."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(pixels[side * y:side * (y + 1)]) for y in range(side))
    data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(data).decode()


def pictures(title, examples, left, top):
    parts = [f'<text x="{left}" y="{top + 12}" class="name">{title}</text>']
    for i, example in enumerate(examples):
        x = left + i * (PICTURE + 7)
        parts.append(f'<image x="{x}" y="{top + 20}" width="{PICTURE}" height="{PICTURE}" '
                     f'href="{png(example["pixels"])}"/>')
        parts.append(f'<text x="{x + PICTURE / 2}" y="{top + 34 + PICTURE}" class="small middle">'
                     f'{"one path" if example["label"] else "two paths"}</text>')
    return parts


def chart(statistic, left, top):
    """Shares of the examples: bars for the published ones, a line for ours."""
    ours, published = ([count / sum(counts) for count in counts]
                       for counts in (statistic["ours"], statistic["published"]))
    bar, scale = CHART_WIDTH / len(ours), CHART_HEIGHT / max(ours + published)
    base = top + TITLE + CHART_HEIGHT
    parts = [f'<text x="{left}" y="{top + 12}">{statistic["name"]}</text>',
             f'<text x="{left}" y="{top + 26}" class="small">'
             f'differs by {statistic["surprise"]:+.1f} standard deviations</text>']
    path = f"M{left} {base}"
    for i, (our_share, share) in enumerate(zip(ours, published)):
        x = left + i * bar
        parts.append(f'<rect class="published" x="{x + 0.5:.1f}" y="{base - share * scale:.1f}" '
                     f'width="{bar - 1:.1f}" height="{share * scale:.1f}"/>')
        path += f"V{base - our_share * scale:.1f}H{x + bar:.1f}"
    first, last = statistic["first"], statistic["first"] + statistic["width"] * len(ours)
    names = ["MIN", "MAX", "MED", "SM"] if "answer" in statistic["name"] else []  # ten answers under each
    parts.append(f'<path class="ours" d="{path}V{base}"/>')
    parts.append(f'<line class="axis" x1="{left}" x2="{left + CHART_WIDTH}" y1="{base}" y2="{base}"/>')
    ends = [] if names else [("", 0, first), (" end", CHART_WIDTH, last)]
    parts += [f'<text x="{left + x}" y="{base + 13}" class="small{side}">{value:g}</text>' for side, x, value in ends]
    parts += [f'<text x="{left + CHART_WIDTH * (i + 0.5) / 4}" y="{base + 13}" class="small middle">{name}</text>'
              for i, name in enumerate(names)]
    return parts


def draw(report):
    parts, top = [], MARGIN
    parts += pictures("Pathfinder as published", report["published_pictures"], MARGIN, top)
    parts += pictures("Ours", report["our_pictures"], WIDTH / 2 + GAP / 2, top)
    top += PICTURE + 58
    statistics = {statistic["name"]: statistic for statistic in report["listops"] + report["pathfinder"]}
    for section, names in CHARTS.items():
        parts.append(f'<text x="{MARGIN}" y="{top + 12}" class="name">{section}</text>')
        for i, name in enumerate(names):
            parts += chart(statistics[name], MARGIN + i * (CHART_WIDTH + GAP), top + 20)
        top += 20 + TITLE + CHART_HEIGHT + 34
    listops, pathfinder = (f'{sum(report[task][0]["published"]):,}' for task in ("listops", "pathfinder"))
    parts.append(f'<text x="{MARGIN}" y="{top + 4}" class="small">Bars: {listops} lines and {pathfinder} pictures of '
                 f'the published generators. Line: {sum(report["listops"][0]["ours"]):,} and '
                 f'{sum(report["pathfinder"][0]["ours"]):,} of ours. Two samples of one distribution differ by 0 ± 1.'
                 '</text>')
    height = top + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        '     role="img" aria-labelledby="title"',
        '     font-family="system-ui, -apple-system, \'Segoe UI\', \'DejaVu Sans\', sans-serif">',
        '<title id="title">Examples of ours beside those of the published generators: pictures and histograms</title>',
        f"<defs><style>{STYLE}\n</style></defs>",
        f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        *parts, "</svg>"])


if __name__ == "__main__":
    print(draw(json.load(sys.stdin)))
