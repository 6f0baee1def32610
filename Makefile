# `make` lists the targets. Everything runs in .venv, which is built on first use.

.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/.classes
CANDIDATES := python3.13 python3.12 python3.11 python3
CODE := alignment streaming_source tests docs noxfile.py $(wildcard benchmarks) $(wildcard notebooks)
# One more than two cores: the tests of the broker wait most of their time.
JOBS ?= 3
PROFILE ?= quick
PYTEST = $(PYTHON) -m pytest tests -n $(JOBS) --dist worksteal --durations=20 $(PYTEST_OPTIONS)

# Spark's Python workers must be this environment's python, wherever they are started.
export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1
# Tests and Spark start hundreds of Python processes, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup java demo test quick soak coverage platforms versions older lowest audit stranger check lint types docs format kafka bench bench-quick notebooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv and install the project in it, editable, with its dev tools
	@echo "==> $(VENV) is ready"

$(STAMP): pyproject.toml
	@set -e; \
	if ! $(PYTHON) -c '' 2>/dev/null; then \
	    found=; \
	    for candidate in $(CANDIDATES); do \
	        if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            found=$$candidate; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "error: no Python 3.11 or later among: $(CANDIDATES). Install one and run make again." >&2; \
	        exit 1; \
	    fi; \
	    echo "==> creating $(VENV) with $$($$found --version)"; \
	    $$found -m venv --clear $(VENV); \
	fi
	@echo "==> installing the project and its dev tools (PySpark is large: minutes, the first time)"
	@# uv takes half of pip's time. It does not read pip's configuration, so pip installs where that names an index.
	@# Of 14,000 modules that pip would compile, a minute of work, most are never imported.
	@pip="$(PYTHON) -m pip --quiet --disable-pip-version-check"; \
	{ ! $$pip config list | grep -q index-url && $$pip install uv && UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" \
	    $(VENV)/bin/uv --quiet pip install --python $(PYTHON) -e '.[dev]'; } || \
	    $$pip install --no-compile -e '.[dev]'
	@touch $@

# PySpark takes java from JAVA_HOME when that is set, else from PATH; so does this check.
java:
	@java_bin="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java_bin" -version 2>&1 | sed -n 's/.* version "\([0-9._]*\).*/\1/p' | head -n 1); \
	major=$${version%%.*}; \
	if [ "$${major:-0}" -lt 17 ]; then \
	    found="was not found"; [ -z "$$version" ] || found="is version $$version"; \
	    echo "error: Spark needs Java 17 or later; '$$java_bin' $$found." >&2; \
	    echo "       Install a JDK (17 or 21) or point JAVA_HOME at one." >&2; \
	    exit 1; \
	fi

$(CLASSES): $(STAMP) tests/class_archives.py tests/forked_planners.py tests/spark_home.py | java
	@echo "==> archiving the classes of Spark and Kafka, and making a home of Spark: their processes start faster"
	@# Meanwhile Python compiles what the tests import: each of their workers would do so on its own.
	@$(PYTHON) -m pytest tests --collect-only --quiet -n 0 >/dev/null 2>&1 & \
	$(PYTHON) -W ignore -m tests.class_archives kafka & kafka=$$!; \
	$(PYTHON) -W ignore -m tests.class_archives spark && wait $$kafka && wait
	@touch $@

demo: $(STAMP) java ## run the demo
	@echo "==> demo"
	@$(VENV)/bin/streaming-source demo

# In which order, and by which worker, is in tests/shares.py.
test: $(CLASSES) java ## run the tests, the quick ones first (JOBS=3 at a time, PROFILE=quick, ci or soak: how many random examples)
	@echo "==> tests: $(JOBS) at a time, the quick ones, then Spark and a Kafka broker; random examples: $(PROFILE); make soak runs the rest"
	@$(PYTEST) -m "not soak" --hypothesis-profile=$(PROFILE)

quick: $(STAMP) ## run what a change touches first: tests without Spark, a broker or a browser, a tenth of a second each
	@echo "==> quick tests: $(JOBS) at a time"
	@$(PYTEST) -m "not (spark or kafka or browser or wide or slow or soak)" --hypothesis-profile=quick

soak: $(CLASSES) java ## run what make test leaves out, and the random tests with many examples
	@echo "==> soak: $(JOBS) at a time; this takes long"
	@$(PYTEST) -m "soak or hypothesis" --hypothesis-profile=soak

# All that needs neither Spark nor a broker; what needs them takes too long to measure. Pages and the project are no code.
UNMEASURED = docs faults notebooks platforms project
coverage: $(STAMP) java ## measure, by package, the branches that tests without Spark and a broker take; fails below the table in CONTRIBUTING.md
	@echo "==> coverage of branches: $(JOBS) at a time"
	@$(PYTHON) -m coverage erase
	@$(PYTHON) -m coverage run -m pytest tests $(UNMEASURED:%=--ignore=tests/%) -n $(JOBS) --dist worksteal -q \
	    -m "not spark and not kafka and not soak" --hypothesis-profile=$(PROFILE)
	@$(PYTHON) -m coverage combine --quiet
	@$(PYTHON) -m tests.project.covered

platforms: $(CLASSES) java ## run the library where people run Spark: Spark Connect, a client without a JVM, isolated Python, a cluster of processes, a pipeline
	@echo "==> platforms"
	@$(PYTHON) -m pytest tests/platforms tests/spark/test_connect.py tests/spark/test_cluster.py -n 1 --durations=10

versions: $(STAMP) java ## run quick start and core tests on each pair of Python and PySpark (ONLY=3.13: of that Python)
	@echo "==> versions: environments in .venvs, 0.8 GB each; the tests take some minutes on each"
	@$(VENV)/bin/nox $(if $(ONLY),--python $(ONLY))

older: $(STAMP) java ## audit checkpoints that PySpark 3.5, 4.0 and 4.1 write over files, Kafka and Delta (part of versions)
	@echo "==> older: environments in .venvs; the tests take some minutes on each"
	@$(VENV)/bin/nox --session older

lowest: $(STAMP) java ## run the core tests with the lowest versions that pyproject.toml allows
	@echo "==> lowest: one environment in .venvs; the tests take some minutes"
	@$(VENV)/bin/nox --session lowest

stranger: $(STAMP) java ## walk through the quick start and the first query from the clone in a fresh environment, as pasted, with times
	@echo "==> stranger"
	@$(PYTHON) -W ignore -m tests.docs.stranger

audit: $(STAMP) ## look for known vulnerabilities in what all extras install, and for their licences
	@echo "==> audit of dependencies"
	@$(VENV)/bin/nox --session audit

check: ## lint, types, documentation, tests: what CI runs
	@$(MAKE) --no-print-directory -j2 lint types docs
	@$(MAKE) --no-print-directory test

lint: $(STAMP) ## ruff check
	@echo "==> ruff"
	@$(PYTHON) -m ruff check $(CODE)

types: $(STAMP) ## mypy --strict over both packages
	@echo "==> mypy"
	@$(PYTHON) -m mypy

docs: $(STAMP) ## build the site of the documentation into build/site; broken links and anchors are errors
	@echo "==> docs"
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs --quiet build --strict --site-dir build/site

format: $(STAMP) ## let ruff fix and format the code
	@echo "==> ruff: fix and format"
	@$(PYTHON) -m ruff check --fix $(CODE)
	@$(PYTHON) -m ruff format $(CODE)

kafka: $(STAMP) java ## start a Kafka broker for trying by hand (needs mvn, the first time)
	@$(PYTHON) -m tests.kafka.serve

bench: $(STAMP) java ## run the benchmarks
	@echo "==> benchmarks"
	@$(PYTHON) -m benchmarks

bench-quick: $(STAMP) java ## run the benchmarks on small inputs
	@echo "==> benchmarks, quick"
	@$(PYTHON) -m benchmarks --quick

# To store what they print and draw: .venv/bin/python notebooks/store.py NAME, for those on Kafka beside `make kafka`.
notebooks: $(CLASSES) java ## execute all notebooks, those on Kafka too, and compare what they print and draw with what is stored
	@echo "==> notebooks"
	@$(PYTHON) -m pytest tests/notebooks tests/kafka/test_notebook.py -n 2 --dist worksteal --durations=12

clean: ## remove caches, outputs and .venvs (keeps .venv)
	@echo "==> removing caches and outputs"
	@rm -rf build dist demo-output spark-warehouse metastore_db derby.log htmlcov .coverage* \
	    .hypothesis .mypy_cache .pytest_cache .ruff_cache .venvs
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o \
	    \( -name __pycache__ -o -name .ipynb_checkpoints -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +
