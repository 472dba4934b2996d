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

# The report and the server's page in a real browser. Chromium is the system's; as root it is installed if it is not there.
.PHONY: browser
browser: install
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/report/test_browser.py tests/serve/test_page.py

# The long versions of what CI runs short: 200 kills, ten million images and scores in bounded memory, 100,000 spoilt
# files a reader. Results go beside the benchmarks'.
.PHONY: faults memory fuzz
faults: install memory
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/kills.py --kills 200 --out benchmarks/results

memory: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/memory.py --out benchmarks/results

fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --inputs 100000 --out benchmarks/results

# Speed. Tables are printed; `make bench OUT=benchmarks/results` also writes them. Quick figures are no figures to quote:
# leave out --quick (QUICK=) for those. One thread: CPU seconds are then exact however busy the machine is.
.PHONY: bench bench-gpu
QUICK ?= --quick
WRITE  = $(if $(OUT),--out $(OUT))
bench: install
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt faiss-cpu || true
	set -e; for subject in import metrics demo probe knn growth; do echo "\n$$subject"; \
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_$$subject.py $(QUICK) $(WRITE); done

bench-gpu:
	set -e; for subject in step search knn growth loader runs; do echo "\n$$subject"; \
	PYTHONPATH=src $(PYTHON) benchmarks/bench_$$subject.py $(WRITE); done
	PYTHONPATH=src $(PYTHON) benchmarks/check_determinism.py --jobs 8 $(WRITE)
