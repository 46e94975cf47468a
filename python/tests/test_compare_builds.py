# SPDX-License-Identifier: Apache-2.0
"""scripts/compare_builds.py: two builds measured in turns."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "compare_builds.py"


def build_that_reports(folder: pathlib.Path, graph_ms: float, step_ms: float = 0.01) -> pathlib.Path:
    """A program that writes such a record as the benchmarks do, and notes with which arguments it was called."""
    folder.mkdir()
    record = {"machine": {"median_ms": 5.0}, "rows": [
        {"case": "short", "dtype": "bf16", "ours": {"graph": {"median_ms": graph_ms}}, "forward": {"median_ms": 1.0}},
        {"case": "step", "ours": {"median_ms": step_ms, "repeats": 3}}]}
    program = folder / "fmmformer"
    program.write_text(
        f"#!{sys.executable}\nimport os, pathlib, sys\n"
        f"pathlib.Path(sys.argv[-1]).write_text({json.dumps(record)!r})\n"
        f"log = open({str(folder.parent / 'log')!r}, 'a')\n"
        "print(pathlib.Path(sys.argv[0]).parent.name, *sys.argv[1:-2], os.environ['LD_LIBRARY_PATH'].split(':')[0], file=log)\n")
    program.chmod(0o755)
    return folder


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_two_builds_run_in_turns_and_each_with_its_own_library(tmp_path: pathlib.Path) -> None:
    old, new = build_that_reports(tmp_path / "old", 0.2), build_that_reports(tmp_path / "new", 0.1)
    run = compare(old, new / "fmmformer", "--rounds", 2, "--", "bench", "attention")
    assert run.returncode == 0, run.stderr
    calls = (tmp_path / "log").read_text().splitlines()
    assert calls == [f"{name} bench attention {tmp_path / name}" for name in ("old", "new", "new", "old")]


def test_every_time_that_both_report_becomes_a_row(tmp_path: pathlib.Path) -> None:
    old, new = build_that_reports(tmp_path / "old", 0.2), build_that_reports(tmp_path / "new", 0.1, step_ms=0.012)
    run = compare(old, new, "--rounds", 1, "--json", tmp_path / "rows.json", "--", "bench", "attention")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["case"], row["dtype"], row["what"], round(row["quotient"], 6)) for row in rows] == [
        ("short", "bf16", "ours graph", 0.5), ("short", "bf16", "forward", 1.0), ("step", "", "ours", 1.2)]
    lines = run.stdout.splitlines()
    assert lines[1].endswith("faster") and lines[3].endswith("slower")
    assert lines[2].endswith("1.000 to 1.000")
    assert "by chance in 100 %" in lines[-1]


def test_variants_and_times_against_length_are_rows_too(tmp_path: pathlib.Path) -> None:
    record = {"variants": [{"variant": "masked", "dtype": "fp32", "ours": {"median_ms": 2.0}}], "series": [
        {"name": "2 kernels", "points": [{"length": 512, "seconds": 0.003}, {"length": 1024, "failure": "memory"}]}]}
    program = tmp_path / "fmmformer"
    program.write_text(f"#!/bin/bash\necho '{json.dumps(record)}' >\"${{!#}}\"\n")
    program.chmod(0o755)
    run = compare(tmp_path, tmp_path, "--rounds", 1, "--json", tmp_path / "rows.json", "--", "bench", "scaling")
    assert run.returncode == 0, run.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["case"], row["dtype"], row["what"], row["old_ms"]) for row in rows] == [
        ("masked", "fp32", "ours", 2.0), ("2 kernels", "", "at 512", 3.0)]


def test_builds_without_a_time_in_common_fail(tmp_path: pathlib.Path) -> None:
    for name in ("old", "new"):
        record = {"rows": [{"case": name, "ours": {"median_ms": 1.0}}]}
        (tmp_path / name).write_text(f"#!/bin/bash\necho '{json.dumps(record)}' >\"${{!#}}\"\n")
        (tmp_path / name).chmod(0o755)
    run = compare(tmp_path / "old", tmp_path / "new", "--", "bench")
    assert run.returncode == 1 and "no time in common" in run.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "code", "error"),
    [
        ("exit 3", ["--", "bench"], 1, "failed"),
        ("exit 2", ["--", "bench"], 2, "failed"),
        ('echo "{}" >"${!#}"', ["--", "bench"], 1, "reported no times"),
        ("exit 0", ["--", "bench", "--list"], 2, "wrote no record"),
        ("exit 0", ["--json", "/no/such/folder/x.json", "--", "bench"], 2, "/no/such/folder"),
        ("exit 0", [], 2, "name a benchmark"),
    ],
)
def test_what_cannot_be_compared_is_an_error_that_says_why(
    tmp_path: pathlib.Path, script: str, arguments: list[str], code: int, error: str
) -> None:
    program = tmp_path / "fmmformer"
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    run = compare(tmp_path, tmp_path, *arguments)
    assert run.returncode == code and error in run.stderr
    assert "Traceback" not in run.stderr


def test_a_folder_without_a_program_is_an_error(tmp_path: pathlib.Path) -> None:
    run = compare(tmp_path, tmp_path, "--", "bench")
    assert run.returncode == 2 and "there is no program" in run.stderr
