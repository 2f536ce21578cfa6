# Everything runs in .venv, which the first target that needs it sets up. A PyTorch >= 2.11 that PYTHON
# already has is used from there:  make demo PYTHON=/path/to/a/python
PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=
SEED    ?= 10116143

BIN   := .venv/bin
# A PYTHON that was asked for replaces an environment made with another one; the default does not.
SETUP  = @command -v "$(PYTHON)" >/dev/null || { echo "make: no $(PYTHON) here; pass PYTHON=" >&2; exit 1; }; \
	"$(PYTHON)" tools/environment.py $(if $(filter file,$(origin PYTHON)),--any-python)
# Processes by the hundred read the same sources: Python may keep them compiled.
unexport PYTHONDONTWRITEBYTECODE
BENCHMARKS = $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)) benchmarks/apps/run.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all check evidence lint format typecheck bench docs gallery clean user-environment dev-environment

help:  ## list the targets
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-10s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "  PYTHON=... picks the interpreter (3.11 or newer); its own torch >= 2.11 is used if it has one"

demo: user-environment  ## multiply real matrices: native, prismm and exact side by side
	$(BIN)/prismm demo $(ARGS)

test: dev-environment  ## run the tests but the slow ones; ARGS="-k name" to choose, WORKERS=2 processes
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(ARGS)

test-slow: dev-environment  ## run the slow tests: whole probes, compilations, processes
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(ARGS)

test-all: dev-environment  ## run every test, and make every fact on record afresh (an hour)
	PRISMM_TEST_ALL=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

evidence: dev-environment  ## make facts on record again whose sources have changed: kernels for other processors, probes
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m evidence $(ARGS)

# A check draws the same numbers every time, so that what fails in one fails in every other; `make test` draws anew.
check: dev-environment  ## run what has to pass before a change lands: all tests, and lint and typecheck beside them
	@log=$$(mktemp); status=0; \
	( $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo && $(BIN)/mypy ) >"$$log" 2>&1 & style=$$!; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --seed $(SEED) --hypothesis-seed $(SEED) $(ARGS) || status=$$?; \
	wait $$style || status=$$?; cat "$$log"; rm "$$log"; exit $$status

lint: dev-environment  ## check style, layout and which module imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

format: dev-environment  ## lay the code out and mend what can be mended by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: dev-environment  ## mypy --strict on src
	$(BIN)/mypy

bench: dev-environment  ## run every benchmark, each writing its CSV under benchmarks/results (long)
	@set -e; for script in $(BENCHMARKS); do echo "$$script"; $(BIN)/python "$$script"; done

docs: dev-environment  ## build the documentation as a site in build/site; broken links are errors
	$(BIN)/python tools/website/build.py $(ARGS)

gallery: dev-environment  ## redraw every figure of docs/ from the CSVs in benchmarks/results
	$(BIN)/python benchmarks/gallery.py
	$(BIN)/python benchmarks/gpu_plots.py

clean:  ## remove .venv and what the tools left behind
	@if [ -f .venv/prismm-environment.json ]; then rm -rf .venv; fi
	rm -rf build dist src/*.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache .import_linter_cache
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

user-environment:
	$(SETUP) demo

dev-environment:
	$(SETUP) dev
