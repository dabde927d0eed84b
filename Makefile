# Two commands are enough: `make demo` and `make test`. Both set up .venv on their first call.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
JOBS   ?= 2
PYTEST_ARGS ?=

# One thread per process: tests that start processes, and the two workers, would otherwise fight for the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs dist fuzz bench paper-runs pins clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.lab ## install what the lab needs, show the loss at three scales on digits, write a report
	@$(BIN)/surefoot demo --out runs/demo

test: $(VENV)/.test ## install everything and run every test
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

lint: $(VENV)/.test ## ruff (rules and layout) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

format: $(VENV)/.test ## let ruff fix and lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

SITE ?= site
docs: $(VENV)/.docs ## build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(SITE)
	@echo "Open $(SITE)/index.html in a browser."

dist: $(VENV)/.test ## build the wheel and the sdist into dist/, and try the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	SUREFOOT_DIST=dist $(TEST_ENV) $(BIN)/python -m pytest tests/whole/test_dist.py $(PYTEST_ARGS)

FUZZ ?= 3000
fuzz: $(VENV)/.test ## damage run folders at random and give them to the commands: FUZZ=3000 of them
	SUREFOOT_FUZZ=$(FUZZ) $(TEST_ENV) $(BIN)/python -m pytest tests/whole/test_fuzz.py -n $(JOBS) --timeout 0 $(PYTEST_ARGS)

bench: $(VENV)/.test ## measure step time, a lab epoch and import time, as ratios
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/lab_epoch.py

# Outside of the repository, so that runs outlive it. What was interrupted goes on where it stopped.
PAPER_RUNS ?= $(HOME)/.local/share/surefoot/paper
paper-runs: $(VENV)/.lab ## go on with the paper's runs at low priority (hours to days): the cells, seed by seed, then why
	@set -e; for seeds in 1 2 3; do for part in lr mlp cnn; do \
	  nice -n 19 $(BIN)/surefoot paper $$part --seeds $$seeds --jobs $(JOBS) --out $(PAPER_RUNS) \
	    --archive results/paper/runs.jsonl; done; done
	@nice -n 19 $(BIN)/surefoot paper why --jobs $(JOBS) --out $(PAPER_RUNS) --archive results/paper/runs.jsonl
	@echo "Archive them with: $(BIN)/surefoot paper --out $(PAPER_RUNS) --export results/paper --page docs/replication.md"

pins: ## raise every version in constraints.txt to what an install finds today (torch stays)
	torch=$$(grep '^torch==' constraints.txt) && rm -rf $(VENV) && $(MAKE) $(BIN)/python && \
	$(PIP) install -qq "$$torch" && $(PIP) install -qq -e '.[test]' && \
	sed -n '/^#/p' constraints.txt > constraints.new && \
	$(PIP) freeze --exclude-editable | sed 's/+[^+]*$$//' >> constraints.new && mv constraints.new constraints.txt

clean: ## remove the virtual environment, caches and runs of the demo
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site runs/demo
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Surefoot needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing);" \
	       "name another one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "'$(PYTHON) -m venv' failed; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }

# The stamps are newer than what they were made from, so a second call installs nothing. Python compiles a module when it
# is first imported; doing it for all of them here would take half of the time of the install.
$(VENV)/.lab: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Surefoot and its lab into $(VENV) (about a minute, once) ..."
	$(PIP) install -qq --no-compile -c constraints.txt -e '.[lab]'
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what builds the documentation into $(VENV) (about a minute, once) ..."
	$(PIP) install -qq --no-compile -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Surefoot with every extra into $(VENV) (a few minutes, once) ..."
	$(PIP) install -qq --no-compile -c constraints.txt -e '.[test]'
	@touch $(VENV)/.lab $(VENV)/.docs $@
