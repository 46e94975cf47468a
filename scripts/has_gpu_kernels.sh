#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether a build folder has CUDA kernels worth running: compiled, and optimised, which those of `make test` on a machine
# without a GPU are not.
#
#   scripts/has_gpu_kernels.sh BUILD
build=$1
if ! grep -qs fmmformer_cuda_kernels "$build/build.ninja" ||
  grep -qs '^FMMFORMER_CUDA_OPTIMIZE:BOOL=OFF' "$build/CMakeCache.txt"; then
  echo "$build has no CUDA kernels, or none that are optimised; run \`make build\` where there is an nvcc" >&2
  exit 1
fi
