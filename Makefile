# Everything starts from here. `make help` lists what there is.
# Needs Python 3.11 or later with pip, and make; the rest is fetched into .uv and .venv, and reused until it changes.

PYTHON ?= python3
UV_VERSION := 0.13.7
UV := .uv/bin/uv
# Another Python has an environment of its own: make test PYTHON=python3.13
VENV := .venv$(if $(filter python3,$(PYTHON)),,-$(notdir $(PYTHON)))
READY := $(VENV)/.ready
BIN := $(VENV)/bin
ARGS ?=
# Holds data, so nothing empties it: not `make clean`, and no tool whose cache it is (`make docs` empties .cache).
LEDGERS := .antiphon

export UV_COMPILE_BYTECODE := 1
export UV_NO_PROGRESS := 1
# Where a shell forbids it, each test run compiles every module anew, and so does each of the hundreds of children.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run serve test quick check fix bench compare since chaos soak docs api figures floors release lock clean

help: ## list the commands
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

run: $(READY) ## set up and do the main job, offline
	@mkdir -p $(LEDGERS)
	@$(BIN)/antiphon run "What happens to a message that fails its actor three times?" $(patsubst %,--add %,$(wildcard docs/*.md)) --ledger sqlite:///$(LEDGERS)/run.db $(ARGS)

serve: $(READY) ## fill a ledger with examples, serve it, and print the address of the page; ARGS="--port 0"
	@$(BIN)/python -m tools.demo $(LEDGERS)
	@exec $(BIN)/antiphon serve --ledger sqlite:///$(LEDGERS)/serve.db --model scripted $(ARGS)

# Three workers a core: many tests wait for other processes and for leases.
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS := $(shell expr 3 \* $(CORES))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --inline-snapshot=disable

# The core is covered branch by branch, by its own tests. Measuring the rest too would take half as long again.
test: $(READY) ## set up and run every test; make test ARGS="-k window"
ifeq ($(ARGS),)
	@$(BIN)/python -m tools.browser
	@$(PYTEST) -n $(CORES) --cov --cov-report= tests/messages
	@$(BIN)/coverage report --include='src/antiphon/messages/*' --fail-under=100
	@$(PYTEST) --ignore=tests/messages
else
	@$(PYTEST) $(ARGS)
endif

quick: $(READY) ## the tests that are not slow, in less than a minute
	@HYPOTHESIS_PROFILE=quick $(PYTEST) -n $(CORES) -q -m "not slow" $(ARGS)

check: $(READY) ## format, lint, layers, types, of the page too
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy
	@$(BIN)/basedpyright
	@$(BIN)/python -m pytest -q -n 0 --inline-snapshot=disable tests/test_architecture.py
	@$(BIN)/python tools/longest_functions.py src
	@$(BIN)/python -m tools.page

fix: $(READY) ## put right what a machine can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format --quiet .

bench: benchmarks/.venv/.ready ## side by side with the peers
	@benchmarks/.venv/bin/python -m benchmarks $(ARGS)

compare: benchmarks/.venv/.ready ## three programs beside DBOS and LangGraph, killed, sent twice and deployed; writes docs/comparison.md
	@benchmarks/.venv/bin/python benchmarks/comparison $(or $(ARGS),--write docs/comparison.md)

since: benchmarks/.venv/.ready ## this tree beside an earlier commit: make since COMMIT=v0.1.0 ARGS="codec runtime"
	@benchmarks/.venv/bin/python -m benchmarks.since $(or $(COMMIT),HEAD) $(or $(ARGS),agents codec convert imports ledger postchain providers runtime telemetry)

chaos: $(READY) ## the long runs: many more generated cases
	@ANTIPHON_FUZZ=100000 HYPOTHESIS_PROFILE=long $(PYTEST) --timeout 7200 tests/messages tests/dialects tests/protocol tests/checks $(ARGS)
	@ANTIPHON_CHAOS=$${ANTIPHON_CHAOS:-ci} HYPOTHESIS_PROFILE=long $(PYTEST) --timeout 7200 tests/ledger tests/runtime tests/patterns tests/agents tests/cli tests/service tests/server tests/page $(ARGS)
	@UV=$(UV) $(BIN)/python -m tests.cli.session
	@$(BIN)/python -m tests.foreign

soak: $(READY) ## hosts on PostgreSQL with a fault every 5 s, and a table of what was lost; make soak SECONDS=1800
	@$(BIN)/python -m tools.soak --seconds $(or $(SECONDS),60) $(ARGS)

docs: $(READY) ## build the docs into site/, and check their links
	@$(BIN)/python tools/api.py pages
	@$(BIN)/zensical build --clean --strict

api: $(READY) ## what breaks callers since a commit: make api SINCE=v0.1.0
	@$(BIN)/python tools/api.py check $(or $(SINCE),HEAD)

figures: $(READY) ## how easy the tree is to enter, as figures
	@$(BIN)/python tools/figures.py $(ARGS)

floors: $(READY) ## run the documented programs with the lowest versions of all dependencies; make floors ARGS=newest
	@$(BIN)/python -m tools.floors $(ARGS)

release: $(READY) ## build the wheel and the sdist into dist/, and prove that they install; publish by hand
	@$(BIN)/python -m tools.release

lock: $(UV) ## choose the versions of all dependencies anew
	$(UV) pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes --no-header --upgrade -o requirements.lock
	$(UV) pip compile benchmarks/requirements.in pyproject.toml --universal --generate-hashes --no-header --upgrade -o benchmarks/requirements.lock

clean: ## remove everything that was made, except ledgers
	rm -rf .venv* .uv .cache .tools .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache benchmarks/.venv benchmarks/results dist site .coverage*

$(UV):
	@echo "fetching uv $(UV_VERSION) ..."
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-warn-script-location --target .uv uv==$(UV_VERSION)

$(READY): requirements.lock pyproject.toml Makefile | $(UV)
	@echo "setting up .venv ..."
	@$(UV) venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" $(VENV)
	@$(UV) pip sync --quiet --python $(VENV) --require-hashes requirements.lock
	@$(UV) pip install --quiet --python $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

benchmarks/.venv/.ready: benchmarks/requirements.lock pyproject.toml Makefile | $(UV)
	@echo "setting up benchmarks/.venv ..."
	@$(UV) venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" benchmarks/.venv
	@$(UV) pip sync --quiet --python benchmarks/.venv --require-hashes benchmarks/requirements.lock
	@$(UV) pip install --quiet --python benchmarks/.venv --no-deps --no-build-isolation --editable .
	@touch $@
