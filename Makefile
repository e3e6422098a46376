.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow lint format type docs bench reproduce clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
# Tests run on all cores, a file at a time on each; make test WORKERS= runs them in one process.
WORKERS ?= -n auto --dist loadfile
# Slow tests one by one: a few take minutes, and would be left to one core at the end.
SLOW_WORKERS ?= -n auto --dist worksteal
BIN := .venv/bin
STAMP := .venv/.setup-done

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Make .venv and install Esper into it (again only when pyproject.toml changes)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# Compiling every module of every dependency takes longer than installing them; Python compiles what it imports.
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[dev]'
	@touch $@

train: setup  ## Train a controller on digits: make train ARGS="seed=1 trainer.num_iterations=60"
	$(BIN)/python -m esper.train +preset=digits $(ARGS)

test: setup  ## Run the unit tests: make test ARGS="tests/config -x" WORKERS=
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-slow: setup  ## Run the tests that take minutes: learning, sweeps, the wheel
	$(BIN)/python -m pytest $(SLOW_WORKERS) -m slow $(ARGS)

lint: setup  ## Check style and formatting
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: setup  ## Fix style and formatting
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

type: setup  ## Check types
	$(BIN)/python -m mypy

docs: setup  ## Make docs/metrics.md anew from the table in the code
	$(BIN)/python -m esper.telemetry.metrics_page docs/metrics.md

bench: setup  ## Time and memory beside plain PyTorch: make bench ARGS="ranks"
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: setup  ## Train, tune and judge the study growth_pays: 1 hour 40 minutes on two cores
	$(BIN)/python -m experiments.growth_pays.reproduce $(ARGS)

clean:  ## Remove caches and build products (keeps outputs/, multirun/ and .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
