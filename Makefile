PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST_WORKERS ?= 2

.PHONY: install demo test check format clean

PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

install: $(VENV)/.installed

# Marker files: an environment is made once, and again when its requirements change. The demo needs far less.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $(VENV)/.demo $@

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[plot]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/farout demo

# One thread a worker: OpenMP threads that compete are several times slower than none.
test: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadgroup

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache

# The report in a real browser. Chromium is the system's; as root it is installed if it is not there.
.PHONY: browser
browser: install
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/report/test_browser.py

# The long versions of what CI runs short: 200 kills, 100,000 spoilt files a reader. Results go beside the benchmarks'.
.PHONY: faults fuzz
faults: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/kills.py --kills 200 --out benchmarks/results

fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --inputs 100000 --out benchmarks/results
