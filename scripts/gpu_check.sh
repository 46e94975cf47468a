#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: the operator's tests on the device, `verify`, the memory checker on a few
# cases, and timings. Writes gpu_check.log and attention_cuda.json into the folder given (default: gpu-check).
#
#   scripts/gpu_check.sh [FOLDER]
#
# FMMFORMER_LIBRARY, FMMFORMER_PROGRAM and PYTHON name a library, program and Python other than the build's and .venv's.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=${1:-gpu-check}
python=${PYTHON:-.venv/bin/python}
program=${FMMFORMER_PROGRAM:-build/fmmformer}
export FMMFORMER_LIBRARY=${FMMFORMER_LIBRARY:-$PWD/build/libfmmformer_ops.so}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out" || exit 1
exec > >(tee "$out/gpu_check.log") 2>&1
failed=0

step() {
  printf '\n=== %s\n' "$1"
  shift
  local begin=$SECONDS
  if "$@"; then echo "ok, $((SECONDS - begin)) s"; else
    echo "FAILED, $((SECONDS - begin)) s"
    failed=1
  fi
}

nvidia-smi -L || { echo "gpu_check: no GPU here"; exit 1; }
step "tests on the device" "$python" -m pytest -q -p no:cacheprovider python/tests --device cuda
step "verify" "$program" verify --device cuda
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step "$tool" compute-sanitizer --tool $tool --error-exitcode 1 --print-limit 5 \
      "$program" verify --device cuda --case plain_causal --case mask_interior_causal --case plain_two_sided
  done
else
  echo "compute-sanitizer is not here; skipped"
fi
step "timings" "$python" bench/attention_cuda.py --json "$out/attention_cuda.json"
exit $failed
