#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the program measured in turns on one machine: which is faster, case by case.

    scripts/compare_builds.py OLD NEW [--rounds N] [--json FILE] -- bench attention [OPTION..]

OLD and NEW are folders that hold the program, such as two unpacked archives of scripts/pack_build.sh, or the programs
themselves; what follows `--` is a benchmark with `--json` that reports times, on the CPU or on a GPU. (Variants on a GPU are
reported as quotients: compare cases instead.) In every round each build runs once, the other one first in every second
round; a time is the median over rounds of what the benchmark reports, and the quotient of a round compares runs that
followed each other. Where the quotients of all rounds are on one side of 1, the line has a mark. Among equal builds that
happens by chance, with five rounds in 6 % of lines: look at the quotient too, or take more rounds.

Exits with 0 when it is done, 1 when a benchmark failed or the builds share no times, 2 when its input was wrong.

    git worktree add ../new some-branch && make -C ../new build
    scripts/compare_builds.py build ../new/build -- bench attention --case causal_2048_r3_band30 --peers none
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NoReturn

Key = tuple[str, ...]  # case, type, what was timed


DONE, FAILED, WRONG_INPUT = 0, 1, 2


def end(code: int, message: str) -> NoReturn:
    print(f"compare_builds: {message}", file=sys.stderr)
    raise SystemExit(code)


def program_of(build: pathlib.Path) -> pathlib.Path:
    program = build / "fmmformer" if build.is_dir() else build
    if not program.is_file():
        end(WRONG_INPUT, f"there is no program {program}")
    return program.resolve()


def medians(entry: object, path: Key = ()) -> Iterator[tuple[Key, float]]:
    """Every time in a benchmark's record, in ms, under the names that lead to it."""
    if isinstance(entry, list):
        for one in entry:
            yield from medians(one, path)
    if not isinstance(entry, dict):
        return
    for kind in ("case", "variant"):
        if kind in entry:
            path = (str(entry[kind]), str(entry.get("dtype", "")))
    for point in entry.get("points", []):  # of `bench scaling`
        if "seconds" in point:
            yield (str(entry["name"]), "", f"at {point['length']}"), 1e3 * float(point["seconds"])
    if path and "median_ms" in entry:
        yield path, float(entry["median_ms"])
    for name, member in entry.items():
        yield from medians(member, (*path, name) if path else ())


def measured(program: pathlib.Path, arguments: list[str]) -> dict[Key, float]:
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "record.json"
        # Its own library before the one that this shell may name.
        libraries = ":".join(filter(None, [str(program.parent), os.environ.get("LD_LIBRARY_PATH")]))
        run = subprocess.run([program, *arguments, "--json", record], capture_output=True, text=True, check=False,
                             env={**os.environ, "LD_LIBRARY_PATH": libraries})
        call = f"{program} {' '.join(arguments)}"
        if run.returncode != 0:
            end(WRONG_INPUT if run.returncode == WRONG_INPUT else FAILED, f"{call} failed:\n{run.stdout}{run.stderr}")
        if not record.exists():
            end(WRONG_INPUT, f"{call} wrote no record; what follows `--` has to measure something")
        found = dict(medians(json.loads(record.read_text(encoding="utf-8"))))
    if not found:
        end(FAILED, f"{call} reported no times")
    return found


def compared(old: list[dict[Key, float]], new: list[dict[Key, float]]) -> list[dict[str, object]]:
    """A row for everything that both builds timed in every round."""
    keys = [key for key in old[0] if all(key in one for one in old + new)]
    rows = []
    for key in keys:
        quotients = [n[key] / o[key] for o, n in zip(old, new)]
        rows.append({
            "case": key[0], "dtype": key[1], "what": " ".join(key[2:]),
            "old_ms": statistics.median(one[key] for one in old), "new_ms": statistics.median(one[key] for one in new),
            "quotient": statistics.median(quotients), "least": min(quotients), "most": max(quotients)})
    return rows


def verdict(row: dict[str, object]) -> str:
    if row["most"] < 1:
        return "faster"
    return "slower" if row["least"] > 1 else ""


def table(rows: list[dict[str, object]], rounds: int) -> str:
    names = [f"{row['case']} {row['dtype']} {row['what']}".replace("  ", " ") for row in rows]
    width = max(map(len, names), default=0)
    lines = [f"{'':{width}}  {'old ms':>10}  {'new ms':>10}  {'new / old':>9}  all rounds"]
    for name, row in zip(names, rows):
        lines.append(f"{name:{width}}  {row['old_ms']:10.4f}  {row['new_ms']:10.4f}  {row['quotient']:9.3f}  "
                     f"{row['least']:.3f} to {row['most']:.3f} {verdict(row)}".rstrip())
    lines.append(f"(all of {rounds} rounds on one side: by chance in {200 / 2**rounds:.3g} % of lines)")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5, help="how often each build runs (5)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, benchmark = parser.parse_args(arguments[:split]), arguments[split + 1:]
    if not benchmark or options.rounds < 1:
        parser.error("name a benchmark after `--`, and at least one round")
    builds = [program_of(options.old), program_of(options.new)]
    try:  # before anything is measured
        output = options.json.open("w", encoding="utf-8") if options.json else None
    except OSError as error:
        parser.error(f"--json: {error}")
    runs: list[list[dict[Key, float]]] = [[], []]
    for turn in range(options.rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            print(f"round {turn + 1} of {options.rounds}: {builds[which]}", file=sys.stderr, flush=True)
            runs[which].append(measured(builds[which], benchmark))
    rows = compared(*runs)
    if not rows:
        end(FAILED, "the builds have no time in common")
    print(table(rows, options.rounds))
    if output:
        output.write(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
