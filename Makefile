# Needs Python 3.11 or newer and make; everything else goes into .venv, from hash-locked lists.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PROJECT := pyproject.toml src/standby/__init__.py
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help up test check format docs bench sim fuzz mutants lock wheel clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

up: $(VENV)/.run ## install (once) and serve, on SQLite in .standby/; more flags with ARGS="..."
	@$(BIN)/standby serve $(ARGS)

test: $(VENV)/.dev ## run every test, PostgreSQL included; some of them with ARGS="-k words"
	$(BIN)/pytest -n auto $(ARGS)

check: $(VENV)/.dev ## lint, format, types, import rules, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src

format: $(VENV)/.dev ## put the code in shape
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(VENV)/.run ## write the generated parts of docs/ again
	$(BIN)/python tools/write_docs.py

bench: $(VENV)/.dev ## measure this machine next to the peers (22 minutes; 3 with QUICK=1); some parts with ARGS="drain"
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(ARGS)

SEEDS ?= 2000
sim: $(VENV)/.dev ## play SEEDS=N seeds of the simulator, on all cores
	$(BIN)/python -m sim --seeds $(SEEDS)

EXAMPLES ?= 300
fuzz: $(VENV)/.dev ## send EXAMPLES=N made-up requests to every route of the API: each answer must be as described
	STANDBY_TEST_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n auto --timeout 1800 tests/api/test_fuzz.py $(ARGS)

mutants: $(VENV)/.dev ## break core/ in one place at a time: its tests must notice nearly always
	nice -n 15 $(BIN)/python tools/mutants.py $(ARGS)

wheel: $(VENV)/.run ## build dist/standby-*.whl
	rm -rf dist
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

# The locks name no registry: an installer uses the one it is set up for.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(VENV)/.dev ## choose versions anew: requirements/*.txt, and the peers' in bench/peers/
	test -x $(BIN)/uv || $(PIP) install uv
	$(LOCK) pyproject.toml --group build --output-file requirements/run.txt
	$(LOCK) pyproject.toml --constraint requirements/run.txt --extra postgres --group build --group dev \
		--output-file requirements/dev.txt
	for list in bench/peers/*.in; do $(LOCK) $$list --output-file $${list%.in}.txt || exit 1; done

clean: ## remove what was built, .venv included; never the state in .standby/
	rm -rf $(VENV) bench/.venvs dist build mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an install is repeated only when its list or the project's own description changed.
$(VENV)/.run: requirements/run.txt $(PROJECT) | $(BIN)/python
	@echo "Installing Standby into $(VENV) (once; about a minute)"
	$(PIP) install --require-hashes -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "Installing what the tests need into $(VENV) (once; about a minute)"
	$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null \
		|| { echo "There is no $(PYTHON). Install Python 3.11 or newer, or name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Standby needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
			"Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
