# Everything a developer or a CI job runs. `make` alone lists the targets.
PYTHON ?= python3
READY := .venv/.ready

# A stamp counts only while its interpreter runs and the tree is where it was: see scripts/venv.sh.
STALE := $(shell { [ "$$(cat $(READY))" = "$$(pwd -P)" ] && .venv/bin/python -c ""; } \
	2>/dev/null || echo stale)

.PHONY: help demo test test-all check bench serve clean stale

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

$(READY): pyproject.toml scripts/venv.sh $(STALE)
	@PYTHON="$(PYTHON)" sh scripts/venv.sh

demo: $(READY) ## the contract loop, a store, then the whole loop: rollouts, a server, a candidate, ship or hold
	.venv/bin/rollbook contracts check
	.venv/bin/python examples/store_tour.py
	.venv/bin/python -m examples.whole_loop

test: $(READY) ## run the quick tests
	.venv/bin/pytest -m "not slow"

test-all: $(READY) ## run every test
	.venv/bin/pytest

check: $(READY) ## lint, formatting, types, who may import whom
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: $(READY) ## run the benchmarks
	.venv/bin/python -m benchmarks

serve: $(READY) ## start the server, with its data in .demo/server
	.venv/bin/rollbook serve --data .demo/server

clean: ## remove everything the targets above made
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .schemathesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
