#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats all C++ and CUDA sources in place; with --check only tells which are not formatted, and fails then.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
find src include tests examples bench -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) \
  -print0 | sort -z | xargs -0 clang-format "${mode[@]}"
