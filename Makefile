# Each target sets up what it needs in .venv and then does its job.
#
#   make demo    the main job: a box on this machine, the engine on it, the console in front (headless without a terminal)
#   make test    every test, the real box included (as root; otherwise those say why they skip)
#   make check   formatter, linter, type checker, import contracts
#   make bench   speed, as ratios measured side by side in one run

PYTHON ?= python3
VENV   ?= .venv
# The CPU build used for development. On a GPU box: make TORCH='torch>=2.11' ...
TORCH  ?= torch==2.13.0
# An editable install warns of folders named like packages: here they are the packages.
PIP    := PYTHONWARNINGS=ignore $(VENV)/bin/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test check bench format clean

$(VENV)/ready-engine: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install '$(TORCH)'
	$(PIP) install --editable '.[engine]'
	@touch $@

$(VENV)/ready-test: $(VENV)/ready-engine
	$(PIP) install --editable '.[engine,test]'
	@touch $@

demo: $(VENV)/ready-engine
	@if [ -t 0 ] && [ -t 1 ]; then $(VENV)/bin/ddtree demo; \
	else $(VENV)/bin/ddtree demo --headless --run context_curve --json; fi

test: $(VENV)/ready-test
	$(VENV)/bin/python -m pytest $(ARGS)

check: $(VENV)/ready-test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/ready-test
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(VENV)/ready-test
	$(VENV)/bin/python -m tests.bench.bench
	$(VENV)/bin/python -m tests.bench.engine_speed
	$(VENV)/bin/python -m tests.bench.confusion
	$(VENV)/bin/python -m tests.bench.console

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
