# `make demo` and `make test` do all they need: check the system's tools, make .venv, install, run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-full lint types docs bench check-system clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

check-system:
	@missing=; \
	command -v g++ >/dev/null || missing="$$missing g++"; \
	command -v perl >/dev/null || missing="$$missing perl"; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || missing="$$missing python3(>=3.11)"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	if [ -n "$$missing" ]; then \
		echo "Missing:$$missing. On Debian or Ubuntu: sudo apt install g++ make perl python3-venv" >&2; exit 1; \
	fi

$(STAMP): pyproject.toml | check-system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(STAMP) ## Plan, time and simulate one training iteration of BERT-base; results in results/demo.
	$(BIN)/pagetide demo

test: $(STAMP) lint types ## Linter, type checker, docs and the fast tests.
	$(BIN)/pytest -n 2 --dist loadgroup
	$(MAKE) --no-print-directory docs

test-full: $(STAMP) lint types ## The same with the long tests.
	$(BIN)/pytest -n 2 --dist loadgroup -m 'slow or not slow'
	$(MAKE) --no-print-directory docs

lint: $(STAMP) ## Ruff.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check model sim fpga src/pagetide/cli tests benchmarks docs

types: $(STAMP) ## Mypy: strict for model, sim and the command line, relaxed for RTL.
	$(BIN)/mypy

docs: $(STAMP) ## The documentation, warnings as errors, doctests run.
	$(BIN)/sphinx-build -W --keep-going -q -b doctest docs docs/_build/doctest
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: $(STAMP) ## The figures of benchmarks/README.md.
	$(BIN)/python benchmarks/run.py

clean: ## Remove what builds and runs leave behind; keeps .venv.
	rm -rf results docs/_build docs/api/generated build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
