.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow lint format type bench site reproduce clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
# Tests run on all cores, a file at a time on each; make test WORKERS= runs them in one process.
WORKERS ?= -n auto --dist loadfile
# Slow tests likewise, since those of a file share what took long to make; the longest files first (tests/conftest.py).
SLOW_WORKERS ?= -n auto --dist loadfile --no-loadscope-reorder
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

# Of the two best fixed plans for these hosts the more accurate one (no_bit in experiments/growth_pays), as a rival.
PLAN := evaluation.schedule.first.epoch=0 evaluation.schedule.first.slot=1 evaluation.schedule.first.blueprint=conv_heavy
RIVALS := evaluation.controllers=[learned,heuristic,schedule,random,never] $(PLAN)

# A quarter of the preset's iterations, after which the lean recipe has learned these hosts (experiments/lean).
SIZE := trainer.num_iterations=20 evaluation.num_hosts=64 devices=[cpu,cpu]

train: setup  ## Train a controller on digits: make train ARGS="seed=1 trainer.num_iterations=40"
	$(BIN)/python -m esper.train +preset=digits_pays $(SIZE) $(RIVALS) $(ARGS)

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

bench: setup  ## Time and memory beside plain PyTorch: make bench ARGS="ranks"
	$(BIN)/python -m benchmarks $(ARGS)

site: setup  ## Build the pages and the Python interface as a web site in build/site
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	rm -rf build/pages && mkdir -p build/pages
	git ls-files -z | tar --null -T - -cf - | tar -xf - -C build/pages
	$(BIN)/python -m mkdocs build --quiet --strict

reproduce: setup  ## Train, tune and judge the study growth_pays: 1 hour 40 minutes on two cores
	$(BIN)/python -m experiments.growth_pays.reproduce $(ARGS)

clean:  ## Remove caches and build products (keeps outputs/, multirun/ and .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
