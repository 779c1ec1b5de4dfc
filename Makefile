# Two commands matter: `make run` starts the whole site, `make test` runs the whole suite.
# Both need Python 3.11 or newer and nothing else; they make .venv from the hash-pinned lock files.

SHELL := /bin/sh
BIN := .venv/bin
UV ?= uv
# Processes without compiled modules at hand compile everything anew at each start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-all test-fast coverage pictures lint lock clean venv venv-dev

help:
	@echo 'make run    start the site: web, worker, clock, broker (options: make run UP="--port 8001")'
	@echo 'make test   the suite, on SQLite and on PostgreSQL at the same time'
	@echo 'make test-all   everything that is checked, in an hour or so; ARGS=--continue leaves out what has passed'
	@echo 'make test-fast  domain, models, services and calls on SQLite, in two minutes'
	@echo 'make coverage   branch coverage of the code that decides, sends and records'
	@echo 'make pictures   the pictures of the docs, taken anew from the real pages'
	@echo 'make lint   style, types, import contracts, templates'
	@echo 'make lock   resolve the dependencies anew (needs uv)'
	@echo 'make clean  remove .venv and caches; keeps var/, which holds the data'

run: venv
	@$(BIN)/python manage.py up $(UP)

test: venv-dev
	@$(BIN)/python -m tests $(ARGS)

test-all: venv-dev
	@./.ci/programs hosts
	@$(BIN)/python -m tests.everything $(ARGS)

test-fast: venv-dev
	@$(BIN)/python -m pytest -q --workers=4 --gate -m "not e2e and not fault and not web" \
		tests/domain tests/models tests/services tests/calls $(ARGS)

# Of the code that decides, sends and records, by the tests that run it in their own process.
coverage: venv-dev
	@$(BIN)/python -m pytest -q -n auto --maxprocesses=4 --dist=loadfile --part=measured \
		--cov --cov-report=term $(ARGS)

# Of the docs, from the real pages; needs a Chromium. Look at them before they are committed.
pictures: venv-dev
	@$(BIN)/python -m tests.pictures $(ARGS)

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
