#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Long Range Arena on one GPU, several models at a time: a small model leaves much of a large GPU idle, so that runs side
# by side take less time than one after another. Runs what is not finished yet; what was cut goes on where it was.
#
#   scripts/reproduce_lra.sh [--out FOLDER] [--minutes N] [--at-once N] TASK/ROW.RECIPE..
#
# --minutes: after so long everything is saved, and nothing begins. --at-once: how many share the GPU (default: 4).
# TASK/ROW.RECIPE as in configs/lra: image/softmax.published, text/fmm2_band5.tuned ..; default: softmax and two kernels
# with a band on all tasks, by both recipes. Afterwards:
#   build/fmmformer reproduce lra --table --out FOLDER
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
program=${FMMFORMER_PROGRAM:-build/fmmformer}
out=runs/lra minutes=100000 at_once=4 names=()
while [ $# -gt 0 ]; do
  case $1 in
    --out | --minutes | --at-once)
      [ $# -ge 2 ] || { echo "reproduce_lra.sh: $1 wants a value (see --help)" >&2; exit 2; }
      case $1 in --out) out=$2 ;; --minutes) minutes=$2 ;; *) at_once=$2 ;; esac
      shift 2
      ;;
    -h | --help) sed -n '3,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "reproduce_lra.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    *) names+=("$1"); shift ;;
  esac
done
if [ ${#names[@]} -eq 0 ]; then
  for recipe in published tuned; do
    for task in retrieval pathfinder image text listops; do
      names+=("$task/softmax.$recipe" "$task/fmm2_band5.$recipe")
    done
  done
fi
[[ $minutes =~ ^[0-9]+([.][0-9]+)?$ && $at_once =~ ^[1-9][0-9]*$ ]] ||
  { echo "reproduce_lra.sh: --minutes $minutes --at-once $at_once: both are numbers, the second whole" >&2; exit 2; }
for name in "${names[@]}"; do
  [ -e "configs/lra/$name.toml" ] || { echo "reproduce_lra.sh: there is no configs/lra/$name.toml" >&2; exit 2; }
done

# Where the tuned recipe is the published one, one run stands for both: two at a time would want the same folder.
recipe() { grep -vE '^(#|name|about)' "configs/lra/$1.toml"; }
runs=()
for name in "${names[@]}"; do
  published=${name%.*}.published
  if [ -e "configs/lra/$published.toml" ] && [ "$(recipe "$name")" = "$(recipe "$published")" ]; then name=$published; fi
  [[ " ${runs[*]} " == *" $name "* ]] || runs+=("$name")
done

# With NVIDIA's multi-process service kernels of several processes run at the same time; without it they take turns.
if [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control >/dev/null; then
  service=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY=$service CUDA_MPS_LOG_DIRECTORY=$service
  nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$service"' EXIT
fi

deadline=$(awk -v now="$(date +%s)" -v minutes="$minutes" 'BEGIN {printf "%d", now + 60 * minutes}')
run_one() {
  local task=${1%%/*} row_recipe=${1#*/} status=0 begin left
  begin=$(date +%s)
  left=$((deadline - begin))
  [ $left -gt 0 ] || { echo "time is up before $1"; return 0; }
  "$program" reproduce lra --device cuda --quiet --out "$out" --budget "$(awk "BEGIN {print $left / 60}")" \
    --tasks "$task" --rows "${row_recipe%.*}" --recipes "${row_recipe##*.}" >"$out/${1//\//_}.log" 2>&1 || status=$?
  echo "$1: $(($(date +%s) - begin)) s, exit status $status"
  return $status
}
mkdir -p "$out" || exit 1
export -f run_one
export program out deadline
printf '%s\n' "${runs[@]}" | xargs -P "$at_once" -I{} bash -c 'run_one "$1"' _ {} || { echo "see $out/*.log" >&2; exit 1; }
