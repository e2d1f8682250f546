# Every target sets itself up: a clean clone, Python >= 3.11 and Java >= 17 are all it takes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
# `make docs` builds with what is in $(VENV), or without it in one of its own: a site needs little.
DOCS_VENV := $(if $(wildcard $(READY)),$(VENV),.cache/docs)

TESTS_PURE := tests/tidy tests/unit tests/property tests/golden tests/sim
# They start processes, and mostly wait for them.
TESTS_PROCESSES := $(addprefix tests/unit/broker_sim/server/test_,cluster_process.py process.py)
# What `make wheel` runs, on the wheel.
TESTS_WHEEL := tests/integration/test_readme_first_steps.py
TESTS_WORLD := tests/integration tests/conformance tests/chaos $(TESTS_PROCESSES)
# Tests that share something stay together, the dearest first (tests/support/harness/groups.py).
WORKERS := -n 8 --dist loadfile --no-loadscope-reorder
WHEEL_SOURCES := txnlog_spark txnlog_kafka broker_sim pyspark_txnlog txnlog_python txnlog_testing setup.cfg pyproject.toml PACKAGE.md CHANGELOG.md LICENSE
PYTEST_ARGS ?=
# Of `make check`.
BASE ?= main
BENCH_ARGS ?=
# Of `make matrix`: words that the names of its runs must have, such as "Python 3.12".
MATRIX ?=
# Of `make demo`: 1, or 3 for a cluster whose leader is killed.
BROKERS ?= 1
SIMULATE ?= --seeds 0:1000
# Of `make sinks`: words of which each sink that is run has one in its name; without: all.
SINKS ?=
# Of `make picture`.
PICTURE ?= transaction.svg
PICTURED := coordinator_of_three_dies

# Or each of Spark's Python workers would compile all of our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup java demo test check record simulate lint docs picture wheel sinks matrix bench bench-growth chaos clean

help:  ## what can be done here
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 19

# A virtual environment in the folder $(1).
define make_venv
	@python=""; \
	for name in $${PYTHON:-} python3 python3.13 python3.12 python3.11; do \
		if command -v $$name >/dev/null && \
			$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "Python 3.11 or newer is needed: install it, or name it with PYTHON=..." >&2; exit 1; \
	fi; \
	echo "== set-up: $$($$python --version) in $(1)"; \
	if ! $$python -m venv $(1); then \
		echo "$$python -m venv failed: install your system's python3-venv package" >&2; exit 1; \
	fi
endef

$(READY): setup.cfg pyproject.toml
	$(call make_venv,$(VENV))
	@echo "== set-up: installing packages (a minute or three the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--config-settings editable_mode=compat -e '.[spark,demo,test,lint,docs]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'pyjks>=20'
	@touch $(READY)

.cache/docs/.installed: setup.cfg
	$(call make_venv,.cache/docs)
	@echo "== set-up: installing what builds the site"
	@.cache/docs/bin/python -c 'import configparser as c; s = c.ConfigParser(); s.read("setup.cfg"); \
		print(s["options.extras_require"]["docs"])' | \
		.cache/docs/bin/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

setup: $(READY)  ## make .venv with everything in it

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' || true); \
	if [ -z "$$version" ]; then \
		echo "Java 17 or newer is needed: install it, or set JAVA_HOME ($$java does not run)" >&2; \
		exit 1; \
	elif [ "$$version" -lt 17 ]; then \
		echo "Java 17 or newer is needed: $$java is version $$version; set JAVA_HOME" >&2; exit 1; \
	fi

demo: java $(READY)  ## the whole story on real data, with crashes, ending in the audit
	$(BIN)/python -u -m jobs.demo --brokers $(BROKERS)

test: java $(READY)  ## all tests without the mark chaos
	@echo "== tests that touch nothing outside their process"
	$(BIN)/python -m pytest -n 3 -m "not chaos" $(PYTEST_ARGS) $(TESTS_PURE) \
		$(addprefix --ignore=,$(TESTS_PROCESSES))
	@echo "== tests with real brokers and Spark"
	$(BIN)/python -m pytest $(WORKERS) -m "not chaos" $(PYTEST_ARGS) $(TESTS_WORLD) \
		$(addprefix --ignore=,$(TESTS_WHEEL))

check: $(READY)  ## lint, and the pure tests of what has changed since the branch main
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -n 3 -m "not chaos" $(PYTEST_ARGS) $$($(BIN)/python tests/changed.py $(BASE))

record: java $(READY)  ## ask Apache Kafka again what the conformance tests have recorded of it
	$(BIN)/python -m pytest $(WORKERS) --record -m recordable $(PYTEST_ARGS) tests/conformance

simulate: $(READY)  ## random seeds of the simulator; SIMULATE="--scenario cluster --seeds 0:200"
	$(BIN)/python -m simulation $(SIMULATE)

lint: $(READY)  ## ruff, mypy, the import contracts and the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

docs: $(DOCS_VENV)/.installed  ## the documentation as a site, in build/docs; every link and anchor is followed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "== docs: open build/docs/index.html"

picture: $(READY)  ## one transaction across three simulated brokers, as PICTURE=transaction.svg
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m simulation --scenario $(PICTURED) --seeds 1 --save-logs "$$folder"; \
	$(BIN)/python -m broker_sim timeline "$$folder/seed-1-$(PICTURED)" \
		--transactional-id txnlog-job --transaction 2 --output $(PICTURE)

wheel: java $(READY)  ## the wheel in an environment with nothing else: the first steps
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; mkdir "$$folder/source"; \
	cp -r $(WHEEL_SOURCES) "$$folder/source"; \
	echo "== wheel: building it, and installing it with what it needs (some minutes)"; \
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w "$$folder" "$$folder/source"; \
	$(BIN)/python -m venv "$$folder/env"; \
	"$$folder/env/bin/python" -m pip install -q --disable-pip-version-check \
		"$$(echo "$$folder"/*.whl)[spark]"; \
	TXNLOG_INSTALLED_PYTHON="$$folder/env/bin/python" $(BIN)/python -m pytest -q \
		$(TESTS_WHEEL)

matrix: java $(READY)  ## some tests on each Python and Java here, two PySparks, several Kafkas
	$(BIN)/python -u tests/matrix.py $(MATRIX)

sinks: java $(READY)  ## each sink, ours and others, under each disturbance: writes docs/sinks.md
	cd tests && PYTHONPATH=..:. ../$(BIN)/python -m sinks.page $(SINKS)

bench: java $(READY)  ## side by side with Spark's own Kafka connector: JSON and tables of ratios
	$(BIN)/python -u tests/benchmarks/bench.py $(BENCH_ARGS)

bench-growth: java $(READY)  ## how cost grows: docs/performance/growth.png, in an hour or less
	$(BIN)/python -u tests/benchmarks/bench_growth.py $(BENCH_ARGS)

chaos: java $(READY)  ## the long fault runs
	$(BIN)/python -m pytest -m chaos $(PYTEST_ARGS) $(TESTS_PURE) $(TESTS_WORLD)

clean:  ## remove what the targets above made
	rm -rf $(VENV) .cache build demo-data spark-warehouse *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
