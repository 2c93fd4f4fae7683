# `make` alone lists the targets. Needs sh, Python 3.11 or newer, and apt-get or a Java 17.

VENV ?= .venv
SF ?= 0.1
# Two Spark sessions with a few GiB each are what a small machine can carry; a third gains nothing on two cores.
WORKERS ?= 2
# What `make test` runs, beside what it leaves out by tests/brief.py and tests/unchanged.py.
BRIEF = not slow and not extra and not program and not spark40 and not chaos and not lake
PYTEST_ARGS ?=
BENCH_ARGS ?=
IMAGE_ARGS ?=
MIKE_ARGS ?=

PYTHON_IN_VENV = $(VENV)/bin/python
SETUP = VENV=$(VENV) scripts/setup_env.sh
# Beside a Java, the jar of the package's own classes: without it each JVM compiles them anew.
JAVA = JAVA_HOME=$$(scripts/java_home.sh) && export JAVA_HOME && \
	{ $(PYTHON_IN_VENV) -m gpujoin.spark.jvm.archive >/dev/null 2>&1 || true; }
# Files go to the workers in the order of tests/schedule.py.
PYTEST = -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
# Sweeps are single files of many tests: these are dealt out one by one.
SWEEP = -m pytest -n $(WORKERS) --dist load -rs $(PYTEST_ARGS)
JOINS ?= 4000
STREAMS ?= 4000
QUERIES ?= 320
EVERYDAY ?= 320
SPARK_STREAMS ?= 20
FILES ?= 130
VERSIONS ?= 4.0 4.1 4.2
# The PySpark on which both Delta and Iceberg work: tests/lake/jars.py.
LAKE = 4.1.1
# What Spark makes of values, functions and settings; how its plans are read and run is tested on the newest and the oldest.
SQL_TESTS = tests/expressions tests/functions $(addprefix tests/spark/query/test_,$(addsuffix .py,\
	aggregates bulk_aggregates computed functions intervals list_functions nested nested_groups not_in operators \
	planning values windows wording))
TYPED = gpujoin hatch_build.py scripts startup tests $(wildcard benchmarks)
SHELL_SCRIPTS = .ci/run $(wildcard scripts/*.sh docker/*.sh docker/*/*.sh)

# Each worker of Spark and each program of a test would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-tools test-all test-versions test-lake tutorial chaos sweep answers lint format bench mutation gpu-check docs site site-version image-test clean

help: ## List these targets
	@echo "Usage: make TARGET [SF=0.1] [VENV=.venv] [WORKERS=2] [PYTEST_ARGS=...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run queries by Spark and with gpujoin, and compare rows and seconds, at scale SF (default 0.1)
	@$(SETUP) test
	@$(JAVA) && $(PYTHON_IN_VENV) -m gpujoin demo --sf $(SF)

test: ## Run the tests on the same data each time, without long sweeps and further cases (some 9 minutes on two cores)
	@$(SETUP) test
	@scripts/find_gxx.sh
	@$(JAVA) && $(PYTHON_IN_VENV) $(PYTEST) -m "$(BRIEF)"

test-tools: ## Run the tests of what tests, documentation and measurements are made with: emulator, scripts, benchmarks
	@$(SETUP) test
	@scripts/find_gxx.sh
	@$(JAVA) && $(PYTHON_IN_VENV) $(PYTEST) -m "tools and not slow and not chaos"

# Spark generates code for queries as it does for users; in `make test` it interprets them, which takes less time.
test-all sweep chaos: export GPUJOIN_TEST_CODEGEN ?= 1
# Expressions are compared with Spark itself; in `make test` with its recorded answers.
test-all test-versions: export GPUJOIN_TEST_ANSWERS ?= spark
test-all: export GPUJOIN_TEST_SEED ?= random
test-all: ## Run all tests, long sweeps, injected faults and the oldest libraries included, on random data
	@$(SETUP) test
	@scripts/find_gxx.sh
	@VENV=$(VENV)-oldest CONSTRAINTS=constraints-oldest.txt scripts/setup_env.sh test
	@PYTHON=$(PYTHON_IN_VENV) scripts/resolve_extras.sh
	@$(JAVA) && $(PYTHON_IN_VENV) $(PYTEST) -p tests.mutants.calls -m "not spark40 and not chaos and not lake"
	@$(JAVA) && $(PYTHON_IN_VENV) scripts/mutate_package.py --workers $(WORKERS)
	@$(JAVA) && $(PYTHON_IN_VENV) $(PYTEST) tests/chaos
	@$(JAVA) && $(VENV)-oldest/bin/python $(PYTEST) -m "not slow and not extra and not gpu and not chaos or spark and not slow and not chaos"
	@$(MAKE) --no-print-directory test-lake

test-versions: ## Run the tests of what SQL means on the newest release of each earlier version of PySpark
	@for version in $(VERSIONS); do \
		VENV=$(VENV) scripts/setup_spark.sh $$version test && $(JAVA) && \
		$(VENV)-$$version/bin/python $(PYTEST) -m "spark and not slow and not extra and not gpu and not chaos" $(SQL_TESTS) || exit 1; \
	done

test-lake: ## Run the tests of Delta and Iceberg tables, for which Spark gets jars from Maven Central (its PySpark: 4.1.1)
	@VENV=$(VENV) scripts/setup_spark.sh $(LAKE) test
	@$(JAVA) && { $(VENV)-$(LAKE)/bin/python -m tests.lake.jars || true; } && \
		$(VENV)-$(LAKE)/bin/python $(PYTEST) -m "lake and not slow" tests/lake

tutorial: ## Run the notebook of the tutorial, and check that it gives what its text says (half a minute)
	@$(SETUP) test
	@$(JAVA) && $(PYTHON_IN_VENV) -m pytest $(PYTEST_ARGS) tests/docs/test_tutorial.py

chaos: export GPUJOIN_TEST_SEED ?= random
chaos: ## Inject faults of disks, files, processes, signals and inputs, and count what becomes of them (15 minutes)
	@$(SETUP) test
	@$(JAVA) && $(PYTHON_IN_VENV) $(PYTEST) tests/chaos

sweep: export GPUJOIN_TEST_SEED ?= 20260807
sweep: ## Compare JOINS and STREAMS generated joins, QUERIES and EVERYDAY queries, SPARK_STREAMS streams, FILES tables of files, histories of lake tables and TPC-H with Spark and row loops (two hours)
	@$(SETUP) test
	@$(JAVA) && $(PYTHON_IN_VENV) $(SWEEP) tests/expressions/test_random_trees.py tests/expressions/test_bulk.py
	@$(JAVA) && GPUJOIN_TEST_JOINS=$(JOINS) $(PYTHON_IN_VENV) $(SWEEP) tests/engine/test_generated.py
	@$(JAVA) && GPUJOIN_TEST_STREAMS=$(STREAMS) $(PYTHON_IN_VENV) $(SWEEP) tests/streams/test_generated.py
	@$(JAVA) && GPUJOIN_TEST_QUERIES=$(QUERIES) GPUJOIN_TEST_EVERYDAY=$(EVERYDAY) $(PYTHON_IN_VENV) $(SWEEP) tests/spark/query/test_sweep.py
	@$(JAVA) && GPUJOIN_TEST_SPARK_STREAMS=$(SPARK_STREAMS) $(PYTHON_IN_VENV) $(SWEEP) tests/spark/streams/test_generated_streams.py
	@$(JAVA) && GPUJOIN_TEST_FILES=$(FILES) $(PYTHON_IN_VENV) $(SWEEP) tests/sweep
	@$(JAVA) && $(PYTHON_IN_VENV) $(PYTEST) -rs tests/spark/query/test_generated.py tests/spark/query/test_tpch.py
	@VENV=$(VENV) scripts/setup_spark.sh $(LAKE) test
	@$(JAVA) && { $(VENV)-$(LAKE)/bin/python -m tests.lake.jars || true; } && \
		$(VENV)-$(LAKE)/bin/python $(SWEEP) -m "lake and slow" tests/lake

answers: ## Ask Spark for its answers to the expressions of the tests, and write them to tests/expressions/recorded
	@$(SETUP) test
	@$(JAVA) && $(PYTHON_IN_VENV) scripts/record_answers.py

lint: ## Check style, types, shell scripts, Dockerfiles and generated docs
	@$(SETUP) dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(TYPED)
	$(VENV)/bin/shellcheck $(SHELL_SCRIPTS)
	$(VENV)/bin/hadolint docker/Dockerfile
	$(PYTHON_IN_VENV) scripts/check_kernels.py --check
	@$(JAVA) && for page in scripts/gen_*.py; do $(PYTHON_IN_VENV) $$page --check || exit 1; done

format: ## Let ruff format and mend what it can
	@$(SETUP) dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: ## Write the generated pages of docs/ anew, and build the site of the documentation into site/
	@$(SETUP) test
	@$(JAVA) && for page in scripts/gen_*.py; do $(PYTHON_IN_VENV) $$page || exit 1; done
	@$(MAKE) --no-print-directory site

site: ## Build the site of the documentation into site/; a warning or a dead link fails it
	@VENV=$(VENV)-docs scripts/setup_env.sh docs
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --site-dir site

site-version: ## Add the site as that of VERSION, and as "latest", to the branch gh-pages, which MIKE_ARGS=--push pushes
	@test -n "$(VERSION)" || { echo "make site-version needs VERSION=1.2.3" >&2; exit 2; }
	@VENV=$(VENV)-docs scripts/setup_env.sh docs
	PATH="$(CURDIR)/$(VENV)-docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $(MIKE_ARGS) "$(VERSION)" latest
	PATH="$(CURDIR)/$(VENV)-docs/bin:$$PATH" mike set-default $(MIKE_ARGS) latest

image-test: ## Build docker/Dockerfile and try what is in it (IMAGE_ARGS="PYTHON=3.12 EXTRA="); skipped where no tool is here
	@scripts/image_test.sh $(IMAGE_ARGS) || { status=$$?; [ $$status -eq 77 ] || exit $$status; }

bench: ## Run the benchmarks, which check their answers
	@$(SETUP) bench test
	@$(JAVA) && $(PYTHON_IN_VENV) -m benchmarks $(BENCH_ARGS)

mutation: ## Break the CUDA kernels and see whether their emulated tests notice (some 20 minutes)
	@$(SETUP) test
	@scripts/find_gxx.sh
	$(PYTHON_IN_VENV) scripts/mutate_kernels.py --workers $(WORKERS) --report docs/kernels-mutation.md

gpu-check: ## Run everything that needs a GPU and write benchmarks/results/gpu-check-*.md (half an hour)
	@scripts/gpu_check.sh

clean: ## Delete environments, caches and build results
	rm -rf .venv .venv-* build dist site gpu-check .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
