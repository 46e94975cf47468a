#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The copy task of the paper in full: its 24 models, and as controls one kernel without a band, and one model in fp32.
#
#   scripts/reproduce_copy.sh [--out FOLDER] [--device cuda] [--seconds N] [NAME..]
#
# Runs what is not finished yet, the short sequences first, in bf16 with fp32 master weights; a run that was cut goes on
# where it was. --seconds: begin no further run after so long. NAME: only these configs (softmax_128 ..); with another seed
# than the config's, softmax_128_seed3; in fp32, softmax_128_fp32; both in either order. Afterwards:
#   scripts/collect_runs.py FOLDER/*/record.json > bench/results/runs/copy.json
#   build/fmmformer report FOLDER
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
program=${FMMFORMER_PROGRAM:-build/fmmformer}
refuse() {
  echo "reproduce_copy.sh: $1 (see --help)" >&2
  exit 2
}
out=runs/copy device=cuda seconds=1000000 names=()
while [ $# -gt 0 ]; do
  case $1 in
    --out | --device | --seconds)
      [ -n "${2:-}" ] || refuse "$1 takes a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help) sed -n '3,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) refuse "unknown option $1" ;;
    *) names+=("$1"); shift ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] || refuse "--seconds takes a number, not $seconds"
if [ ${#names[@]} -eq 0 ]; then
  for length in 128 256 512; do
    for model in fmm3_band30 fmm1_band30 linear softmax fmm2 fmm3 fmm1_band20 fmm1_band10 fmm1; do
      names+=("${model}_$length")
    done
    [ $length -gt 128 ] || names+=(fmm1_band30_128_fp32)
  done
fi
config_of() {
  local config=$1
  while [[ $config =~ ^(.+)_(fp32|seed[0-9]+)$ ]]; do config=${BASH_REMATCH[1]}; done
  echo "$config"
}
# Before anything is removed or trained.
for name in "${names[@]}"; do
  config=$(config_of "$name")
  [[ $name =~ ^[a-z0-9_]+$ && -f configs/copy/$config.toml ]] || refuse "there is no configs/copy/$config.toml for '$name'"
done
failed=0
for name in "${names[@]}"; do
  run=$out/$name
  if grep -q '"status": *"finished"' "$run/record.json" 2>/dev/null; then continue; fi
  if [ $SECONDS -ge "$seconds" ]; then echo "time is up before $name"; break; fi
  precision=bf16
  [[ $name =~ _fp32(_|$) ]] && precision=fp32
  settings=(--set "train.precision=$precision")
  [[ $name =~ _seed([0-9]+) ]] && settings+=(--set "train.seed=${BASH_REMATCH[1]}")
  begin=$SECONDS
  if [ -d "$run/checkpoints" ]; then
    "$program" train "$run" --resume --device "$device" --quiet
  else
    rm -rf "$run"
    "$program" train "configs/copy/$(config_of "$name").toml" --device "$device" --quiet --out "$run" "${settings[@]}"
  fi
  status=$?
  if [ $status -eq 0 ]; then echo "$name: $((SECONDS - begin)) s"; else
    echo "$name: FAILED with $status"
    failed=1
  fi
done
exit $failed
