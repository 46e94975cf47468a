#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build needs and is missing: Debian packages and a project-local .venv. Safe to run again at any
# time: when nothing is missing it ends in a few milliseconds. Never touches the user's own Python.
# Usage: setup.sh [further Debian packages]
set -euo pipefail
cd "$(dirname "$0")/.."

DEBIAN_PACKAGES=(g++ make git ccache clang-format libhwy-dev libcli11-dev nlohmann-json3-dev
                 libtomlplusplus-dev libjs-chart.js libcurl4-openssl-dev libssl-dev liblzma-dev libpng-dev zlib1g-dev
                 libgtest-dev libgmock-dev python3 python3-venv python3-dev "$@")

missing_debian_packages() {
  local package
  for package in "${DEBIAN_PACKAGES[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

install_debian_packages() {
  command -v dpkg-query >/dev/null || {
    echo "setup: not a Debian system; please provide the equivalents of: ${DEBIAN_PACKAGES[*]}" >&2
    return 0
  }
  local missing sudo=""
  missing=$(missing_debian_packages)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    sudo=$(command -v sudo) || {
      printf 'setup: these Debian packages are missing and neither root nor sudo is at hand:\n  apt-get install %s\n' \
        "$(echo $missing)" >&2
      exit 1
    }
  fi
  echo "setup: installing Debian packages:" $missing
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

install_venv() {
  # The stamp holds the requirements that the .venv was made from: a changed pin installs anew, nothing else does.
  cmp -s requirements.txt .venv/requirements.stamp && return 0
  echo "setup: making .venv (torch and build tools, about 5 GB; a minute or two)"
  # Debian's own interpreter where there is one: it is the one that python3-venv serves.
  local python=/usr/bin/python3
  [ -x "$python" ] || python=python3
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
  cp requirements.txt .venv/requirements.stamp
}

install_debian_packages
install_venv
