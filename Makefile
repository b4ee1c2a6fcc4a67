# Every target that runs something does its own set-up first; a second run installs and fetches nothing.

PYTHON  ?= python3
PROFILE ?= base

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
BEGUN := $(VENV)/.begun
CODE  := ident_utils tests notebooks

# Quiet, but errors still reach the terminal. Not compiling in advance more than halves the time of the set-up: most
# modules of most packages are never imported.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input

# Threads that wait by spinning bring a busy machine to a crawl.
export OMP_WAIT_POLICY ?= PASSIVE

# Packages come without bytecode (see PIP) and must be allowed to keep it, or every kernel compiles them all again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup reproduce explore test test-browser lint notebooks bench lock clean

help:
	@echo "make reproduce [PROFILE=smoke|base|full|paper]  run all notebooks, write figures, print the verdicts"
	@echo "make explore                              serve a page that looks at a sentence of yours"
	@echo "make test                                 unit tests, then every notebook at profile smoke"
	@echo "make test-browser                         the report and the explorer in a headless Chromium"
	@echo "make lint                                 ruff check and format, notebooks too"
	@echo "make notebooks                            run profile base and put its outputs into notebooks/"
	@echo "make bench                                time the algorithms against their plain versions"
	@echo "make lock                                 write requirements.lock anew from pyproject.toml"
	@echo "make clean                                remove .venv, caches of tools and executed copies"
	@echo "Set PYTHON=... to use another interpreter (3.11 or newer) for .venv."

setup: $(STAMP)

# The stamp comes last. A set-up that was killed before it may have left a package half installed that pip takes for
# whole, so that one begins with a new .venv; changed pins are installed into the old one.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -n 1), but Python 3.11 or newer is needed;" \
	       "name one with 'make PYTHON=python3.12 ...'" >&2; exit 2; }
	@echo "Setting up $(VENV): about 150 packages, some minutes the first time ..."
	@if test -e $(BEGUN); then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(BEGUN)
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "make: $(PYTHON) cannot make a virtual environment; install its venv module (Debian: python3-venv)" >&2; exit 2; }
	@$(PIP) install --no-compile --requirement requirements.lock 2>$(VENV)/pip.log || { \
	  grep -v '^WARNING: Location' $(VENV)/pip.log >&2; \
	  echo "make: the packages of requirements.lock could not be installed, see above; run make again" >&2; exit 2; }
	@$(PIP) install --no-deps --no-build-isolation --editable . 2>>$(VENV)/pip.log || { \
	  grep -v '^WARNING: Location' $(VENV)/pip.log >&2; echo "make: ident-utils itself could not be installed" >&2; exit 2; }
	@rm $(BEGUN) && touch $@

reproduce: $(STAMP)
	@$(BIN)/ident fetch --profile $(PROFILE)
	@status=0; $(BIN)/ident reproduce --profile $(PROFILE) || status=$$?; \
	$(BIN)/ident verdict --profile $(PROFILE) && $(BIN)/ident report --profile $(PROFILE) && exit $$status

explore: $(STAMP)
	@$(BIN)/ident fetch minilm-l6
	@$(BIN)/ident explore

# Tests run side by side, one a processor; all of a notebook's cells in one place, 09 after the others since it reads
# what they wrote; 10 is a page, tried in a browser. Every part runs whatever the others say, so that one run shows all that is wrong.
SIDE := --quiet --numprocesses=auto
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=600 --nbval-sanitize-with tests/nbval.cfg

test: export OMP_NUM_THREADS = 1
test: $(STAMP)
	@$(BIN)/ident fetch minilm-l6
	@export IDENT_PROFILE=smoke; unit=0; books=0; last=0; \
	env -u IDENT_PROFILE $(BIN)/python -m pytest tests $(SIDE) --dist=worksteal || unit=$$?; \
	$(BIN)/python -m pytest $(filter-out notebooks/09% notebooks/10%,$(wildcard notebooks/*.ipynb)) $(SIDE) --dist=loadfile $(NBVAL) \
	  || books=$$?; \
	$(BIN)/python -m pytest notebooks/09*.ipynb --quiet $(NBVAL) || last=$$?; \
	test $$unit -eq 0 -a $$books -eq 0 -a $$last -eq 0

# In a browser, for real; where no Chromium is installed the tests say so and are skipped.
test-browser: export OMP_NUM_THREADS = 1
test-browser: $(STAMP)
	@$(BIN)/ident fetch minilm-l6
	@$(BIN)/python -m pytest tests/browser -m browser --quiet -rs

lint: $(STAMP)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)

notebooks: $(STAMP)
	@$(BIN)/ident fetch --profile base
	@$(BIN)/ident reproduce --profile base
	@$(BIN)/ident publish
	@$(BIN)/ident report --profile base

bench: $(STAMP)
	@$(BIN)/ident fetch --profile base
	@$(BIN)/ident bench

# Left out: what torch itself pins for CUDA, since those packages exist for one platform only.
lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip --quiet install '.[test,dev]' setuptools
	@{ sed '/^[^#]/,$$d' requirements.lock; \
	  build/lock/bin/python -m pip freeze --all --exclude pip --exclude ident-utils \
	    | sed 's/+[[:alnum:].]*$$//' | grep -vE '^(nvidia|cuda|triton)'; } > build/requirements.lock
	@mv build/requirements.lock requirements.lock && rm -rf build

clean:
	rm -rf $(VENV) build runs *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
