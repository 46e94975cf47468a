#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the records of training runs together in compact form, for bench/results/runs.

    scripts/collect_runs.py RUN/record.json .. > bench/results/runs/copy.json

    scripts/collect_runs.py $(find runs/lra -name record.json) > bench/results/runs/lra.json

A file that this script wrote may be among the arguments: runs of several machines or days come together that way.

Of each run: what it was (name, config, seed, commit, machine), how it went (loss and metric on fresh data at every
evaluation) and how fast.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def runs_of(path: Path) -> list[dict]:
    record = json.loads(path.read_text(encoding="utf-8"))
    if "runs" not in record:
        return [compact(path, record)]
    head = {key: value for key, value in record.items() if key != "runs"}
    return [{**run, **head} for run in record["runs"]]


def name_of(path: Path, record: dict) -> str:
    """Of one experiment's seeds, which lie in folders seed-N or, kept, in its own: NAME/seed-N."""
    if path.parent.name.startswith("seed-") or record["name"].startswith("lra/"):
        return f"{record['name']}/seed-{record['seed']}"
    return path.parent.name


def seconds_per_step(record: dict) -> float | None:
    if "seconds_per_step" in record["result"]:
        return record["result"]["seconds_per_step"]
    task = record["config"]["task"]  # records of before it was written
    tokens = record["config"]["train"]["batch_size"] * task[task["name"]].get("length", 0)
    return tokens / record["result"]["tokens_per_second"] if tokens else None


def compact(path: Path, record: dict) -> dict:
    result = record["result"]
    train = record["config"]["train"]
    seconds, scored = seconds_per_step(record), result.get("seconds_per_evaluation_batch")
    return {
        "run": name_of(path, record),
        **{key: record[key] for key in ("name", "seed", "status", "created", "commit", "machine", "versions")},
        "precision": train.get("precision", "fp32"),
        "parameters": record["parameters"],
        "steps": result["steps"],
        "steps_run": result.get("steps_run", ""),
        "ms_per_step": round(1e3 * seconds, 3) if seconds else None,
        "ms_per_evaluation_batch": round(1e3 * scored, 3) if scored else None,
        "peak_mib": round(result["peak_bytes"] / 2**20),
        "seconds": round(result["seconds"], 1),
        "metric": record["metric"]["name"],
        **{key: round(result[key], 5) for key in ("best_metric", "best_step", "test_metric") if key in result},
        "curve": {
            key: [round(point[key], 5) for point in record["curves"]["valid"]] for key in ("step", "loss", "metric")
        },
    }


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    by_name = {run["run"]: run for name in sys.argv[1:] for run in runs_of(Path(name))}  # the last one counts
    runs = list(by_name.values())
    shared = ("machine", "versions")  # said once where all runs agree
    head = {key: runs[0][key] for key in shared if all(run[key] == runs[0][key] for run in runs)}
    for run in runs:
        for key in head:
            del run[key]
    lines = ",\n".join("  " + json.dumps(run) for run in sorted(runs, key=lambda run: run["run"]))
    print(json.dumps(head)[:-1] + (", " if head else "") + '"runs": [\n' + lines + "\n]}")


if __name__ == "__main__":
    main()
