# Everything a developer or a CI job runs. `make` alone lists the targets.
PYTHON ?= python3
DEMO := .venv/.ready-demo
READY := .venv/.ready
BENCH := .venv/.ready-bench

# Every target starts many Python processes; without bytecode on disk each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

# A stamp counts only while its interpreter runs and the tree is where it was: see scripts/venv.sh.
stale = $(shell { [ "$$(cat $(1))" = "$$(pwd -P)" ] && .venv/bin/python -c ""; } \
	2>/dev/null || echo stale)

.PHONY: help demo screenshots test test-slow test-all browser check mutants bench serve reference clean stale

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

$(DEMO): pyproject.toml scripts/venv.sh $(call stale,$(DEMO))
	@PYTHON="$(PYTHON)" sh scripts/venv.sh $@ demo

$(READY): pyproject.toml scripts/venv.sh $(call stale,$(READY))
	@PYTHON="$(PYTHON)" sh scripts/venv.sh $@ dev

$(BENCH): pyproject.toml scripts/venv.sh $(call stale,$(BENCH))
	@PYTHON="$(PYTHON)" sh scripts/venv.sh $@ bench

# The development environment can run the demo; without it, install only what the demo needs.
ENOUGH := $(if $(wildcard $(READY)),$(READY),$(DEMO))

# ARGS=--no-serve ends when the loop is done; in a terminal the portal stays open otherwise.
demo: $(ENOUGH) ## the whole loop: record, store, train, replay, decide; ends with the portal open
	@.venv/bin/rollbook demo .demo/loop $(ARGS)

# One worker per core; the tests of one file stay together, so that they share its servers and stores.
PYTEST := .venv/bin/pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(READY) browser ## run the quick tests, on all cores
	$(PYTEST) -m "not slow"

test-slow: $(READY) browser ## run the tests that `make test` leaves out
	$(PYTEST) -m slow

test-all: $(READY) browser ## run every test
	$(PYTEST)

browser: ## install Chromium for the tests of the portal, where apt-get may
	@sh scripts/browser.sh

check: $(READY) ## lint, formatting, types, who may import whom
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

mutants: $(READY) ## plant mistakes in the guarding modules and count how many the tests find
	.venv/bin/python scripts/mutants.py

# ONLY="store_read rollup" measures some of them again.
bench: $(BENCH) browser ## measure every performance claim and write docs/benchmarks.md
	.venv/bin/python -m benchmarks $(ONLY)

serve: $(ENOUGH) ## start the server on what `make demo` recorded
	@test -e .demo/loop/demo.json || { echo "There is no demo yet: run make demo first, or rollbook serve for a server of your own."; exit 1; }
	.venv/bin/rollbook serve --data .demo/loop/server --store-root .demo/loop/train.zarr --store-root .demo/loop/held-out.zarr --store-root .demo/loop/sources

screenshots: $(READY) browser ## take pictures of the portal on what `make demo` recorded, into docs/screenshots
	.venv/bin/python -m scripts.screenshots .demo/loop docs/screenshots

reference: $(READY) ## write the pages of docs/reference that are made from the code
	.venv/bin/python -m scripts.reference

clean: ## remove everything the targets above made
	rm -rf .venv .bench .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .schemathesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
