# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up (scripts/setup.sh: Debian packages and .venv) and is quick when nothing is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.PHONY: build build-for-tests with-cuda test test-quick bench bench-report emulate gpu-check demo format lint sanitize sanitize-quick install clean distclean help setup setup-tests
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

build: with-cuda .venv/fmmformer.stamp  ## (default) the program build/fmmformer, the operator library, the tests
	cmake --build --preset release -j $(JOBS)

test: setup-tests  ## everything: format, layers, C++ and Python tests, instruction sets, sanitizers (quick part), install, wheel
	scripts/run_tests.sh

test-quick: build  ## the C++ and Python tests of the release build only
	scripts/run_tests.sh cpp python

bench: build  ## times the operator beside its peers: torch's softmax, composites (eager, compiled), the dense near field
	build/fmmformer bench attention --compiled

bench-report: build  ## renders the results that are kept in bench/results as bench-report.html
	build/fmmformer report bench/results/*.json -o bench-report.html --title "FMM attention on a GPU"

emulate:  ## the GPU kernels on this CPU, against the double reference and for races (a quarter of an hour); needs an nvcc
	@command -v "$${CUDACXX:-nvcc}" >/dev/null || { echo "make emulate needs an nvcc: in PATH, or named by CUDACXX" >&2; exit 1; }
	$(MAKE) build-for-tests
	cmake --build --preset release -j $(JOBS) --target emulated_verify
	scripts/run_tests.sh emulate

gpu-check:  ## on a machine with a GPU: tests, verify, sanitizers and benchmarks there, as gpu-check/gpu_check.json
	@scripts/has_gpu.sh >/dev/null
	$(MAKE) build
	scripts/gpu_check.sh

demo: setup  ## trains softmax, linear and FMM attention on a small copy task, times them, writes one HTML page
	@[ -f build/build.ninja ] || cmake --preset release $(WITHOUT_GPU)
	cmake --build --preset release -j $(JOBS) --target fmmformer
	build/fmmformer demo

format: setup  ## formats all C++ and CUDA sources in place
	scripts/format.sh

lint: setup  ## clang-tidy over src/, with the short list of checks in .clang-tidy
	scripts/setup.sh clang-tidy
	cmake --preset lint
	scripts/lint.sh build-lint

sanitize: setup  ## all C++ tests under the address, undefined-behaviour and thread sanitizers (long)
	scripts/run_tests.sh asan-ubsan tsan

sanitize-quick: setup  ## the operator's tests under the address and undefined-behaviour sanitizers
	scripts/run_tests.sh asan-ubsan-quick

install: build  ## installs fmmformer::ops and the program under PREFIX (make install PREFIX=/some/where)
	cmake --install build --prefix $(PREFIX)

clean:  ## removes what was built; .venv stays
	rm -rf build build-*

distclean: clean  ## removes .venv too
	rm -rf .venv

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup:
	@scripts/setup.sh

# The report's page is tried in a real browser.
setup-tests:
	@scripts/setup.sh chromium

# The CUDA kernels take minutes to compile. Where no GPU could run them, a first `make demo` leaves them out, and a first
# `make test` only sees that they compile. `make build` has them in full wherever there is an nvcc.
ifeq ($(shell command -v nvidia-smi),)
WITHOUT_GPU := -DFMMFORMER_CUDA=OFF
UNOPTIMIZED := -DFMMFORMER_CUDA_OPTIMIZE=OFF
endif
with-cuda: build/build.ninja
	@if grep -qsE '^FMMFORMER_(CUDA:STRING|CUDA_OPTIMIZE:BOOL)=OFF' build/CMakeCache.txt; then \
	  cmake --preset release -DFMMFORMER_CUDA=AUTO -DFMMFORMER_CUDA_OPTIMIZE=ON; fi
build-for-tests: FIRST_TIME := $(UNOPTIMIZED)
build-for-tests: $(if $(UNOPTIMIZED),build/build.ninja,with-cuda) .venv/fmmformer.stamp
	@if grep -qs '^FMMFORMER_CUDA:STRING=OFF' build/CMakeCache.txt; then \
	  cmake --preset release -DFMMFORMER_CUDA=AUTO $(UNOPTIMIZED); fi
	cmake --build --preset release -j $(JOBS)

# Ninja configures again by itself when a CMakeLists.txt changes; only a changed preset needs us.
build/build.ninja: CMakePresets.json | setup
	cmake --preset release $(if $(wildcard build/CMakeCache.txt),,$(FIRST_TIME))
	@touch $@

# .venv's Python finds the package in the tree, and the package finds build/libfmmformer_ops.so.
.venv/fmmformer.stamp: | setup
	@for site in .venv/lib/python3*/site-packages; do echo "$(CURDIR)/python" >$$site/fmmformer_tree.pth; done
	@touch $@
