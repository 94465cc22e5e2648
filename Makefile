# Everything on a fresh machine with Python and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.installed-runs
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow mutants sanitize wheel bench docs docs-serve compatibility evidence evidence-check format clean

# One environment: first what runs need, then the extras and tools; torch comes pinned through the constraints file.
$(RUNS): pyproject.toml setup.py constraints.txt $(wildcard src/cigl/runtime/program/kernels/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cli]'
	touch $@

$(INSTALLED): $(RUNS)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@

demo: $(RUNS)  ## train RigL and CigL on an embedded dataset and show the result
	$(BIN)/python examples/demo.py

test: $(INSTALLED)  ## lint, types and tests: at most 10 minutes on 2 cores
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2

test-slow: $(INSTALLED)  ## the tests that take minutes each
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m slow

MUTANTS := --count 20 --seed 0 calibrate/measures calibrate/corrections sparsify
mutants: $(INSTALLED)  ## a sample of faults of one token against the tests of their room: half an hour and more
	$(BIN)/pip install --quiet --constraint constraints.txt coverage cosmic-ray
	$(BIN)/python tests/mutants.py $(MUTANTS)

# The portable kernels are the same source as the others; 16 floats in a vector are what AVX-512 has.
SANITIZE := g++ -std=c++17 -O1 -g -fPIC -shared -fopenmp -Wno-psabi -DVARIANT=portable \
	-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
sanitize: $(INSTALLED)  ## random shapes through the kernels, under AddressSanitizer and UndefinedBehaviourSanitizer
	for lanes in 8 16; do \
		mkdir -p build/sanitized/$$lanes && \
		$(SANITIZE) -DLANES=$$lanes src/cigl/runtime/program/kernels/*.cpp -o build/sanitized/$$lanes/_kernels.so && \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
			ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 $(BIN)/python tests/runtime/program/sanitized.py build/sanitized/$$lanes || exit 1; \
	done

wheel: $(INSTALLED)  ## dist/: the source distribution and one wheel for every Python, checked and installed by a test
	rm -rf dist
	$(BIN)/python tests/packaging/build_distributions.py dist
	CIGL_DIST=dist $(BIN)/pytest -q -m slow -rP tests/packaging/test_wheel.py

bench: $(INSTALLED)  ## what sparse training and calibration reports cost, and how fast sparse networks run
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/import_cost.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/sparsify_cost.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/calibrate_cost.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/train_cost.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/methods_cost.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/data_cost.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/study_cost.py
	$(BIN)/python -W ignore benchmarks/runtime_speed.py
	$(BIN)/python -W ignore benchmarks/conv_networks.py
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/training_speed.py --profile

compatibility: $(INSTALLED)  ## write docs/compatibility.md from the cases that the tests run
	$(BIN)/python tests/compatibility/table.py

evidence: $(INSTALLED)  ## run the studies behind docs/results.md again: hours, goes on where it was stopped
	OMP_NUM_THREADS=1 $(BIN)/python evidence/run.py

evidence-check: $(INSTALLED)  ## one cell of each study with a new seed, against the committed results: minutes
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore evidence/check.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)  ## the site of the documentation, in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "the documentation is in site/index.html"

docs-serve: $(INSTALLED)  ## the site at http://127.0.0.1:8000, built again when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
