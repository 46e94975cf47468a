#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: the benchmarks, one after another; then, beside each other, the tests on the
# device, `verify`, and compute-sanitizer on the quick cases. On an H200 with 16 cores this took 204 s without racecheck,
# variants and Python's peers; the latter two, which are among the defaults, were not measured. Leaves a log for each step
# and gpu_check.json in the folder given (default: gpu-check); the latter goes to bench/results/, named after the GPU, and
# `make bench-report` renders it.
#
#   scripts/gpu_check.sh [FOLDER] [STEP..]
#
# Steps: attention variants fast_weight scaling python cpp verify memcheck (default: these), racecheck. The last takes long
# and calls some barriers that are right a hazard (docs/adr/0027-chunks-of-narrow-heads.md). When the script is interrupted,
# the record has what was done by then; a step that runs again replaces what it left before.
#
# FMMFORMER_LIBRARY, FMMFORMER_PROGRAM, FMMFORMER_CPP_TESTS and PYTHON name a library, program, folder of C++ tests and
# Python other than the build's and .venv's. PYTHON_PEERS= (nothing) leaves out FlexAttention, flash-attn and fla, which take
# some ten seconds a case; what is not installed is named in the record.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in
  -h | --help) sed -n '3,20s/^# \{0,1\}//p' scripts/gpu_check.sh; exit 0 ;;
  -*) echo "gpu_check: unknown option $1 (see --help)" >&2; exit 2 ;;
esac
out=${1:-gpu-check}
shift || true
steps=("$@")
[ $# -gt 0 ] || steps=(attention variants fast_weight scaling python cpp verify memcheck)
python=${PYTHON:-.venv/bin/python}
program=${FMMFORMER_PROGRAM:-build/fmmformer}
cpp_tests=${FMMFORMER_CPP_TESTS:-build/tests}
python_peers=()
[ -z "${PYTHON_PEERS-1}" ] || python_peers=(--python-peers --python "$python")
for step in "${steps[@]}"; do
  [[ " attention variants fast_weight scaling python cpp verify memcheck racecheck " == *" $step "* ]] ||
    { echo "gpu_check: there is no step $step (see --help)" >&2; exit 2; }
done
scripts/has_gpu.sh || exit 1
[ -n "${FMMFORMER_LIBRARY:-}" ] || scripts/has_gpu_kernels.sh build || exit 1
export FMMFORMER_LIBRARY=${FMMFORMER_LIBRARY:-$PWD/build/libfmmformer_ops.so}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out" || exit 1

step_python() {
  "$python" -m pytest -q -p no:cacheprovider python/tests --device cuda --junitxml "$out/python.xml"
}
step_cpp() {
  local test status=0
  compgen -G "$cpp_tests/*/*_test" >/dev/null || { echo "gpu_check: no tests in $cpp_tests" >&2; return 1; }
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
sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed; skipped"; return 0; }
  compute-sanitizer --tool "$1" --error-exitcode 1 --print-limit 5 "$program" verify --quick --device cuda
}
step_memcheck() { sanitizer memcheck; }
step_racecheck() { sanitizer racecheck; }
step_attention() {
  "$program" bench attention --device cuda --json "$out/attention.json" "${python_peers[@]}"
}
step_variants() { "$program" bench attention --device cuda --variants --json "$out/variants.json"; }
step_fast_weight() {
  "$program" bench fast-weight --device cuda --json "$out/fast_weight.json" "${python_peers[@]}"
}
step_scaling() { "$program" bench scaling --device cuda --json "$out/scaling.json"; }

# A step alone, for all to see; or beside others, whose end alone is shown.
run_alone() {
  local begin=$SECONDS status=0
  printf '\n=== %s\n' "$1"
  # As a job: bash heeds a signal while it waits, not while a program runs.
  { "step_$1" 2>&1 | tee "$out/$1.log"; } &
  pids=($!)
  wait $! || status=1
  echo "$([ $status -eq 0 ] && echo ok || echo FAILED), $((SECONDS - begin)) s"
  return $status
}
run_beside() {
  local begin=$SECONDS status=0 word=ok
  "step_$1" >"$out/$1.log" 2>&1 || { status=1; word=FAILED; }
  printf '\n=== %s: %s, %d s\n%s\n' "$1" "$word" $((SECONDS - begin)) "$(tail -n 3 "$out/$1.log")"
  return $status
}
# What a step leaves for the record. What an earlier run left is no result of this one.
forget() {
  case $1 in
    cpp) rm -rf "$out/cpp" ;;
    *) rm -f "$out/$1.json" "$out/$1.xml" "$out/$1.log" ;;
  esac
}
# A process and all that it began.
end() {
  local child
  for child in $(pgrep -P "$1"); do end "$child"; done
  kill "$1" 2>/dev/null
}
stop() {
  trap - INT TERM
  for pid in "${pids[@]}"; do end "$pid"; done
  wait
  write_record
  exit "$1"
}
write_record() { "$python" scripts/gpu_record.py "$out"; }

for step in "${steps[@]}"; do forget "$step"; done
failed=0 jobs=() pids=()
trap 'stop 130' INT
trap 'stop 143' TERM
for step in "${steps[@]}"; do
  case $step in
    # Alone: what else runs would be measured, too.
    attention | variants | fast_weight | scaling) run_alone "$step" || failed=1 ;;
    *) jobs+=("$step") ;;
  esac
done
# The references of `verify` and of the tests use all cores that they may have.
[ ${#jobs[@]} -le 1 ] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) / ${#jobs[@]} + 1))}
pids=()
for step in "${jobs[@]}"; do run_beside "$step" & pids+=($!); done
[ ${#jobs[@]} -eq 0 ] || printf '\n=== beside each other: %s\n' "${jobs[*]}"
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
write_record || failed=1
exit $failed
