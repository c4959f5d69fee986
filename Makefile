# Every target makes the environment (.venv) when it is missing or older than what it is made from.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: install report test lint bench gpu-check
.DELETE_ON_ERROR:

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

report: install
	$(BIN)/workbench demo --out runs/demo

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m tests.benchmarks

gpu-check: install
	$(BIN)/python -m tests.benchmarks.gpu_check
