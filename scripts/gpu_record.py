#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins what scripts/gpu_check.sh left in a folder into one record, which `fmmformer report` renders:

    scripts/gpu_record.py FOLDER        writes FOLDER/gpu_check.json

From attention.json, variants.json, fast_weight.json and scaling.json (`fmmformer bench`), verify.json (`fmmformer verify`),
*.xml (pytest, GoogleTest), memcheck.log and racecheck.log (compute-sanitizer). What is missing is named in the record, not
invented.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

from kernel_hash import kernel_hash

# memcheck counts errors; racecheck counts what it displayed, and says in brackets what that was.
SUMMARY = re.compile(r"ERROR SUMMARY: (?P<errors>\d+) |RACECHECK SUMMARY: .*\((?P<races>\d+) errors?, (?P<warnings>\d+) ")
CASES = re.compile(r"(\d+ of \d+) within their allowance")


def read_json(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def check(name: str, **counts: int) -> dict:
    return {"name": name, **counts}


def not_run(name: str, why: str) -> dict:
    return {"name": name, "note": f"not run: {why}"}


def tests_check(name: str, path: pathlib.Path) -> dict:
    """GoogleTest and pytest write the same kind of file, but for where skipped tests are counted."""
    if not path.exists():
        return not_run(name, "no results were left")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in xml.etree.ElementTree.parse(path).getroot().iter("testsuite"):
        for key in counts:
            counts[key] += int(suite.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    return check(name, passed=counts["tests"] - failed - counts["skipped"], failed=failed, skipped=counts["skipped"])


def verify_check(path: pathlib.Path) -> dict:
    cases = read_json(path).get("cases")
    if cases is None:
        return not_run("verify", "no results were left")
    passed = sum(case["passed"] for case in cases)
    return check("verify", passed=passed, failed=len(cases) - passed)


def sanitizer_check(tool: str, path: pathlib.Path) -> dict:
    if not path.exists():
        return not_run(tool, "no log was left")
    log = path.read_text(encoding="utf-8", errors="replace")
    summaries = list(SUMMARY.finditer(log))
    if not summaries:
        missing = "is not installed" in log
        return not_run(tool, "compute-sanitizer " + ("is not installed" if missing else "ended without a summary"))
    last = summaries[-1]
    errors = int(last["errors"] or last["races"] or 0)
    note = f"{errors} errors" + (f", {last['warnings']} warnings" if last["warnings"] else "")
    cases = CASES.findall(log)
    if not cases:
        return not_run(tool, f"verify did not come to its end; {note} by then")
    within, of_all = cases[-1].split(" of ")
    passed = errors == 0 and within == of_all
    return {"name": tool, "passed": int(passed), "failed": int(not passed),
            "note": f"{note}; {cases[-1]} cases of verify passed"}


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return "driver " + subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "driver unknown"


def cpp_checks(folder: pathlib.Path) -> list[dict]:
    """A check for every test program that had something to say."""
    programs = sorted(folder.glob("*.xml"))
    return [tests_check(f"tests in C++, {path.stem}", path) for path in programs] or [
        not_run("tests in C++", "no results were left")]


def joined(folder: pathlib.Path) -> dict:
    record = read_json(folder / "attention.json")
    scaling = read_json(folder / "scaling.json")
    others = [read_json(folder / f"{name}.json") for name in ("variants", "fast_weight")]
    if not record:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = {"format": "fmmformer-record", "version": 1, "kind": "gpu", "name": "GPU check", "created": now}
    # Where the files lay on that machine concerns nobody.
    record["command"] = re.sub(r"\S*/(\S+\.json)", r"\1", record.get("command", ""))
    record["machine"] = {**record.get("machine", {}), "driver": driver_version()}
    record["kernel_hash"] = kernel_hash()
    record["checks"] = [
        tests_check("tests in Python", folder / "python.xml"),
        *cpp_checks(folder / "cpp"),
        verify_check(folder / "verify.json"),
        *(sanitizer_check(tool, folder / f"{tool}.log") for tool in ("memcheck", "racecheck")),
    ]
    for member in ("timings", "bars"):
        record[member] = sum((other.get(member, []) for other in others), record.get(member, []))
    if scaling:
        record["series_about"], record["series"] = scaling["name"], scaling["series"]
    return record


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    output = folder / "gpu_check.json"
    output.write_text(json.dumps(joined(folder), indent=1) + "\n", encoding="utf-8")
    print(output)


if __name__ == "__main__":
    main()
