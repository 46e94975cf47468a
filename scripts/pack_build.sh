#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what was built here for a machine that has a GPU and the same torch, but no compiler: program, operator library,
# the C++ tests that have something to say on a GPU, and the shared libraries that such a machine may lack.
#
#   [BUILD=FOLDER] scripts/pack_build.sh ARCHIVE.tar.xz [TEST..]
#
# TEST: attention/fmm_attention_test, ..; default: all that have tests which need a GPU. BUILD: another folder than build/.
#
# There: mkdir kit && tar -xJf ARCHIVE.tar.xz -C kit && . kit/env.sh, and `fmmformer` runs; in a checkout of the sources
# so does scripts/gpu_check.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '3,11p' >&2; exit 2; }
archive=$(realpath -m "$1")
shift
build=${BUILD:-$root/build}
[ -x "$build/fmmformer" ] || { echo "pack_build: there is no $build/fmmformer; run \`make build\`" >&2; exit 1; }
"$root/scripts/has_gpu_kernels.sh" "$build" || exit 1
# Of those that scripts/gpu_check.sh runs, some only speak of a GPU; what needs one is skipped where none is to be seen.
has_gpu_tests() {
  [[ $(CUDA_VISIBLE_DEVICES='' "$1" --gtest_filter='*Gpu*:*Cuda*' 2>/dev/null) == *"no GPU here"* ]]
}
tests=("$@")
if [ $# -eq 0 ]; then
  for test in "$build"/tests/*/*_test; do
    if has_gpu_tests "$test"; then tests+=("${test#"$build/tests/"}"); fi
  done
  [ ${#tests[@]} -gt 0 ] || { echo "pack_build: no tests in $build/tests; run \`make build\`" >&2; exit 1; }
fi

kit=$(mktemp -d)
trap 'rm -rf "$kit"' EXIT
mkdir -p "$kit/libs"
cp "$build/fmmformer" "$build/libfmmformer_ops.so" "$kit/"
for test in "${tests[@]}"; do
  install -D "$build/tests/$test" "$kit/tests/$test"
done
find "$kit" -type f -exec strip {} +
# What belongs to the C library, the driver or torch is that machine's own.
own='/(libc|libm|libdl|librt|libpthread|libstdc[+][+]|libgcc_s|libcuda|libnv[^/]*)[.]so'
ldd "$build/fmmformer" | awk -v own="$own" '/=> \/(usr\/)?lib/ && $3 !~ own {print $3}' | xargs -r cp -t "$kit/libs"
cat >"$kit/env.sh" <<'ENV'
# Sourced: the packed program and library beside this machine's torch.
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHON=${PYTHON:-python3}
torch=$("$PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
export PATH=$kit:$PATH LD_LIBRARY_PATH=$kit:$torch/lib:$kit/libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export FMMFORMER_LIBRARY=$kit/libfmmformer_ops.so FMMFORMER_PROGRAM=$kit/fmmformer FMMFORMER_CPP_TESTS=$kit/tests
ENV
tar -C "$kit" -cf - . | xz -T0 -6 >"$archive.part"
mv "$archive.part" "$archive"
du -h "$archive"
