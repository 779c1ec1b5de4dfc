# Two commands matter: `make run` starts the whole site, `make test` runs the whole suite.
# Both need Python 3.11 or newer and nothing else; they make .venv from the hash-pinned lock files.

SHELL := /bin/sh
BIN := .venv/bin
SUITE := $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
UV ?= uv
# Processes without compiled modules at hand compile everything anew at each start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test lint lock clean venv venv-dev

help:
	@echo 'make run    start the site: web, worker, clock, broker (options: make run UP="--port 8001")'
	@echo 'make test   the whole suite, on SQLite and on PostgreSQL'
	@echo 'make lint   style, types, import contracts, templates'
	@echo 'make lock   resolve the dependencies anew (needs uv)'
	@echo 'make clean  remove .venv and caches; keeps var/, which holds the data'

run: venv
	@$(BIN)/python manage.py up $(UP)

test: venv-dev
	@failed=0; \
	echo '== Suite on SQLite'; $(SUITE) $(ARGS) || failed=1; \
	echo '== Suite on PostgreSQL'; $(SUITE) --postgres $(ARGS) || failed=1; \
	exit $$failed

lint: venv-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/djlint --lint --quiet templates

venv:
	@./.ci/venv requirements.lock

venv-dev:
	@./.ci/venv requirements-dev.lock

lock:
	$(UV) pip compile pyproject.toml --extra demo --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --output-file requirements.lock --quiet
	$(UV) pip compile pyproject.toml --extra demo --group test --group lint --constraint requirements.lock --universal \
		--generate-hashes --no-emit-index-url --no-header --python-version 3.11 --output-file requirements-dev.lock --quiet

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
