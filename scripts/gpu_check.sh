#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: the benchmarks, one after another; then, beside each other, the tests on the
# device, `verify`, and compute-sanitizer on the quick cases. On an H200 with 16 cores this takes some four minutes without
# racecheck. Leaves a log for each step and gpu_check.json in the folder given (default: gpu-check); the latter goes to
# bench/results/, named after the GPU, and `make bench-report` renders it.
#
#   scripts/gpu_check.sh [FOLDER] [STEP..]
#
# Steps: attention fast_weight scaling python cpp verify memcheck racecheck (default: all). When the script is interrupted,
# the record has what was done by then.
#
# FMMFORMER_LIBRARY, FMMFORMER_PROGRAM, FMMFORMER_CPP_TESTS and PYTHON name a library, program, folder of C++ tests and
# Python other than the build's and .venv's. RACECHECK_SECONDS bounds racecheck (default: 1200). PYTHON_PEERS=1 also times
# FlexAttention, flash-attn and fla.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:-gpu-check}
shift || true
steps=("$@")
[ $# -gt 0 ] || steps=(attention fast_weight scaling python cpp verify memcheck racecheck)
python=${PYTHON:-.venv/bin/python}
program=${FMMFORMER_PROGRAM:-build/fmmformer}
cpp_tests=${FMMFORMER_CPP_TESTS:-build/tests}
[ -n "${FMMFORMER_LIBRARY:-}" ] || scripts/has_gpu_kernels.sh build || exit 1
export FMMFORMER_LIBRARY=${FMMFORMER_LIBRARY:-$PWD/build/libfmmformer_ops.so}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out" || exit 1

step_python() {
  "$python" -m pytest -q -p no:cacheprovider python/tests --device cuda --junitxml "$out/python.xml"
}
step_cpp() {
  local test status=0
  for test in "$cpp_tests"/*/*_test; do
    [ -x "$test" ] || continue
    # Only what needs a GPU: the rest runs anywhere.
    "$test" --gtest_brief=1 --gtest_filter='*Gpu*:*Cuda*' --gtest_output="xml:$out/cpp/$(basename "$test").xml" || status=1
  done
  # A program without such tests has nothing to say.
  grep -l 'testsuites tests="0"' "$out"/cpp/*.xml 2>/dev/null | xargs -r rm
  return $status
}
step_verify() { "$program" verify --device cuda --json "$out/verify.json"; }
# A tool, and the seconds that it may take.
sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed; skipped"; return 0; }
  timeout "$2" compute-sanitizer --tool "$1" --error-exitcode 1 --print-limit 5 "$program" verify --quick --device cuda
}
step_memcheck() { sanitizer memcheck 3600; }
step_racecheck() { sanitizer racecheck "${RACECHECK_SECONDS:-1200}"; }
step_attention() {
  "$program" bench attention --device cuda --json "$out/attention.json" \
    ${PYTHON_PEERS:+--python-peers --python "$python"}
}
step_fast_weight() {
  "$program" bench fast-weight --device cuda --json "$out/fast_weight.json" \
    ${PYTHON_PEERS:+--python-peers --python "$python"}
}
step_scaling() { "$program" bench scaling --device cuda --json "$out/scaling.json"; }

# A step alone, for all to see; or beside others, whose end alone is shown.
run_alone() {
  local begin=$SECONDS
  printf '\n=== %s\n' "$1"
  if "step_$1" 2>&1 | tee "$out/$1.log"; then echo "ok, $((SECONDS - begin)) s"; else
    echo "FAILED, $((SECONDS - begin)) s"
    return 1
  fi
}
run_beside() {
  local begin=$SECONDS status=0 word=ok
  "step_$1" >"$out/$1.log" 2>&1 || { status=1; word=FAILED; }
  printf '\n=== %s: %s, %d s\n%s\n' "$1" "$word" $((SECONDS - begin)) "$(tail -n 3 "$out/$1.log")"
  return $status
}
write_record() { "$python" scripts/gpu_record.py "$out"; }

nvidia-smi -L || { echo "gpu_check: no GPU here"; exit 1; }
for step in "${steps[@]}"; do
  declare -F "step_$step" >/dev/null || { echo "gpu_check: there is no step $step" >&2; exit 2; }
done
failed=0 jobs=() pids=()
trap 'trap - INT TERM; kill "${pids[@]}" 2>/dev/null; write_record; exit 130' INT TERM
for step in "${steps[@]}"; do
  case $step in
    # Alone: what else runs would be measured, too.
    attention | fast_weight | scaling) run_alone "$step" || failed=1 ;;
    *) jobs+=("$step") ;;
  esac
done
# The references of `verify` and of the tests use all cores that they may have.
[ ${#jobs[@]} -le 1 ] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) / ${#jobs[@]} + 1))}
for step in "${jobs[@]}"; do run_beside "$step" & pids+=($!); done
[ ${#jobs[@]} -eq 0 ] || printf '\n=== beside each other: %s\n' "${jobs[*]}"
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
write_record || failed=1
exit $failed
