# Two commands: `make demo` runs the main job, `make test` the tests. Each does all its own set-up.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Where it is set (containers do), each of some 280 processes of the suite compiles Python anew: 2.5 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# uv is fetched as a wheel into the environment and installs the lock file in seconds; pip needs over a minute.
.venv/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Turnlog needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $@

.PHONY: setup
setup: .venv/.installed ## make .venv with the locked dependencies and fetch Kafka
	$(BIN)/turnlog doctor --fetch

.PHONY: demo
demo: setup ## start the stack, feed provider traffic through it, show every view; DATA=file for your own
	$(BIN)/turnlog demo $(if $(DATA),"$(DATA)")

.PHONY: test
test: setup ## every test, on a real stack of its own
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 15

.PHONY: check
check: .venv/.installed ## what CI checks besides the tests: format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: gateway-wheel
gateway-wheel: .venv/.installed ## build the wheel for gateways, turnlog/ alone, into dist/
	$(BIN)/uv build -q --wheel --no-build-isolation --python $(BIN)/python gateway -o dist

.PHONY: lock
lock: .venv/.installed ## resolve pyproject.toml anew into requirements.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements.lock

.PHONY: down
down: ## stop everything that `turnlog up` started
	$(BIN)/turnlog down
