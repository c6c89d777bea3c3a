# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The targets people type; `make help` lists them. Set-up is a prerequisite of each, done once.
#   PYTHON=/path/to/python   interpreter to make .venv from (default: tools/setup/find_python.sh)
#   OFFLINE=1                with PYTHON: use that interpreter as it is, no .venv and no download
#   FLAVOUR=cpu|cuda13       which lock file (default: cuda13 where an NVIDIA GPU is present)
#   BAZEL=/path/to/bazel     (default: tools/setup/find_bazel.sh)
#   PYTEST_ARGS=...          further arguments of pytest;  DEMO_ARGS=... of the demo
#   REPORT_ARGS=...          of gpu-report: --list, --only WORDS, --seconds S, --run NAME, --help

SHELL := /bin/sh
.NOTPARALLEL:
.DEFAULT_GOAL := help

HAS_GPU := $(shell if [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then echo 1; fi)
FLAVOUR ?= $(if $(HAS_GPU),cuda13,cpu)

ifeq ($(OFFLINE),1)
  ifeq ($(PYTHON),)
    $(error OFFLINE=1 uses an interpreter as it is, so name it: make PYTHON=/path/to/python OFFLINE=1 <target>)
  endif
  PY := $(PYTHON)
  # The checkout stands in for an installed package.
  export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
  need = @$(PY) tools/setup/check_environment.py $(2)
else
  PY := .venv/bin/python
  need = @PYTHON="$(PYTHON)" tools/setup/environment.sh $(1) package
endif
export OFFLINE

PYTEST = $(PY) -m pytest $(PYTEST_ARGS)
RUFF = $(PY) -m ruff
NATIVE := jax_flux/_native.abi3.so

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-11s %s\n", $$1, $$2}'

# --- running

.PHONY: demo
demo: env-demo $(if $(HAS_GPU),native) ## set up, then train a small tensor-parallel language model
	$(PY) examples/train_lm.py $(DEMO_ARGS)

.PHONY: doctor
doctor: env-run ## say what this machine offers and what is missing
	$(PY) -m jax_flux doctor

# --- building

.PHONY: native
native: ## build the native library with Bazel and put it into jax_flux/
	@PYTHON="$(PYTHON)" PY="$(PY)" MAKE="$(MAKE)" tools/setup/native.sh

.PHONY: stub
stub: native env-dev ## rewrite jax_flux/_native.pyi from the native library
	@PY="$(PY)" tools/setup/stub.sh write

.PHONY: wheel
wheel: native env-wheel ## make dist/jax_flux-*.whl with the native library
	@rm -rf dist/jax_flux-*.whl
	$(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir dist .
	@ls -l dist/*.whl

# --- testing

.PHONY: test
test: lint types build-all docs test-cc ## everything that CI runs
ifneq ($(HAS_GPU),)
	$(MAKE) test-gpu
	JAX_PLATFORMS=cpu $(PYTEST) tests --ignore=tests/gpu
else
	$(PYTEST) tests
endif

.PHONY: lint
lint: env-dev ## ruff, clang-format, licence headers, links in the docs
	$(RUFF) check .
	$(RUFF) format --check .
	$(PY) tools/setup/check_sources.py --clang-format $(CLANG_FORMAT)

.PHONY: format
format: env-dev ## rewrite the sources in the house format
	$(RUFF) check --fix .
	$(RUFF) format .
	$(PY) tools/setup/check_sources.py --clang-format $(CLANG_FORMAT) --fix

.PHONY: types
types: env-dev ## mypy
	$(PY) -m mypy

# Always all of it (seconds): pages that Sphinx remembers would not warn again.
.PHONY: docs
docs: env-docs ## pages and API reference as HTML, warnings are errors: build/docs/html/index.html
	@$(PY) -m sphinx --quiet --fail-on-warning --fresh-env -c docs/site -d build/docs/doctrees . build/docs/html
	@echo "build/docs/html/index.html"

.PHONY: test-cpu
test-cpu: env-test ## Python tests that need no GPU
	JAX_PLATFORMS=cpu $(PYTEST) tests/cpu tests/multiprocess

.PHONY: test-cc
test-cc: env-build ## C++ tests: protocol checker and simulation
	@PY="$(PY)" tools/setup/bazel.sh test //tests/cc/...

.PHONY: test-gpu
test-gpu: env-test native ## tests that need GPUs; skips name the hardware they want
	$(PYTEST) tests/gpu

.PHONY: gpu-report
gpu-report: $(if $(HAS_GPU),env-report native,env-run) ## what GPUs show of this checkout, as JSON and a page
	$(PY) -m benchmarks.gpu_report $(REPORT_ARGS)

.PHONY: build-all
build-all: native env-dev
	@PY="$(PY)" tools/setup/bazel.sh build //...
	@PY="$(PY)" tools/setup/stub.sh check

# --- housekeeping

.PHONY: lock
lock: env-dev ## rewrite requirements/*.lock from requirements/*.in (needs the package index)
	tools/setup/lock.sh .venv/bin/uv $(LOCK_ARGS)

.PHONY: clean
clean: ## remove everything that make has made
	rm -rf .venv build dist out $(NATIVE) bazel-bin bazel-out bazel-testlogs bazel-$(notdir $(CURDIR))
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

CLANG_FORMAT = $(if $(filter 1,$(OFFLINE)),clang-format,.venv/bin/clang-format)

# Each says which lock files .venv needs, then what an interpreter taken as it is must have.
.PHONY: env-run env-wheel env-demo env-test env-report env-build env-dev env-docs
env-run:
	$(call need,$(FLAVOUR),jax jaxlib)
env-wheel:
	$(call need,$(FLAVOUR),pip hatchling)
env-demo:
	$(call need,$(FLAVOUR),jax jaxlib optax orbax-checkpoint rich matplotlib)
env-test:
	$(call need,$(FLAVOUR) build dev,jax jaxlib pytest)
env-report:
	$(call need,$(FLAVOUR) build dev,jax jaxlib pytest flax)
env-build:
	$(call need,$(FLAVOUR) build,build)
env-dev:
	$(call need,$(FLAVOUR) build dev,cpu build dev)
env-docs:
	$(call need,$(FLAVOUR) build dev docs,cpu dev docs)
