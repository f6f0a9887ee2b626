# Each target makes .venv when it is missing and installs again only when its inputs changed.
PYTHON ?= python3
SECONDS ?= 2
BATCH ?= 4
REPORT ?= build/report.html
OPEN ?= --open
BIN := .venv/bin

.PHONY: demo test check clean

## Compare every framework on every device of this machine, then look at it: a cell that crashed is in the page too.
demo:
	@$(PYTHON) tools/install.py demo
	@$(BIN)/metalmark bench mnist-mlp,conv256 --framework all --device all --batch-size $(BATCH) --seconds $(SECONDS); \
	code=$$?; [ $$code -gt 1 ] || { mkdir -p $(dir $(REPORT)) && $(BIN)/metalmark report last -o $(REPORT) $(OPEN); }; exit $$code

## Everything CI runs. Two at a time, with one thread each: threads that wait for each other would take longer.
test: check
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

## Format, lint and types.
check:
	@$(PYTHON) tools/install.py dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
