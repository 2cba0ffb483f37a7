# `make help` lists what there is. Everything runs in .venv, which any target makes as needed.

PYTHON ?= python3
BIN := .venv/bin
TOOLS := .venv/tools/bin
ARGS ?=
SCALE ?= 0.3
DIR ?= build/bench-stores
# As many processes as processors: each collects all tests. SPREAD=: one.
SPREAD ?= --numprocesses $(shell nproc 2>/dev/null || echo 2) --dist worksteal
# What a whole run has to pass at least: nothing passes by running nothing.
TESTS_MIN ?= 5000
export PYTHONDONTWRITEBYTECODE :=  # tests start hundreds of processes; each would compile it all anew

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test smoke proof shake test-compiled test-compiled-sample check lint types contracts bench bench-full bench-hard bench-hard-docs bench-compiled bench-peers \
  bench-faces bench-searches bench-jobs-docs bench-cluster \
  clean dist wheels docs sim planted crash power kill-points faults rot model fuzz soak storm ledger twins code-map coverage lock audit sbom

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

demo: .venv/.stamp ## Run the demonstration
	$(BIN)/python examples/demo.py

demo-spark: .venv/.stamp ## A million tasks through Spark and a live service, each accounted for
	$(BIN)/python examples/demo_spark.py $(ARGS)

test: .venv/.stamp ## Run what is quick, and of each proof a sample (ARGS="-k name" narrows it)
ifdef COVER
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --tier=commit $(SPREAD) $(or $(ARGS),--at-least=$(TESTS_MIN))
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='engine/*,coalescer/*,repository/*' --fail-under=95
else
	$(BIN)/pytest --tier=commit $(SPREAD) $(or $(ARGS),--at-least=$(TESTS_MIN))
endif

smoke: .venv/.stamp ## One load, read and stream through Spark, and the dashboard in a browser (if there is one)
	$(BIN)/pytest -m smoke -rs $(or $(ARGS),--at-least=3 tests/pipeline tests/service/dashboard)

proof: .venv/.stamp ## Everything else, in full, in about an hour; ONLY="spark power" runs those steps
	$(BIN)/python tests/proof.py $(ONLY)

check: lint types contracts ## Lint, types and import contracts

shake: .venv/.stamp ## The quick tests in random order on a busy machine, on one core, on a slow disk
	$(BIN)/python tests/shake.py $(ONLY)

test-compiled: .venv/compiled/.stamp ## Run all tests on the compiled build (needs a C compiler)
	.venv/compiled/bin/python -P -m pytest $(SPREAD) $(ARGS)

test-compiled-sample: .venv/.stamp ## Of the compiled build: conformance, and 200 simulated worlds
	@if $(CAN_COMPILE); then \
	  LODEQ_SIM_SEEDS=200 $(MAKE) --no-print-directory test-compiled \
	    ARGS="--at-least=300 tests/conformance tests/sim/test_sim.py -k 'conformance or no_seed_breaks_a_promise'"; \
	else echo "No C compiler, or no Python.h: the compiled build is left out."; fi

lint: .venv/.stamp ## Ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.stamp ## Mypy, strict
	$(BIN)/mypy --strict

contracts: .venv/.stamp ## Import contracts between the packages
	$(BIN)/lint-imports

bench: .venv/.bench ## Benchmarks, in minutes
	$(BIN)/python bench/run.py --quick $(ARGS)

bench-full: .venv/.bench ## All benchmarks at length; writes docs/benchmarks.md
	$(BIN)/python bench/run.py --docs $(ARGS)

# SCALE=0.3 takes some twenty minutes; HARD=compiled measures that build. A store of ten million tasks is
# used where DIR has one (SCALE=1 makes it).
bench-hard: .venv/.peers $(if $(HARD),.venv/$(HARD)/.stamp) ## The hard loads in one table: bursts, backlogs, many processes
	$(BIN)/python -c 'import sys; sys.path.insert(0, "bench"); from peers import programs; \
	  print(programs.fetch(["redis-server", "beanstalkd"]) or "servers to compare with: there")'
	mkdir -p $(DIR)
	$(if $(HARD),.venv/$(HARD)/bin,$(BIN))/python bench/run.py --hard --scale $(SCALE) --dir $(DIR) $(ARGS)

bench-hard-docs: .venv/.stamp ## Write docs/benchmarks-hard.md from what bench-hard has kept
	$(BIN)/python bench/hard.py --docs docs/benchmarks-hard.md build/bench-hard/*.json

bench-compiled: .venv/.bench .venv/compiled/.stamp ## Cycles of the compiled build, on asyncio and on uvloop
	.venv/compiled/bin/python bench/run.py --only cycles --json build/bench-compiled.json $(ARGS)
	.venv/compiled/bin/python bench/run.py --only cycles --only original --loop uvloop \
	  --json build/bench-uvloop.json $(ARGS)
	$(BIN)/python bench/report.py docs build/bench*.json

bench-peers: .venv/.peers ## The same cycles through other queues, servers on loopback included
	$(BIN)/python bench/run.py --only peers --json build/bench-peers.json --docs $(ARGS)

bench-faces: .venv/.stamp ## Faces beside the commit before: BEFORE=PATH (git worktree add PATH f129c556)
	$(BIN)/python bench/faces_before.py $(if $(BEFORE),--before $(BEFORE)) $(ARGS)

bench-searches: .venv/.bench ## Finished jobs, all kept: disk, memory, six filters (SCALE=1: ten million)
	$(BIN)/python bench/run.py --only searches --repeats 1 --scale $(SCALE) \
	  --json build/bench-jobs/searches.json $(ARGS)

bench-cluster: .venv/.bench ## Several nodes over etcd: cycles, failover, moves; writes docs/benchmarks-cluster.md
	$(BIN)/python bench/run.py --only replicated --scale $(SCALE) --json build/bench-cluster/replicated.json $(ARGS)
	$(BIN)/python bench/run.py --only log-groups --scale $(SCALE) --json build/bench-cluster/log-groups.json $(ARGS)
	$(BIN)/python bench/run.py --only moves --scale $(SCALE) --json build/bench-cluster/moves.json $(ARGS)
	$(BIN)/python bench/run.py --only processes --scale $(SCALE) --json build/bench-cluster/processes.json $(ARGS)
	$(BIN)/python bench/cluster.py docs/benchmarks-cluster.md build/bench-cluster/*.json

bench-jobs-docs: .venv/.stamp ## Write docs/benchmarks-jobs.md from what both have kept
	$(BIN)/python bench/jobs.py docs/benchmarks-jobs.md build/bench-jobs/*.json

sim: .venv/.stamp ## Simulate: SEED=17 repeats one world, SEEDS=2000 runs that many more
	$(BIN)/python tests/sim/run.py $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000)) $(ARGS)

planted: .venv/.stamp ## Plant known bugs: the simulation must find each; SAMPLE="11 42": what `make test` finds from there
	$(if $(SAMPLE),PYTHONPATH=tests $(BIN)/python tests/planted_sample.py $(SAMPLE),$(BIN)/python tests/sim/planted.py)

crash: .venv/.stamp ## Kill and reopen 10,000 times in each durability mode
	$(BIN)/python tests/crash/run.py $(ARGS)

power: .venv/.stamp ## Cut the power at 100,000 points of recorded lives
	$(BIN)/python tests/power/run.py --images 100000 $(ARGS)

kill-points: .venv/.stamp ## Kill at every write, sync and rename of a script
	$(BIN)/python tests/power/run.py --kills $(ARGS)

faults: .venv/.stamp ## Fail every write, sync, open and rename of a script, one at a time
	$(BIN)/python tests/fault/run.py $(ARGS)

rot: .venv/.stamp ## Damage closed stores in 10,000 ways: what is intact must come back
	$(BIN)/python tests/rot/run.py $(ARGS)

model: .venv/.stamp ## Compare with a reference queue, 5,000 runs of 100 steps
	$(BIN)/python tests/model/run.py $(ARGS)

fuzz: .venv/.stamp ## Ten million damaged inputs for every decoder
	$(BIN)/python tests/fuzz/run.py $(ARGS)

soak: .venv/.stamp ## Mixed load for HOURS=2
	$(BIN)/python tests/soak/run.py --hours $(or $(HOURS),2) $(ARGS)

storm: .venv/.stamp ## Kills, freezes and moves over three nodes and an etcd, judged: MINUTES=10
	$(BIN)/python tests/cluster/storm.py --minutes $(or $(MINUTES),10) $(ARGS)

ledger: .venv/.stamp ## Add up what the long gates (crash to soak) have run; writes docs/proof-ledger.md
	$(BIN)/python tests/ledger.py

twins: .venv/.stamp ## Write the blocking client's forwarding modules from their async sources
	$(BIN)/python tests/generate_twins.py $(ARGS)

code-map: .venv/.stamp ## Write docs/code-map.md from the docstrings of all modules
	$(BIN)/python tests/code_map.py

coverage: ## Branch coverage of engine, coalescer and repository by `make test`
	$(MAKE) --no-print-directory test COVER=1

lock: .venv/tools/.stamp ## Pin all dependencies anew, by hash
	$(LOCK) --extra dev --extra spark --extra zstd -o requirements/ci.txt pyproject.toml requirements/build.in
	$(LOCK) -c requirements/ci.txt -o requirements/runtime.txt pyproject.toml
	$(LOCK) -o requirements/tools.txt requirements/tools.in

audit: .venv/tools/.stamp ## Look for known vulnerabilities in what is pinned (asks PyPI)
	for file in requirements/*.txt; do \
	  $(TOOLS)/pip-audit --strict --require-hashes --disable-pip -r $$file || exit 1; done

sbom: .venv/tools/.stamp ## Write what a release brings along, as CycloneDX
	mkdir -p dist
	$(TOOLS)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --of JSON -o dist/sbom.json requirements/runtime.txt

dist: .venv/.stamp ## Build the sdist and, from it, the wheel of sources alone
	rm -rf build dist
	$(BIN)/python -m build

wheels: .venv/.stamp ## Build and try the sdist, and from it compiled wheels, one for each Python found
	$(BIN)/python tests/wheels.py $(ARGS)

docs: .venv/.stamp ## Build the site into build/site; any warning fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)

clean: ## Remove .venv, builds and caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -rf .import_linter_cache .hypothesis .benchmarks .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

SOURCES := $(wildcard *.py) $(shell find coalescer engine replication repository testing -name '*.py')
CAN_COMPILE = command -v $(or $(CC),cc) >/dev/null && $(BIN)/python -c 'import os, sysconfig; \
  open(os.path.join(sysconfig.get_path("include"), "Python.h")).close()' 2>/dev/null
COMPILED_PIP := .venv/compiled/bin/python -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# With LOCKED=1 exactly what requirements/ci.txt pins, by hash. Without it too, what builds the
# package is installed: the compiled build uses it, and Python brings an older one.
#
# Tools that cannot follow the editable install's import hook read .venv/src, where `lodeq` is a
# link to this folder.
.venv/.stamp: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is missing. On Debian: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "lodeq needs Python 3.11 or newer. Choose one: make PYTHON=python3.11")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  $(PYTHON) -c 'import sys; print("This Python cannot make virtual environments. On Debian: \
	apt-get install python%d.%d-venv" % sys.version_info[:2])' >&2; exit 1; }
	$(PYTHON) -m venv .venv
ifdef LOCKED
	$(PIP) --require-hashes -r requirements/ci.txt
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(PIP) -r requirements/build.in
	$(PIP) --editable '.[dev,spark,zstd]'
endif
	mkdir -p .venv/src
	ln -sfn ../.. .venv/src/lodeq
	touch $@

.venv/.bench: .venv/.stamp
	$(PIP) --editable '.[bench]'
	touch $@

# A second environment with a wheel in it: nothing compiled lies in the checkout, where it would hide
# the sources. What else there is it takes from the first.
.venv/compiled/.stamp: .venv/.stamp setup.py pyproject.toml $(SOURCES)
	@command -v $(or $(CC),cc) >/dev/null || { \
	  echo "No C compiler. On Debian: apt-get install gcc python3-dev" >&2; exit 1; }
	rm -rf .venv/compiled build/compiled build/lib* build/temp*
	$(PYTHON) -m venv --without-pip .venv/compiled
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$(.venv/compiled/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
	LODEQ_COMPILED=1 $(COMPILED_PIP) --no-build-isolation --no-deps --force-reinstall .
	.venv/compiled/bin/python -c 'import lodeq; assert lodeq.COMPILED, lodeq.__file__'
	touch $@

.venv/.peers: .venv/.bench
	$(PIP) --editable '.[peers]'
	touch $@

LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" $(TOOLS)/uv pip compile --quiet --upgrade \
  --universal --python-version 3.11 --generate-hashes --no-strip-extras

.venv/tools/.stamp: .venv/.stamp requirements/tools.txt
	$(PYTHON) -m venv .venv/tools
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  -r requirements/tools.txt
	touch $@
