# make help lists the targets. Everything lives in .venv; a second run installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
LOCK := requirements-dev.lock
# As pip does with a wheel: a start takes half the time when nothing is left to compile.
COMPILE := $(BIN)/python -m compileall -q src examples benchmarks/command
RATE ?= 2000
SECONDS ?= 30
# Tests wait more than they work: more of them at a time than there are cores.
WORKERS ?= 4
TREES := src tests benchmarks examples

.PHONY: help up demo test check unit bench e2e e2e-java soak clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

up: $(VENV)/installed ## install what running needs, and start OneLog
	@$(BIN)/onelog up

demo: $(VENV)/installed-spark ## a shop, its orders, and the pipeline on Spark, live (RATE=2000 SECONDS=30)
	@$(BIN)/onelog demo --rate $(RATE) --seconds $(SECONDS)

test: check unit ## style, types, layers and all fast tests

check: $(VENV)/installed-dev ## style, types and layers only
	@$(BIN)/ruff format --quiet --check --output-format=concise $(TREES) || { echo "run: $(BIN)/ruff format $(TREES)"; exit 1; }
	@$(BIN)/ruff check --quiet $(TREES)
	@$(BIN)/mypy --no-error-summary $(TREES)
	@$(BIN)/lint-imports >$(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log; exit 1; }

# A test that failed beside the others is tried once more, alone: on a machine that is busy a wait
# can be too short. Both results are printed; a test that passes only alone wants mending.
unit: $(VENV)/installed-dev ## the fast tests (WORKERS=4 at a time)
	@$(BIN)/pytest -n $(WORKERS) || { [ $$? = 1 ] && echo "What failed, once more and alone:" \
	  && $(BIN)/pytest --last-failed --exitfirst --tb=short; }

bench: $(VENV)/installed-dev ## measure, side by side with the peers
	@$(BIN)/python -m benchmarks

e2e: $(VENV)/installed-dev ## the SDK's stores against real servers (installs redis-server if it may)
	@$(BIN)/pytest -m e2e --record "make $@"

e2e-java: $(VENV)/installed-dev ## RocketMQ's own Java code against OneLog (needs a JDK and Maven)
	@$(BIN)/pytest -m e2e_java --record "make $@"

soak: $(VENV)/installed-dev ## the long runs
	@$(BIN)/pytest -m soak -rP --record "make $@"

clean: ## remove everything that was made here
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "OneLog needs Python 3.11 or newer, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one and run: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian or Ubuntu:"; \
	  echo "  sudo apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml $(LOCK)
	@echo "installing OneLog into $(VENV)"
	@$(PIP) install -c $(LOCK) -e .
	@$(COMPILE)
	@touch $@

$(VENV)/installed-spark: $(VENV)/created pyproject.toml $(LOCK)
	@echo "installing OneLog with Spark into $(VENV)"
	@$(PIP) install -c $(LOCK) -e '.[spark]'
	@$(COMPILE)
	@touch $(VENV)/installed $@

$(VENV)/installed-dev: $(VENV)/created pyproject.toml $(LOCK)
	@echo "installing OneLog and its development tools into $(VENV)"
	@$(PIP) install -c $(LOCK) -e '.[dev]'
	@$(COMPILE)
	@touch $(VENV)/installed $(VENV)/installed-spark $@
