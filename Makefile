# Every target works on a fresh clone with Python 3.11 and pip.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.demo
STAMP  := $(VENV)/.installed
NATIVE := hfx/native/libhfx_operators.so

# Hundreds of tests start processes. Without bytecode files each would compile torch and transformers anew, for seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install format check test test-failed test-fast test-full azure-checks containers cost test-cuda-host test-arm64 test-versions newest constraints-lowest fuzz mutants demo docs soak bench bench-docs bench-quick bench-encoder bench-generate bench-serve bench-batch proof zoo zoo-shared release clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

install: $(STAMP) $(NATIVE) ## Create .venv with the pinned dependencies and hfx

# ziglang stays in the environment: builds in isolation would fetch its 101 MB each time.
PIP := python -m pip install --quiet --no-compile

EDITABLE := $(PIP) --constraint constraints.txt --no-build-isolation --editable

# pip shows each package here: 114 of them take minutes.
LOUD = $(subst --quiet ,,$(1))

# What `hfx demo` and the first commands of README.md need. All else, such as Spark, moto and pytest, comes with the first other target.
$(DEMO): pyproject.toml setup.py constraints.txt
	@echo "Installing the 114 packages that hfx needs into $(VENV): 2 GB, in two to six minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(call LOUD,$(PIP)) --constraint constraints.txt 'setuptools>=77' ziglang
	@echo "Compiling the native operators meanwhile."
	@$(BIN)/python hfx/native/build.py & $(BIN)/$(call LOUD,$(EDITABLE)) '.[embedded,perf]'; code=$$?; wait; exit $$code
	@touch $@

$(STAMP): $(DEMO)
	$(BIN)/$(EDITABLE) '.[embedded,adapters,perf,batch,deploy,deploy-checks,spark,dev]'
	@touch $@

# build.py makes a header of the constants in these Python files.
SHARED := $(addprefix hfx/python_backends/,admission.py checks.py encoding.py errors.py inputs.py large_requests.py windows.py)
$(NATIVE): $(wildcard hfx/native/*.cpp hfx/native/*.h hfx/native/*/*.cpp hfx/native/*/*.h) hfx/native/build.py $(SHARED) | $(DEMO)
	@echo "Compiling the native operators: ten seconds, or more beside other work."
	$(BIN)/python -m hfx.native.build

format: install ## Format the code and sort the imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

check: install ## Lint, format, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.12 --package hfx.python_backends # the Python of Triton's images
	$(BIN)/lint-imports

# A worker more than cores, as servers often wait: one runs those that share servers, the others begin with the rest
# (tests/conftest.py). More threads of torch than one only take turns.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --durations 30 --durations-min 5
# `make test DURATIONS=--write-durations` records how long each file takes.
DURATIONS ?= --compare-durations

SUITE := tests/triton tests/unit tests/attacks
# EVERYTHING=yes runs the tests that the change can't reach, too.
EVERYTHING ?=

test: install ## Every check, and the tests that the change since the branch point can reach, or all if that can't be told
	$(MAKE) --jobs 2 --output-sync=line check zoo-shared
	@rm -f build/tests-failed
	@files=$$([ -n "$(EVERYTHING)" ] && echo $(SUITE) || $(BIN)/python -m tests.selection $(SUITE)) && [ -z "$$files" ] || \
		$(PYTEST) $(DURATIONS) $$files || { code=$$?; mkdir -p build; [ $$code != 1 ] || touch build/tests-failed; exit $$code; }

test-failed: check ## The tests that failed in the run before, one after the other
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --last-failed --last-failed-no-failures none tests/triton tests/unit tests/attacks

zoo-shared: install
	$(BIN)/python -m tests.zoo build --shared

test-fast: install ## The tests that start no server, export nothing and train nothing (3 minutes)
	$(PYTEST) tests/unit tests/attacks -m 'not slow and not triton and not full'

# An environment of its own: optimum's exporter wants transformers 4.57.
OPTIMUM := .venv-optimum
$(OPTIMUM)/.installed: pyproject.toml constraints-optimum.txt | $(NATIVE)
	$(PYTHON) -m venv $(OPTIMUM)
	$(OPTIMUM)/bin/$(PIP) 'setuptools>=77'
	$(OPTIMUM)/bin/$(PIP) --constraint constraints-optimum.txt --no-build-isolation --editable '.[optimum,dev]'
	@touch $@

# An environment of its own: azure-ai-ml brings forty packages that hfx has no use for.
AZURE := .venv-azure
$(AZURE)/.installed: Makefile
	$(PYTHON) -m venv $(AZURE)
	$(AZURE)/bin/$(PIP) azure-ai-ml==1.35.2
	@touch $@

azure-checks: $(AZURE)/.installed ## azure-ai-ml, which tests load the files of `hfx deploy azureml` with

test-full: check $(VENV)/.docs $(OPTIMUM)/.installed $(GLINER)/.installed azure-checks ## Every test, also those under transformers 4.57
	$(BIN)/python -m tests.zoo build --all
	HFX_TEST_GLINER=$(GLINER) $(PYTEST) tests/triton tests/unit tests/attacks -m 'not soak'
	$(OPTIMUM)/bin/python -m pytest tests/transformers4 tests/attacks/test_private_view.py
	$(BIN)/python -m pytest tests/arm64/test_bits.py
	$(MAKE) containers

# onnxruntime-gpu has the module `onnxruntime` too, so it is not installed beside onnxruntime.
CUDA_HOST := build/cuda-host
$(CUDA_HOST)/.installed: constraints.txt | $(STAMP)
	rm -rf $(CUDA_HOST)
	$(BIN)/$(PIP) --no-deps --target $(CUDA_HOST) onnxruntime-gpu==$$(sed -n 's/^onnxruntime==//p' constraints.txt)
	@touch $@

test-cuda-host: install $(CUDA_HOST)/.installed ## What ONNX Runtime's CUDA provider does with the files, without a GPU (250 MB)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/cuda_host

GLINER := build/gliner
$(GLINER)/.installed: Makefile | $(STAMP)
	rm -rf $(GLINER)
	$(BIN)/$(PIP) --no-deps --target $(GLINER) gliner==0.2.29 gliclass==0.1.21
	@touch $@

test-gliner: install $(GLINER)/.installed ## Models that read the labels of a request, beside gliner and gliclass
	HFX_TEST_GLINER=$(GLINER) $(PYTEST) tests/unit/exporter/test_labelled_models.py

test-arm64: install ## hfx on an emulated ARM64 machine: kernels, bits, a real Triton, an export (root, apt, 4 GB, an hour; else skipped)
	$(BIN)/python -m pytest tests/arm64 -m 'not soak' --timeout 3600

# Environments of their own, with the lowest versions that pyproject.toml allows, and with the newest of the registry.
# Both have the torch that is tested: another version would bring CUDA. nvidia-pytriton pins numpy<2; its files do not.
LOWEST := .venv-lowest
LOWEST_EXTRAS := embedded,adapters,perf,batch,deploy,traces
$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt | $(NATIVE)
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/$(PIP) 'setuptools>=77'
	$(LOWEST)/bin/$(PIP) --constraint constraints-lowest.txt --no-build-isolation $(TOOLS) $(TORCH) --editable '.[$(LOWEST_EXTRAS)]'
	@touch $@

NEWEST := .venv-newest
NEWEST_PYTHON ?= $(PYTHON)
NEWEST_EXTRAS ?= adapters,front,perf,batch,deploy,traces
newest: | $(NATIVE)
	$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/$(PIP) 'setuptools>=77'
	$(NEWEST)/bin/$(PIP) --no-build-isolation $(TOOLS) $(TORCH) --editable '.[$(NEWEST_EXTRAS)]'
	$(NEWEST)/bin/$(PIP) --no-deps nvidia-pytriton==0.7.0

TORCH := $(shell grep ^torch== constraints.txt)
TOOLS := pytest pytest-timeout pytest-xdist hypothesis pandas
# Left out are tests of packages that these environments lack (Spark, boto3, what only tests use), of compiled code alone
# (native), and tests/triton, which would take an hour: tests/versions serves a model, over HTTP and gRPC, in both.
APART := boto3|kubernetes_validate|openai|pyspark|sentence_transformers|tests\.rigs\.checkpoints\.sentence_models
TRIED := $(addprefix tests/unit/,batch cli client core exporter front local perf python_backends repository rows triton)

test-versions: $(LOWEST)/.installed newest ## The commands and the fast tests, with the lowest and with the newest dependencies
	files=$$(grep -rLE '^ *(import|from) ($(APART))' --include 'test_*.py' $(TRIED)); \
	for folder in $(LOWEST) $(NEWEST); do \
		OMP_NUM_THREADS=1 $$folder/bin/python -m pytest -n 2 tests/versions $$files -m 'not slow and not triton and not full' || exit; \
	done

comma := ,
constraints-lowest: install ## constraints-lowest.txt, after a change of bounds in pyproject.toml
	$(BIN)/$(PIP) uv
	echo "torch; python_version < '3'" | $(BIN)/uv pip compile --quiet --resolution lowest-direct --only-binary :all: --override - \
		--python-version 3.11 --no-annotate --custom-compile-command 'make $@' --output-file $@.txt \
		$(addprefix --extra ,$(subst $(comma), ,$(LOWEST_EXTRAS))) pyproject.toml

PACKAGE ?= hfx/front/keys.py
mutants: install ## Change one operator, constant or statement of PACKAGE at a time: a test must fail (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants $(PACKAGE)

containers: install ## Images and containers, on a docker engine (6 minutes; skipped where none can be had)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/containers -m container --durations 5

SECONDS ?= 600
fuzz: install ## Fuzz what reads bytes from outside, SECONDS for each target (clang's libFuzzer; inputs stay in build/fuzz)
	HFX_FUZZ_SECONDS=$(SECONDS) HFX_FUZZ_CORPUS=build/fuzz $(BIN)/python -m pytest -s tests/unit/native/test_fuzzers.py -m full -k fuzzing --timeout 0

soak: install ## Ten minutes of load on a real Triton: memory, files and threads must not grow
	$(BIN)/python -m pytest tests/triton -m soak --timeout 1800

cost: install ## The files that your commits add, and those of others that they change
	@$(BIN)/python -m tests.cost

demo: $(DEMO) $(NATIVE) ## Two small models from checkpoint to a real Triton: classify, stream
	$(BIN)/hfx demo

SCENARIOS ?=
bench: install ## All scenarios, into bench/results (SCENARIOS="billsum faq" for some)
	$(BIN)/python -m bench.scenarios $(SCENARIOS) --output bench/results/scenarios.jsonl

bench-docs: install ## docs/benchmarks.md and its picture, from bench/results
	$(BIN)/python -m bench.docs

bench-quick: install ## Ratios to peers against the committed baseline, in five minutes
	$(BIN)/python -m bench.guard

proof: install ## lm-eval on small trained decoders: the checkpoints, and hfx through `hfx serve`
	$(BIN)/python -m bench.proof

bench-encoder: install ## Encoders through Triton against bare sessions and the peers
	$(BIN)/python -m bench.encoder

bench-generate: install ## Generation against CTranslate2, OpenVINO, optimum and torch
	$(BIN)/python -m bench.generate

bench-serve: install ## Generation through Triton against the engine in process
	$(BIN)/python -m bench.serve

bench-batch: install ## `hfx batch` against its model in process, torch, Spark and a server
	$(BIN)/python -m bench.batch

# Sphinx is for the site alone: `make test` needs none of it.
$(VENV)/.docs: $(STAMP)
	$(BIN)/$(EDITABLE) '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## Make the generated pages of docs/, and the site in build/site
	$(BIN)/python -m docs.generate
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs build/site

zoo: install ## Train all checkpoints of the tests
	$(BIN)/python -m tests.zoo build --all

# An environment of its own: releases are built with pinned tools, whose hashes pip checks.
RELEASE := .venv-release
$(RELEASE)/.installed: release/requirements.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/$(PIP) --require-hashes --only-binary=:all: --requirement release/requirements.txt
	@touch $@

release: $(RELEASE)/.installed ## The wheel, the sdist and SHA256SUMS of the last commit in dist/, built twice and compared
	$(RELEASE)/bin/python -m release advisories
	$(RELEASE)/bin/python -m release build dist

clean: ## Remove what make made
	rm -rf $(VENV) $(OPTIMUM) $(AZURE) $(RELEASE) $(LOWEST) $(NEWEST) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
