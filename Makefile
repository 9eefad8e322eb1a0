# FADiff: `make demo` and `make test` set up everything they need in .venv first.
#
# Needs python3 (3.11 or newer), a C compiler and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
JOBS   ?= 2
DEMO   := build/demo

# The processes that tests start share what Python compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test unit lint format docs site clean

help:
	@echo "make demo    ResNet-18 from ONNX to verified Gemmini C (sets up .venv first)"
	@echo "make test    lint, types and every test (sets up .venv first)"
	@echo "make lint    ruff and mypy only"
	@echo "make format  let ruff rewrite the sources"
	@echo "make docs    write the generated pages in docs/ again"
	@echo "make site    docs/ as a site, with checked links, in build/site"
	@echo "make clean   remove .venv, build and caches"

setup: $(READY)

# One stamp file: installed again only when pyproject.toml is newer than the last success.
# Python compiles what is imported when it is: 2 in 3 modules of all packages never are.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is older than 3.11; run: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "error: no virtual environment; on Debian: apt install python3-venv"; exit 1; }
	@echo "setting up $(VENV) (some minutes the first time: PyTorch is large)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile -e '.[dev,baselines]'
	@touch $@

demo: $(READY)
	@$(BIN)/python -m fadiff.samples.demo $(DEMO)

# Side by side: mypy alone would leave the other cores without work.
test: $(READY)
	@$(MAKE) --no-print-directory -j2 lint unit

# worksteal: neighbouring tests stay in one process, which makes what they share once.
unit: $(READY)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Pages that the code writes; the tests fail when they are out of date.
docs: $(READY)
	@$(BIN)/python -m fadiff.costmodel.schedule.document > docs/schedule.schema.json
	@$(BIN)/python -m fadiff.converter.supported > docs/SUPPORTED_OPS.md

site: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
