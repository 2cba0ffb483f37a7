# `make help` lists what there is. Everything runs in .venv, which any target makes as needed.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types contracts bench crash clean dist

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/.stamp ## Run the demonstration
	$(BIN)/python examples/demo.py

test: .venv/.stamp ## Run the tests (ARGS="-k name" narrows them)
	$(BIN)/pytest $(ARGS)

check: lint types contracts ## Lint, types and import contracts

lint: .venv/.stamp ## Ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.stamp ## Mypy, strict
	$(BIN)/mypy --strict

contracts: .venv/.stamp ## Import contracts between the packages
	$(BIN)/lint-imports

bench: .venv/.stamp ## Run the benchmarks
	$(BIN)/python bench/run.py $(ARGS)

crash: .venv/.stamp ## Kill and reopen 10,000 times (LODEQ_CRASH_CYCLES sets how often)
	LODEQ_CRASH_CYCLES=$${LODEQ_CRASH_CYCLES:-10000} $(BIN)/python -m pytest tests/crash $(ARGS)

dist: .venv/.stamp ## Build the sdist and, from it, the wheel
	rm -rf build dist
	$(BIN)/python -m build

clean: ## Remove .venv, builds and caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -rf .import_linter_cache .hypothesis .benchmarks .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Tools that cannot follow the editable install's import hook read .venv/src, where `lodeq` is a
# link to this folder.
.venv/.stamp: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is missing. On Debian: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "lodeq needs Python 3.11 or newer. Choose one: make PYTHON=python3.11")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  $(PYTHON) -c 'import sys; print("This Python cannot make virtual environments. On Debian: \
	apt-get install python%d.%d-venv" % sys.version_info[:2])' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,zstd]'
	mkdir -p .venv/src
	ln -sfn ../.. .venv/src/lodeq
	touch $@
