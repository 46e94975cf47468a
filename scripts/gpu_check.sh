#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: the tests on the device, `verify`, compute-sanitizer on the quick cases, and
# the benchmarks. Leaves gpu_check.log and gpu_check.json in the folder given (default: gpu-check); the latter goes to
# bench/results/, named after the GPU, and `make bench-report` renders it.
#
#   scripts/gpu_check.sh [FOLDER] [STEP..]      steps: python cpp verify sanitizers attention fast_weight scaling (default: all)
#
# FMMFORMER_LIBRARY, FMMFORMER_PROGRAM, FMMFORMER_CPP_TESTS and PYTHON name a library, program, folder of C++ tests and
# Python other than the build's and .venv's. PYTHON_PEERS=1 also times FlexAttention, flash-attn and fla.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:-gpu-check}
shift || true
steps=("$@")
[ $# -gt 0 ] || steps=(python cpp verify sanitizers attention fast_weight scaling)
python=${PYTHON:-.venv/bin/python}
program=${FMMFORMER_PROGRAM:-build/fmmformer}
cpp_tests=${FMMFORMER_CPP_TESTS:-build/tests}
[ -n "${FMMFORMER_LIBRARY:-}" ] || scripts/has_gpu_kernels.sh build || exit 1
export FMMFORMER_LIBRARY=${FMMFORMER_LIBRARY:-$PWD/build/libfmmformer_ops.so}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out" || exit 1
exec > >(tee "$out/gpu_check.log") 2>&1

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
step_sanitizers() {
  local tool status=0
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not here; skipped"
    return 0
  fi
  for tool in memcheck racecheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 --print-limit 5 "$program" verify --quick --device cuda \
      >"$out/$tool.log" 2>&1 || status=1
    tail -n 5 "$out/$tool.log"
  done
  return $status
}
step_attention() {
  "$program" bench attention --device cuda --json "$out/attention.json" \
    ${PYTHON_PEERS:+--python-peers --python "$python"}
}
step_fast_weight() {
  "$program" bench fast-weight --device cuda --json "$out/fast_weight.json" \
    ${PYTHON_PEERS:+--python-peers --python "$python"}
}
step_scaling() { "$program" bench scaling --device cuda --json "$out/scaling.json"; }

nvidia-smi -L || { echo "gpu_check: no GPU here"; exit 1; }
failed=0
for step in "${steps[@]}"; do
  printf '\n=== %s\n' "$step"
  begin=$SECONDS
  if "step_$step"; then echo "ok, $((SECONDS - begin)) s"; else
    echo "FAILED, $((SECONDS - begin)) s"
    failed=1
  fi
done
"$python" scripts/gpu_record.py "$out" || failed=1
exit $failed
