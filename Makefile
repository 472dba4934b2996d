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
