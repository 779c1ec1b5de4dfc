# Two commands matter: `make run` starts the whole site, and `make test` runs the tests.
# Both need only Python 3.11 or newer; they create .venv from the lock files, which pin hashes.

SHELL := /bin/sh
BIN := .venv/bin
UV ?= uv
# With this variable, each process would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-all test-fast coverage messages pictures lint lock clean venv venv-dev

help:
	@echo 'make run    start the site: web server, worker, scheduler and broker (options: make run UP="--port 8001")'
	@echo 'make test   run the tests on SQLite and on PostgreSQL at the same time'
	@echo 'make test-all   run all checks (about an hour); ARGS=--continue skips those that passed before'
	@echo 'make test-fast  run the tests of domain, models, services and calls on SQLite (about two minutes)'
	@echo 'make coverage   measure branch coverage of the code that decides, sends and records'
	@echo 'make messages   list all texts of pages in locale/en/LC_MESSAGES/django.po (needs GNU gettext)'
	@echo 'make pictures   take the screenshots of the docs again (needs Chromium)'
	@echo 'make lint   check style, types, import contracts and templates'
	@echo 'make lock   resolve the dependencies again (needs uv)'
	@echo 'make clean  delete .venv and all caches; var/, which contains the data, is kept'

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

# Covers the code that decides, sends and records, measured by the tests that run it in their own process.
coverage: venv-dev
	@$(BIN)/python -m pytest -q -n auto --maxprocesses=4 --dist=loadfile --part=measured \
		--cov --cov-report=term $(ARGS)

# For proofreading. The list is made from the code and the templates, so it is not in the repository.
messages: venv-dev
	@mkdir -p locale
	@$(BIN)/python manage.py makemessages --locale en --no-wrap --add-location file \
		--ignore .venv --ignore tests --ignore benchmarks
	@grep -c '^msgid' locale/en/LC_MESSAGES/django.po | sed 's/$$/ texts are in locale\/en\/LC_MESSAGES\/django.po/'

# Look at the screenshots before you commit them.
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
