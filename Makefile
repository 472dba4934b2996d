PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST_WORKERS ?= 2

.PHONY: install demo test check format clean

install: $(VENV)/.installed

# One marker file: the environment is made once and again when its requirements change.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: install
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
