#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the steps named, or all that `make test` stands for; goes on after a failure and ends with a summary.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=$PWD/.venv/bin:$PATH
jobs=$(nproc)

# Tests whose suite or name says Slow run in the release build, on the machine's best instruction set, and in a full
# sanitizer run.
# FMMFORMER_QUICK=1 tells tests that loop over many cases to thin them out.
quick() { GTEST_FILTER='-*Slow*' GTEST_BRIEF=1 FMMFORMER_QUICK=1 "$@"; }

# Runs each test program of a folder once, as many at a time as there are cores. Not through ctest: it would start a
# program anew for every test.
run_programs() {
  local build=$1 folder=$2
  ninja -C "$build" -t cleandead >/dev/null # programs of an earlier tree
  find "$build/tests/$folder" -maxdepth 1 -type f -executable -print0 |
    OMP_WAIT_POLICY=passive xargs -0 -n 1 -P "$jobs" sh -c 'echo "$0" && exec "$0"'
}

build_preset() {
  local preset=$1
  shift
  cmake --preset "$preset" >"/dev/null" && cmake --build --preset "$preset" -j "$jobs" --target "$@"
}

step_format() { scripts/format.sh --check && python scripts/check_layers.py; }
step_build() { make build-for-tests; }
step_cpp() { ctest --preset release -j "$jobs" --output-on-failure --progress; }
# As many processes as cores, a thread each: tensors are small. -rs: what was skipped and why, such as a GPU's result that
# is of other kernels than these.
step_python() { OMP_NUM_THREADS=1 python -m pytest -q -rs -n "$jobs" python/tests; }
step_install() { tests/install/consumer_test.sh build; }
step_wheel() { tests/install/wheel_test.sh build; }
step_scalar() {
  build_preset scalar tests_attention && quick run_programs build-scalar attention
}
# Shares of the cases side by side: a process runs one block of threads at a time.
step_emulate() {
  seq 0 $((jobs - 1)) | GTEST_TOTAL_SHARDS=$jobs GTEST_BRIEF=1 OMP_NUM_THREADS=1 \
    TORCH_CPP_LOG_LEVEL=ERROR xargs -n 1 -P "$jobs" \
    sh -c 'GTEST_SHARD_INDEX=$0 exec build/tests/emulator/emulated_verify'
}
step_isa() {
  local pair isa status=0
  for pair in sse4:sse4_2 avx2:avx2 avx512:avx512f; do # our name and the one in /proc/cpuinfo
    isa=${pair%:*}
    if ! grep -qw "${pair#*:}" /proc/cpuinfo; then
      echo "$isa: this CPU has none; skipped"
      continue
    fi
    echo "$isa:"
    FMMFORMER_ISA=$isa quick run_programs build attention || status=1
  done
  return $status
}
step_asan-ubsan-quick() {
  # Through ctest, which knows the options and suppressions.
  build_preset asan-ubsan tests_core tests_attention &&
    quick ctest --preset asan-ubsan -L 'core|attention' -j "$jobs"
}
step_asan-ubsan() { build_preset asan-ubsan all && ctest --preset asan-ubsan -j "$jobs"; }
step_tsan() { build_preset tsan all && ctest --preset tsan; }

steps=("$@")
[ $# -gt 0 ] || steps=(format build cpp python isa scalar asan-ubsan-quick install wheel)
summary=()
failed=0
for step in "${steps[@]}"; do
  printf '\n=== %s\n' "$step"
  begin=$SECONDS
  if "step_$step" </dev/null; then result=ok; else
    result=FAILED
    failed=1
  fi
  summary+=("$(printf '%-18s %-7s %4d s' "$step" $result $((SECONDS - begin)))")
  # Nothing after the build can do without it.
  [ "$step $result" = "build FAILED" ] && break
done
printf '\n=== summary\n'
printf '%s\n' "${summary[@]}"
printf 'total %d s: %s\n' "$SECONDS" "$([ $failed = 0 ] && echo "all passed" || echo "some FAILED; search for their === above")"
exit $failed
