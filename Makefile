# Everything a person or a CI machine does here. `make run` works from a clean clone on a bare machine.
OUT ?= out/week
IN ?= scheduler/core
ARGS ?=
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Whoever starts Python a thousand times, as tests do, wants it compiled once.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help run test test-services test-train test-cards test-nightly test-fresh test-fast lint bench bench-planner kill9 fuzz fuzz-train mutants simulate simulate-long image reference rooms pictures changelog lock clean

BIN := .venv/bin
PACKAGES := scheduler platforms jobs config
# Files keep the order that tests/conftest.py gives them. Each worker first reads all tests, for a third of a minute.
PARALLEL := --no-loadscope-reorder --numprocesses
PYTHON_SOURCES := $(PACKAGES) tests benchmarks

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: .venv/ready ## Rehearse a whole week on this machine (OUT=folder, ARGS=options of schedctl rehearse)
	$(BIN)/schedctl rehearse --out "$(OUT)" $(ARGS)

# Types are checked on one core while the tests begin on the other; three workers keep both busy afterwards.
test: .venv/ready-dev ## Run every check, and every test without root and services (ten minutes; ARGS=options of pytest)
	.ci/kagglesdk.sh
	lint=$$(mktemp); $(MAKE) --no-print-directory lint >"$$lint" 2>&1 & \
		$(BIN)/python -m pytest $(PARALLEL) 3 -m "not services" $(ARGS) || failed=yes; \
		wait $$! || failed=yes; cat "$$lint"; rm "$$lint"; [ -z "$${failed:-}" ]

# Four workers on two cores: sessions, clusters and machines that boot wait more than they compute.
test-services: .venv/ready-dev ## Run the tests with real services, whole daemons and rehearsals (root installs the services; CI=true: none may be missing)
	.ci/services.sh
	$(BIN)/python -m pytest $(PARALLEL) 4 -m services $(ARGS)

test-train: .venv-train/ready ## Install torch and run the tests of fine-tuning on tiny models (ten minutes; ARGS="-m nightly": what is left out)
	OMP_NUM_THREADS=1 .venv-train/bin/python -m pytest --confcutdir tests/training tests/training tests/unit/test_reader.py --numprocesses 2 -m "not nightly" $(ARGS)

test-cards: ## Run the tests of `make test-train` with the torch of this image, on its accelerators (ARGS=options of pytest)
	OMP_NUM_THREADS=1 python3 -m pytest --confcutdir tests/training tests/training --numprocesses auto -m "not nightly" $(ARGS)

test-nightly: .venv/ready-dev ## Run the tests of `make test` and `make test-services` and all marked nightly, and note the commit in .ci/nightly.txt (an hour)
	.ci/services.sh nightly
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/nightly.txt
	.ci/kagglesdk.sh
	.ci/wheels.sh
	.ci/apart.sh
	$(BIN)/python benchmarks/packages.py advisories --stamp .venv-night/advisories
	UFF_SKYPILOT="$(CURDIR)/.venv-night/skypilot" PATH="$$PATH:$(CURDIR)/.venv-night/evaluators/bin" $(BIN)/python -m pytest $(PARALLEL) 4 --nightly $(ARGS)
	[ ! -e .venv-night/sagemaker ] || .venv-night/sagemaker/bin/python -m pytest tests/integration/sagemaker/test_sagemaker_sdk.py
	git log -1 --format="%h of %cs passed$$(for name in skypilot evaluators sagemaker advisories; do [ -e .venv-night/$$name ] || printf ', without %s' $$name; done)" >.ci/nightly.txt

test-fresh: ## Run `make run` and `make test` on a bare Debian (root, mmdebstrap; weekly, half an hour; ARGS='"make run"')
	.ci/fresh.sh $(ARGS)

test-fast: .venv/ready-dev ## Run the unit and property tests alone, in about a minute
	$(BIN)/python -m pytest tests/unit tests/property $(PARALLEL) 2 -m "not services" $(ARGS)

lint: .venv/ready-dev ## Check format, style, types and the import rule
	$(BIN)/ruff format --check $(PYTHON_SOURCES) examples
	$(BIN)/ruff check $(PYTHON_SOURCES) examples
	$(BIN)/mypy $(PYTHON_SOURCES)
	$(BIN)/lint-imports

bench: .venv/ready-dev ## Run the short benchmarks and print their figures
	for name in install_size bench_cli_start bench_daemon_idle bench_web bench_advice bench_port bench_halving; do echo "== $$name"; $(BIN)/python "benchmarks/$$name.py"; done

bench-planner: .venv/ready-dev ## Measure the planner against its bounds and other orders (ARGS=--quick, or a trace file)
	$(BIN)/python benchmarks/bench_planner.py $(ARGS)

kill9: .venv/ready-dev ## Kill daemons of fifty rehearsals at random moments and audit what is left (ten minutes)
	$(BIN)/python benchmarks/kill9.py 50 $(ARGS)

fuzz: .venv/ready-dev ## Give the daemon 100,000 odd documents and answers; no cycle may crash (half an hour; ARGS=COUNT)
	$(BIN)/python benchmarks/bench_border.py $(ARGS)

fuzz-train: .venv-train/ready ## Give fine-tuning 100,000 odd records a stage; each is accounted for (minutes; FUZZ_RECORDS=COUNT)
	OMP_NUM_THREADS=1 FUZZ_RECORDS=$(or $(FUZZ_RECORDS),100000) .venv-train/bin/python -m pytest --confcutdir tests/training \
		tests/training/test_records.py tests/training/test_preferences.py tests/training/test_rounds.py -k accounted_for --numprocesses 2 $(ARGS)

mutants: .venv/ready-dev ## Put small bugs into IN=FOLDER, list those that no test notices (ARGS="--sample 100")
	$(BIN)/python benchmarks/mutants.py $(IN) $(ARGS)

simulate: .venv/ready-dev ## Simulate 2,400 weeks, every crash point, all mutants; kill real daemons (half an hour)
	$(BIN)/python benchmarks/simulate.py --total-weeks 2400 --every-point 1 --pairs 600 --kill9 50 $(ARGS)

simulate-long: .venv/ready-dev ## The same over 50,000 weeks (hours)
	$(BIN)/python benchmarks/simulate.py --total-weeks 50000 --every-point 1 --pairs 3000 --kill9 50 $(ARGS)

image: ## Build the container's image without a registry and try it (root, buildah, mmdebstrap; two minutes)
	.ci/image.sh

reference: .venv/ready-dev ## Update what documents hold of commands, exit codes and settings
	$(BIN)/python benchmarks/reference.py

rooms: .venv/ready-dev ## Print every folder with code and what it is for
	$(BIN)/python benchmarks/reference.py --rooms

pictures: .venv/ready-dev ## Take the pictures again that tests compare and documents show; look at them before you commit
	$(BIN)/python benchmarks/pictures.py --approve tests/integration/web/approved
	$(BIN)/python benchmarks/pictures.py

changelog: .venv/ready-dev ## Move the sentences of changelog.d into CHANGELOG.md (VERSION=0.3.0)
	$(BIN)/towncrier build --yes --version "$(VERSION)"

lock: ## Resolve the dependencies and write the hashed lock files
	.ci/lock.sh

clean: ## Remove the virtual environment and everything the tools left
	rm -rf .venv .venv-night .venv-train dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(PYTHON_SOURCES) -type d -name __pycache__ -prune -exec rm -rf {} +

# One environment: dev.txt holds every line of run.txt, so the second stamp only adds to the first.
.venv/created:
	python=$$(.ci/python.sh) && "$$python" -m venv --clear .venv
	touch $@

.venv/ready: .venv/created requirements/run.txt pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

.venv/ready-dev: .venv/ready requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	touch $@

.venv-train/ready: requirements/train.txt requirements/torch-cpu.txt requirements/torch-cuda.txt requirements/deepspeed.txt
	.ci/train.sh
	touch $@
