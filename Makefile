# Everything a developer or a CI job runs. `make` alone lists the targets.
PYTHON ?= python3
DEMO := .venv/.ready-demo
READY := .venv/.ready

# Every target starts many Python processes; without bytecode on disk each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

# A stamp counts only while its interpreter runs and the tree is where it was: see scripts/venv.sh.
stale = $(shell { [ "$$(cat $(1))" = "$$(pwd -P)" ] && .venv/bin/python -c ""; } \
	2>/dev/null || echo stale)

.PHONY: help demo test test-slow test-all check mutants bench serve clean stale

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

$(DEMO): pyproject.toml scripts/venv.sh $(call stale,$(DEMO))
	@PYTHON="$(PYTHON)" sh scripts/venv.sh $@ server,generate,evals

$(READY): pyproject.toml scripts/venv.sh $(call stale,$(READY))
	@PYTHON="$(PYTHON)" sh scripts/venv.sh $@ dev

# The development environment can run the demo; without it, install only what the demo needs.
ENOUGH := $(if $(wildcard $(READY)),$(READY),$(DEMO))

demo: $(ENOUGH) ## the whole loop: generated rollouts, a server, a candidate, ship or hold
	@.venv/bin/python -m examples.whole_loop .demo/loop

# One worker per core; the tests of one file stay together, so that they share its servers and stores.
PYTEST := .venv/bin/pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(READY) ## run the quick tests, on all cores
	$(PYTEST) -m "not slow"

test-slow: $(READY) ## run the tests that `make test` leaves out
	$(PYTEST) -m slow

test-all: $(READY) ## run every test
	$(PYTEST)

check: $(READY) ## lint, formatting, types, who may import whom
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

mutants: $(READY) ## plant mistakes in the guarding modules and count how many the tests find
	.venv/bin/python scripts/mutants.py

bench: $(READY) ## run the benchmarks
	.venv/bin/python -m benchmarks

serve: $(ENOUGH) ## start the server, with its data in .demo/server
	.venv/bin/rollbook serve --data .demo/server

clean: ## remove everything the targets above made
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .schemathesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
