# make demo | test | torture-short | torture | lint | audit | wheel | clean
#
# Each target makes its own .venv, once: from the hashed lock file, again when that or pyproject.toml changes.
# PYTHON picks the interpreter that it is made with: make test PYTHON=python3.14
# STORE picks the demo's queue: make demo STORE=sqlite:examples/reindex/jobs.db, or STORE=postgresql://user@host/database

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test torture torture-short lint audit format lock wheel clean

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

$(READY): requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## re-index the standard library through a pool, then search it; STORE=URL: with its queue elsewhere
	$(BIN)/python examples/reindex/demo.py $(if $(STORE),--store '$(STORE)')

test: $(READY)  ## everything but the long runs
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not torture and not torture_short"

torture-short: $(READY)  ## kills, power cuts, failing calls: each test of docs/reliability.md in its short form
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "torture_short and not alone"
	$(BIN)/python -m pytest -m "torture_short and alone"

torture: $(READY)  ## the same in their long forms: a night's work
	$(BIN)/python -m pytest -m torture

lint: $(READY)  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/reindex
	$(BIN)/lint-imports

audit:  ## look the locked requirements up in the database of known vulnerabilities (needs the network)
	$(PYTHON) .ci/audit

format: $(READY)  ## what lint can repair by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:  ## renew requirements/ after a change in pyproject.toml (needs uv)
	uv pip compile pyproject.toml $(LOCK) -o requirements/run.txt
	uv pip compile pyproject.toml $(LOCK) --all-extras --group dev -o requirements/dev.txt

LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

wheel: $(READY)  ## dist/*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## the environment, what was built, and what the demo left
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	rm -rf examples/reindex/spool examples/reindex/index.db* examples/reindex/jobs.db*
	rm -rf examples/reindex/.workerpool config/.workerpool
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
