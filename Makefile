# Each target makes .venv when it is missing and installs again only when its inputs changed.
PYTHON ?= python3
SECONDS ?= 2
BATCH ?= 4
MORE ?=
REPORT ?= build/report.html
OPEN ?= --open
BIN := .venv/bin
# What mypy checks for: both platforms, and the oldest and the newest Python that Metalmark claims.
TYPES := types-darwin-3.11 types-darwin-3.14 types-linux-3.11 types-linux-3.14

.PHONY: demo test quick check $(TYPES) pythons resolve clean

## Compare every framework on every device of this machine, then look at it: a cell that crashed is in the page too.
demo:
	@$(PYTHON) tools/install.py demo
	@$(BIN)/metalmark bench mnist-mlp,conv256 --framework all --device all --batch-size $(BATCH) --seconds $(SECONDS) $(MORE); \
	code=$$?; [ $$code -gt 1 ] || { mkdir -p $(dir $(REPORT)) && $(BIN)/metalmark report last -o $(REPORT) $(OPEN); }; exit $$code

## Everything CI runs. Three at a time, because tests wait for their processes too, and with one thread each: threads
## that wait for each other would take longer.
test: check
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

## The tests that need no framework and no browser, in less than two minutes. tools/quick.txt names what is left out:
## what needs them, and what measures for long.
quick:
	@$(PYTHON) tools/install.py dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder @tools/quick.txt

## Format, lint and types.
check:
	@$(PYTHON) tools/install.py dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(MAKE) --no-print-directory --keep-going -j 2 $(TYPES)

$(TYPES): types-%:
	@$(BIN)/mypy --platform $(firstword $(subst -, ,$*)) --python-version $(lastword $(subst -, ,$*)) \
	--cache-dir .mypy_cache/$* --no-error-summary || { echo "mypy found this for $(subst -, with Python ,$*)" >&2; exit 1; }

## The core of the tests on other Pythons: make pythons PYTHONS="python3.12 /path/to/python3.13".
pythons:
	@$(PYTHON) tools/pythons.py $(PYTHONS)

## What make demo and make test would install on a Mac, as a resolver says.
resolve:
	@$(PYTHON) tools/install.py dev
	@$(BIN)/python tools/resolve.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
