# `make demo` and `make test` set up everything they need; only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

# What `make examples` gives to examples/NAME.py: ARGS_NAME; most need nothing.
ARGS_kuramoto_sivashinsky := kuramoto_sivashinsky --steps 30 --samples 40
ARGS_shallow_water := shallow_water --steps 30 --samples 60

.PHONY: demo test test-all test-long test-gpu soak lint bench examples docs docs-tools coverage ends release format clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/sapc demo --out demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two processes of one thread: threads that compete for two cores crawl

test-all: $(STAMP)  # with those that take seconds each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not long"

test-long: $(STAMP)  # with further cases of what shorter ones show
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "long or not long"

# Every test that needs a GPU, with the Python at hand, which has torch, Triton and pytest; nothing is installed. Portions run side by side,
# as many as there are cores and at most eight: most of the time goes into compiling. PARTS=1/3 is a third of the tests alone.
GPU_TESTS := tests/gpu
PARTS ?= $(shell $(PYTHON) -c "import os; n = min(8, os.cpu_count() or 1); print(*(f'{i + 1}/{n}' for i in range(n)))")

test-gpu:
	@$(PYTHON) -c "import sys, torch; sys.exit(None if torch.cuda.is_available() else 'make test-gpu needs a CUDA device')"
	@jobs=; for part in $(PARTS); do \
	OMP_NUM_THREADS=1 PYTHONPATH=src $(PYTHON) -m pytest -p no:benchmark -m "long or not long" --part $$part --durations 8 $(GPU_TESTS) & \
	jobs="$$jobs $$!"; done; status=0; for job in $$jobs; do wait $$job || status=1; done; exit $$status

# Damaged files, odd commands, random projections, kills, wrong arguments: as many cases as fit into MINUTES, two at a time.
MINUTES ?= 10

soak: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(MINUTES) --workers 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/projection.py
	$(BIN)/python benchmarks/data.py --size 64

examples: $(STAMP)  # every file, in a folder that is removed afterwards; the first error ends it
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; cd "$$out"; export OMP_NUM_THREADS=1; \
	$(foreach file,$(sort $(wildcard examples/*.py)), \
	echo "== $(file) $(ARGS_$(basename $(notdir $(file))))"; \
	"$(CURDIR)/$(BIN)/python" "$(CURDIR)/$(file)" $(ARGS_$(basename $(notdir $(file))));) :

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs,report,data]"
	@touch $@

docs-tools: $(VENV)/.docs

docs: docs-tools  # -E: all pages are read and all notebooks run, whatever an earlier build has left
	OMP_NUM_THREADS=1 $(BIN)/python studies/results.py --pages
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -E -W --keep-going -b html docs docs/_build/html

# Which lines the tests reach.
coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not long" --cov --cov-report=term

# The tests with another version of torch and of numpy, in an environment of its own: the ends of what the package accepts.
TORCH ?= 2.13.0
NUMPY ?= 2.4.*
ENDS := .venv-torch-$(TORCH)

ends:
	$(PYTHON) -m venv $(ENDS)
	$(ENDS)/bin/python -m pip install --quiet --disable-pip-version-check "torch==$(TORCH)" "numpy==$(NUMPY)" -e ".[test]"
	OMP_NUM_THREADS=1 $(ENDS)/bin/python -m pytest -n 2 -m "not long"

# The two archives, and the wheel installed and used in an environment of its own.
release: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; wheel=$$(ls "$(CURDIR)"/dist/*.whl); \
	$(PYTHON) -m venv "$$out/venv"; cd "$$out"; \
	venv/bin/python -m pip install --quiet --disable-pip-version-check -c "$(CURDIR)/constraints.txt" "$$wheel[report,data]"; \
	venv/bin/sapc --version; venv/bin/sapc demo --out demo; venv/bin/sapc sample heat-sapc --n 2 --out samples.nc

clean:
	rm -rf $(VENV) .venv-torch-* docs/_build docs/results demo dist
