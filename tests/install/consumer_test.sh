#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the release build, then builds and runs examples/consume_installed against it, away from our tree.
# Usage: consumer_test.sh BUILD_FOLDER
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
cmake=$root/.venv/bin/cmake
torch=$(sed -n 's/^LibTorch_INCLUDE_DIR:PATH=\(.*\)\/include$/\1/p' "$build/CMakeCache.txt")
work=$build/consumer

rm -rf "$work/prefix"
"$cmake" --install "$build" --prefix "$work/prefix" >/dev/null
if grep -rlF "$root/" "$work/prefix/include" "$work/prefix/lib/cmake" 2>/dev/null | grep .; then
  echo "consumer_test: the installed files above name the source tree" >&2
  exit 1
fi
# A copy, so that nothing can be found by a path relative to our tree.
rm -rf "$work/source"
cp -r "$root/examples/consume_installed" "$work/source"
"$cmake" -G Ninja -D CMAKE_MAKE_PROGRAM="$root/.venv/bin/ninja" -S "$work/source" -B "$work/build" \
  -D CMAKE_PREFIX_PATH="$work/prefix;$torch" -D CMAKE_BUILD_TYPE=Release >/dev/null
"$cmake" --build "$work/build" >"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
cd /
unset LD_LIBRARY_PATH
if ldd "$work/prefix/lib/libfmmformer_ops.so" "$work"/prefix/bin/* | grep "not found"; then
  echo "consumer_test: the libraries above are not found by what was installed" >&2
  exit 1
fi
"$work/build/consume_installed"

# Without a torch the message must say what to do.
if message=$("$cmake" -G Ninja -D CMAKE_MAKE_PROGRAM="$root/.venv/bin/ninja" -S "$work/source" \
    -B "$work/build_without_torch" -D CMAKE_PREFIX_PATH="$work/prefix" 2>&1); then
  echo "consumer_test: configured without any torch" >&2
  exit 1
fi
grep -q "point CMAKE_PREFIX_PATH at a" <<<"$message" || {
  printf 'consumer_test: no way out in this message:\n%s\n' "$message" >&2
  exit 1
}
echo "consumer_test: ok"
