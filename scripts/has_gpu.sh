#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lists this machine's GPUs; fails, and says so, where there are none.
gpus=$(nvidia-smi -L 2>/dev/null)
if [[ $gpus != GPU* ]]; then
  echo "there is no GPU here: nvidia-smi is missing or lists none" >&2
  exit 1
fi
echo "$gpus"
