#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel, installs it into a clean environment that has only torch, and uses it from a neutral folder.
# Usage: wheel_test.sh BUILD_FOLDER
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
venv=$root/.venv
work=$build/wheel_test
mkdir -p "$work"

# The build folder is kept, so that the next run compiles only what changed, and lies where ccache knows its files from
# build/, whose sources are compiled alike, by the compiler of the same name (Python has another name for it). No
# isolation: nothing is downloaded.
of_build() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
rm -rf "$work/dist"
CXX=$(of_build CMAKE_CXX_COMPILER) PATH="$venv/bin:$PATH" "$venv/bin/python" -m pip wheel --quiet --no-deps \
  --disable-pip-version-check --no-build-isolation --config-settings=build-dir="$root/build-wheel" \
  --config-settings=cmake.define.FMMFORMER_CUDA_OPTIMIZE="$(of_build FMMFORMER_CUDA_OPTIMIZE)" -w "$work/dist" "$root"
wheel=$(ls "$work"/dist/fmmformer-*-py3-none-linux_x86_64.whl)

# A clean environment. torch and what it needs are linked in from .venv: its copy would take 5 GB.
rm -rf "$work/clean"
"$venv/bin/python" -m venv --without-pip "$work/clean"
site=$(echo "$work"/clean/lib/python3*/site-packages)
for entry in "$venv"/lib/python3*/site-packages/*; do
  case $(basename "$entry") in
    fmmformer* | *.pth | __pycache__ | pip | pip-* ) ;;
    *) ln -s "$entry" "$site/" ;;
  esac
done
"$venv/bin/python" -m pip --python "$work/clean/bin/python" install --quiet --disable-pip-version-check \
  --no-deps --no-index "$wheel"

cd /
export -n LD_LIBRARY_PATH PYTHONPATH FMMFORMER_LIBRARY 2>/dev/null || true
unset LD_LIBRARY_PATH PYTHONPATH FMMFORMER_LIBRARY
if ldd "$site/fmmformer/libfmmformer_ops.so" | grep "not found"; then
  echo "wheel_test: the libraries above are not found by the installed operator library" >&2
  exit 1
fi
# shellcheck disable=SC2016
"$work/clean/bin/python" - "$site" <<'PYTHON'
import sys

import torch

import fmmformer

assert fmmformer.__file__.startswith(sys.argv[1]), fmmformer.__file__
q, k, v = (torch.randn(2, 50, 4, 16, requires_grad=True) for _ in range(3))
out = fmmformer.fmm_attention(q, k, v, bandwidth=5, causal=True, feature_maps=("elu", "elu_flip"))
out.sum().backward()
assert out.shape == v.shape and all(torch.isfinite(t.grad).all() for t in (q, k, v))
print("wheel: forward and backward from", fmmformer.__file__.replace(sys.argv[1], "site-packages"))
PYTHON

# Where there is no torch at all the build must say what to do. Configuring is enough, and needs only these files.
rm -rf "$work/no_torch"
mkdir -p "$work/no_torch/source/scripts"
cp -r "$root"/{CMakeLists.txt,cmake,src,include} "$work/no_torch/source/"
"$venv/bin/python" -m venv --without-pip "$work/no_torch/venv"
if message=$("$venv/bin/cmake" -G Ninja -D CMAKE_MAKE_PROGRAM="$venv/bin/ninja" -S "$work/no_torch/source" \
    -B "$work/no_torch/build" -D SKBUILD=2 -D FMMFORMER_TESTS=OFF -D FMMFORMER_PROGRAM=OFF -D FMMFORMER_CUDA=OFF \
    -D Python3_EXECUTABLE="$work/no_torch/venv/bin/python" 2>&1); then
  echo "wheel_test: configured without any torch" >&2
  exit 1
fi
grep -q "pip install 'torch==2.11" <<<"$(tr -s ' \n' ' ' <<<"$message")" || {
  printf 'wheel_test: no way out in this message:\n%s\n' "$message" >&2
  exit 1
}
echo "wheel_test: ok"
