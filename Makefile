# One virtual environment, one stamp per extra: a second run goes straight to work.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

# Tests start hundreds of processes, which would each compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# make fuzz SECONDS=600 SEED=7 MODE=networks,graphs JOBS=1 DEVICE=reference
SECONDS ?= 60
SEED ?= 1
JOBS ?= 2
MODE ?= networks,graphs,readers,combinations

.PHONY: help train quick test test-all test-cuda fuzz mutants check lint bench dist size clean
help:
	@echo "make train     set up and train a network on the UCI digits"
	@echo "make quick     before every commit: format, lint, types, import contract, tests that need no C compiler"
	@echo "make test      the same with all tests; a part of long catalogues that no change is about"
	@echo "make test-all  everything: complete catalogues and the long property tests"
	@echo "make test-cuda everything about device=\"cuda\" on this machine's GPU; writes docs/test-cuda.md"
	@echo "make fuzz      look for wrong numbers with random networks, graphs, files and runs: SECONDS=600 SEED=1"
	@echo "make mutants   plant each bug of tests/mutants in a copy of the package: its tests must fail; ONLY=name"
	@echo "make bench     the MLP against torch, torch.compile, JAX and scikit-learn"
	@echo "make dist      build and check wheel and sdist; install the wheel in a bare environment, train, print sizes and times"
	@echo "make size      lines by package, and counts of what makes the tree hard to read"
	@echo "make clean     remove the virtual environment"

train: $(VENV)/.installed
	$(PY) examples/digits.py

# mypy runs beside the tests, which wait for processes now and then; its result is printed after theirs.
TYPES := $(VENV)/types.log
PYTEST := $(PY) -m mypy > $(TYPES) 2>&1 & types=$$!; $(PY) -m pytest -n 2 --dist worksteal -q
THEN_TYPES := tests=$$?; wait $$types; typed=$$?; echo "mypy:"; cat $(TYPES); exit $$((tests ? tests : typed))

quick: lint
	@$(PYTEST) --quick; $(THEN_TYPES)

test: lint
	@$(PYTEST); $(THEN_TYPES)

test-all: lint
	$(PIP) --editable ".[test,ray]"
	@$(PYTEST) --complete -m "long or not long"; $(THEN_TYPES)
	$(PY) -m tests.fuzz --seconds $(SECONDS) --seed $$(date +%Y%m%d) --jobs $(JOBS) --mode $(MODE)

test-cuda: $(VENV)/.test
	$(PIP) ".[cuda,nccl]"
	$(PY) -m tests.compiler.backends.cuda.on_gpu

fuzz: $(VENV)/.test
	$(PY) -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) --jobs $(JOBS) --mode $(MODE) $(if $(DEVICE),--device $(DEVICE))

mutants: $(VENV)/.test
	$(PY) -m tests.mutants $(if $(ONLY),--only $(ONLY))

lint: $(VENV)/.test
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(VENV)/bin/lint-imports

check: lint
	$(PY) -m mypy

size: | $(PY)
	@$(PY) tools/size.py $(if $(LIST),--list)

bench: $(VENV)/.bench
	$(PY) -m benchmarks mlp

dist: $(VENV)/.dist
	$(PY) tools/dist.py

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Wholestep needs Python 3.11 or newer, \
	and this is %d.%d. Name another one: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(PY)
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(PY)
	$(PIP) --editable ".[test]"
	@touch $@ $(VENV)/.installed

$(VENV)/.bench: pyproject.toml | $(PY)
	$(PIP) --editable ".[bench]"
	@touch $@ $(VENV)/.installed

$(VENV)/.dist: pyproject.toml | $(PY)
	$(PIP) --editable ".[dist]"
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV)
