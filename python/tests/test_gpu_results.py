# SPDX-License-Identifier: Apache-2.0
"""The results in bench/results/: records that the report reads, each with the hash of the kernels it was measured with.
A result of other kernels is skipped with a reason that says so: not an error, since not every machine has that GPU."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_record  # noqa: E402
import kernel_hash  # noqa: E402


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.name)
def test_a_result_is_a_record_that_says_where_it_was_made(result: pathlib.Path) -> None:
    record = json.loads(result.read_text(encoding="utf-8"))
    assert (record["format"], record["kind"]) == ("fmmformer-record", "gpu")
    for member in ("created", "commit", "machine", "versions", "kernel_hash", "timings"):
        assert record[member], member


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.name)
def test_a_result_is_of_these_kernels(result: pathlib.Path) -> None:
    if reason := kernel_hash.why_stale(result):
        pytest.skip(reason)


def test_the_hash_covers_the_kernels_and_the_headers_that_they_share_with_the_cpu() -> None:
    sources = {str(path.relative_to(ROOT)) for path in kernel_hash.kernel_sources()}
    assert {"src/attention/fmm/cuda/sweep.cu", "src/attention/feature_map.inc", "src/attention/philox.h"} <= sources
    assert not any(source.startswith("src/attention/fmm/cpu/") for source in sources)


def test_a_result_without_a_hash_or_with_another_is_stale(tmp_path: pathlib.Path) -> None:
    result = tmp_path / "gpu.json"
    result.write_text(json.dumps({"kernel_hash": kernel_hash.kernel_hash()}))
    assert kernel_hash.why_stale(result) == ""
    for record in ({}, {"kernel_hash": "0" * 64, "commit": "abc"}):
        result.write_text(json.dumps(record))
        assert "gpu_check.sh" in kernel_hash.why_stale(result)


def test_comments_and_line_breaks_are_no_code_but_what_looks_like_them_in_a_text_is() -> None:
    code = kernel_hash.code_of('int a = 1;  // one\n/* two\n   lines */ int b =\n    2;\nauto c = "// no comment";\n')
    assert code == 'int a = 1; int b = 2; auto c = "// no comment";'
    assert kernel_hash.code_of("int a = 1;") != kernel_hash.code_of("int a = 2;  // int a = 1;")


def test_a_check_of_a_gpu_becomes_one_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cpp").mkdir()
    (tmp_path / "python.xml").write_text(
        '<testsuites><testsuite tests="10" failures="1" errors="1" skipped="3"/></testsuites>')
    (tmp_path / "cpp" / "bench_test.xml").write_text(
        '<testsuites tests="2"><testsuite tests="2" failures="0" skipped="0" errors="0"/></testsuites>')
    (tmp_path / "verify.json").write_text(json.dumps({"cases": [{"passed": True}, {"passed": False}]}))
    (tmp_path / "memcheck.log").write_text(
        "9 of 9 within their allowance (AVX-512, 35.7 s)\n=========\n========= ERROR SUMMARY: 0 errors\n")
    (tmp_path / "attention.json").write_text(
        json.dumps({"kind": "gpu", "machine": {"gpu": "a GPU"}, "timings": [{"case": "gpu_text"}]}))
    (tmp_path / "fast_weight.json").write_text(json.dumps({"timings": [{"case": "fast_weight"}], "bars": [{"met": True}]}))
    (tmp_path / "variants.json").write_text(json.dumps({"bars": [{"met": False}]}))
    (tmp_path / "scaling.json").write_text(json.dumps({"name": "one layer", "series": [{"name": "softmax"}]}))
    record = gpu_record.joined(tmp_path)
    checks = {check["name"]: check for check in record["checks"]}
    assert checks["tests in Python"] == {"name": "tests in Python", "passed": 5, "failed": 2, "skipped": 3}
    assert checks["tests in C++, bench_test"]["passed"] == 2
    assert (checks["verify"]["passed"], checks["verify"]["failed"]) == (1, 1)
    assert checks["memcheck"]["failed"] == 0
    assert "not run" in checks["racecheck"]["note"]
    assert record["kernel_hash"] == kernel_hash.kernel_hash()
    assert (record["series_about"], record["series"]) == ("one layer", [{"name": "softmax"}])
    assert record["machine"]["gpu"] == "a GPU"
    assert [timing["case"] for timing in record["timings"]] == ["gpu_text", "fast_weight"]
    assert record["bars"] == [{"met": False}, {"met": True}]


def test_what_left_nothing_is_named_as_not_run(tmp_path: pathlib.Path) -> None:
    checks = {check["name"]: check for check in gpu_record.joined(tmp_path)["checks"]}
    for name in ("tests in Python", "tests in C++", "verify", "memcheck"):
        assert checks[name]["note"].startswith("not run"), name


@pytest.mark.parametrize(
    ("summary", "failed", "note"),
    [
        ("RACECHECK SUMMARY: 3 hazards displayed (0 errors, 12 warnings)", 0, "0 errors, 12 warnings; 9 of 9 cases of verify passed"),
        ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 1, "1 errors, 0 warnings; 9 of 9 cases of verify passed"),
        ("ERROR SUMMARY: 2 errors", 1, "2 errors; 9 of 9 cases of verify passed"),
    ],
)
def test_a_sanitizer_fails_by_its_errors_and_its_warnings_are_named(
    tmp_path: pathlib.Path, summary: str, failed: int, note: str
) -> None:
    log = tmp_path / "tool.log"
    log.write_text(f"9 of 9 within their allowance (AVX-512, 35.7 s)\n========= {summary}\n")
    check = gpu_record.sanitizer_check("tool", log)
    assert (check["failed"], check["note"]) == (failed, note)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("compute-sanitizer is not installed; skipped\n", "is not installed"),
        ("ok   one_case\n", "ended without a summary"),
        ("ok   one_case\n========= ERROR SUMMARY: 0 errors\n", "did not come to its end"),
    ],
)
def test_a_sanitizer_that_did_not_come_to_its_end_has_passed_nothing(tmp_path: pathlib.Path, text: str, why: str) -> None:
    log = tmp_path / "tool.log"
    log.write_text(text)
    check = gpu_record.sanitizer_check("tool", log)
    assert "passed" not in check and why in check["note"]


def test_a_sanitizer_under_which_a_case_is_wrong_has_failed(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "tool.log"
    log.write_text("8 of 9 within their allowance (AVX-512, 35.7 s)\n========= ERROR SUMMARY: 0 errors\n")
    assert gpu_record.sanitizer_check("tool", log)["failed"] == 1
