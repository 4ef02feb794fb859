# Every target works from nothing: it builds what it needs, and only when something changed.
PYTHON ?= python3
VENV   := .venv
TFVENV := .venv-conformance
BIN    := $(VENV)/bin
MODELS ?= .models
ARGS   ?=
SECONDS ?= 60
PYTEST_ARGS ?=
PIP    := -m pip install --quiet --disable-pip-version-check

# Bytecode is kept, whatever the surroundings say: every server, worker and test run would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install serve test test-all test-grpcio test-cluster test-cluster-long test-tensorflow test-tensorflow-long test-azure test-lowest test-newer-python soak-world conformance conformance-upstream browser fuzz check format bench bench-batching bench-peers demo demo-guard gpu gpu-report protos dashboards package docs clean

install: $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tfs_lite needs Python 3.11 or newer; point PYTHON at one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python $(PIP) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python $(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

$(TFVENV)/.installed: tests/conformance/requirements.txt
	$(PYTHON) -m venv $(TFVENV)
	$(TFVENV)/bin/python $(PIP) -r tests/conformance/requirements.txt
	$(TFVENV)/bin/python $(PIP) --no-deps 'tensorflow-serving-api==2.21.0'
	@touch $@

# A small real model (handwritten digits), then a server on it. Ports: gRPC 8500, HTTP 8501.
serve: $(VENV)/.installed
	$(BIN)/python -m tfs_lite.cli.demo.model $(MODELS)
	exec $(BIN)/tfs-lite serve --model_repository=$(MODELS) $(ARGS)

demo: $(VENV)/.installed
	$(BIN)/tfs-lite demo $(ARGS)

# Bad versions pushed under callers, and taken back: one minute, and it prints how many errors the callers got.
demo-guard: $(VENV)/.installed
	$(BIN)/python examples/guarded_versions/demo.py

# Three workers for two cores, because many tests wait for a state. One thread of torch for each: teams of threads that
# share cores wait for one another. A worker that has nothing left to do takes over half of what another one still has.
RUN := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

test: $(VENV)/.dev
	$(RUN) -m "not load" --ignore tests/conformance $(PYTEST_ARGS)

# The stock clients of TensorFlow Serving, Triton and OpenAI, in an environment of their own, against server processes.
# Language models need the extra generate, which the development environment has.
conformance: $(VENV)/.dev $(TFVENV)/.installed
	$(TFVENV)/bin/python -m pytest -c tests/conformance/pytest.ini tests/conformance $(PYTEST_ARGS)

$(VENV)/.browser: $(VENV)/.dev
	$(BIN)/python $(PIP) -c constraints.txt -e '.[dev,browser]'
	-npm install --silent --prefix $(VENV)/node openai
	@touch $@

# The dashboard, and clients inside pages, in a real browser: the first of chromium-headless-shell, chromium and google-chrome, or ARGS=--browser=PATH.
# Debian: apt-get install --no-install-recommends chromium-headless-shell fonts-dejavu-core. Elsewhere these tests skip.
browser: $(VENV)/.browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser -rs $(ARGS) $(PYTEST_ARGS)

SEED ?= 1
# A week in ten minutes: what people do to a server of 50 models, under 20 callers. ARGS="--seconds 60 --models 12" is less.
soak-world: $(VENV)/.dev
	$(BIN)/python tests/soak/soak_world.py --seed $(SEED) --verbose $(ARGS)

CLUSTERVENV := .venv-cluster
$(CLUSTERVENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLUSTERVENV)
	$(CLUSTERVENV)/bin/python $(PIP) -c constraints.txt -e '.[demo,cluster]'
	$(CLUSTERVENV)/bin/python $(PIP) -c constraints.txt pytest pytest-timeout hypothesis httpx psutil trustme
	@touch $@

# Replicas on a real cluster of Ray, whose head and nodes all run here: minutes. Elsewhere these tests skip.
test-cluster: $(CLUSTERVENV)/.installed
	OMP_NUM_THREADS=1 $(CLUSTERVENV)/bin/python -m pytest tests/cluster -m "not load" $(PYTEST_ARGS)

test-cluster-long: $(CLUSTERVENV)/.installed
	OMP_NUM_THREADS=1 $(CLUSTERVENV)/bin/python -m pytest tests/cluster -m load -s $(PYTEST_ARGS)

TENSORFLOWVENV := .venv-tensorflow
$(TENSORFLOWVENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TENSORFLOWVENV)
	$(TENSORFLOWVENV)/bin/python $(PIP) -c constraints.txt -e '.[demo,tensorflow]'
	$(TENSORFLOWVENV)/bin/python $(PIP) -c constraints.txt pytest pytest-timeout hypothesis httpx psutil
	$(TENSORFLOWVENV)/bin/python $(PIP) --no-deps 'tensorflow-serving-api==2.21.0'
	@touch $@

# SavedModels, by servers that have torch, in processes that have TensorFlow: 1.5 GB. Elsewhere these tests skip.
test-tensorflow: $(TENSORFLOWVENV)/.installed
	OMP_NUM_THREADS=1 $(TENSORFLOWVENV)/bin/python -m pytest tests/tensorflow tests/integration/test_quick_starts.py::test_a_saved_model -m "not load" $(PYTEST_ARGS)

test-tensorflow-long: $(TENSORFLOWVENV)/.installed
	OMP_NUM_THREADS=1 $(TENSORFLOWVENV)/bin/python -m pytest tests/tensorflow tests/integration/test_swaps_of_every_kind.py -m load $(PYTEST_ARGS)

$(VENV)/.azure: $(VENV)/.dev
	npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3
	@touch $@

# Base paths in Azure, against azurite, its own emulator: a process of node, 190 MB. Elsewhere these tests skip.
test-azure: $(VENV)/.azure
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/contracts tests/integration -m azure $(PYTEST_ARGS)

# Tests that others have for their servers, from checkouts: make conformance-upstream TF_SERVING=DIR TRITON_QA=DIR, or one
# of them. Of TensorFlow Serving: github.com/tensorflow/serving; of Triton: github.com/triton-inference-server/server.
conformance-upstream: $(if $(TF_SERVING),$(TENSORFLOWVENV)/.installed) $(if $(TRITON_QA),$(VENV)/.dev $(TFVENV)/.installed)
	$(if $(TF_SERVING)$(TRITON_QA),,$(error give a checkout: TF_SERVING=DIR or TRITON_QA=DIR))
	$(if $(TF_SERVING),$(TENSORFLOWVENV)/bin/python tests/conformance_upstream/run_tensorflow_serving.py $(TF_SERVING))
	$(if $(TRITON_QA),$(TFVENV)/bin/python tests/conformance_upstream/run_triton.py $(TRITON_QA) --server $(abspath $(BIN)/tfs-lite))

# Tests that pin what a client sees on the wire, with the other gRPC server: make test has the native one.
test-grpcio: $(VENV)/.dev
	$(RUN) -m wire --grpc-server=grpcio --ignore tests/conformance $(PYTEST_ARGS)

# Everything, with long floods and many drawn cases, new ones in each run, with every stock client at both servers, and a
# push that must not be felt.
test-all: $(VENV)/.dev $(TFVENV)/.installed
	$(BIN)/python benchmarks/hot_reload.py --guard
	$(RUN) --hypothesis-profile=soak --ignore tests/conformance $(PYTEST_ARGS)
	$(RUN) --grpc-server=grpcio tests/integration tests/chaos $(PYTEST_ARGS)
	$(TFVENV)/bin/python -m pytest -c tests/conformance/pytest.ini tests/conformance $(PYTEST_ARGS)
	$(TFVENV)/bin/python -m pytest -c tests/conformance/pytest.ini tests/conformance --grpc-server=grpcio $(PYTEST_ARGS)
	$(MAKE) test-lowest test-newer-python

LOWEST := .venv-lowest
# Those of the extra `dev` that unit tests import, and the companions of grpcio and onnxruntime.
TEST_TOOLS := pytest pytest-timeout pytest-xdist hypothesis httpx h11 h2 openai trustme psutil 'moto[s3]' flask flask-cors \
  grpcio-reflection grpcio-tools onnx
$(LOWEST)/.installed: pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python .ci/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python $(PIP) -c $(LOWEST)/constraints.txt -e '.[demo,examples,generate,onnx,otel,remote]'
	$(LOWEST)/bin/python $(PIP) -c $(LOWEST)/constraints.txt $(TEST_TOOLS)
	@touch $@

# The unit tests with the lowest versions that pyproject.toml allows.
test-lowest: $(LOWEST)/.installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not load" tests/unit tests/contracts $(PYTEST_ARGS)

NEWER := python3.12
# The unit tests on a newer Python, where there is one. One that is not on the path: make test-newer-python NEWER=PATH.
test-newer-python:
	@if $(NEWER) -c '' 2> /dev/null; then \
	  $(MAKE) PYTHON=$(NEWER) VENV=.venv-$(notdir $(NEWER)) test PYTEST_ARGS="tests/unit tests/contracts $(PYTEST_ARGS)"; \
	else echo "$(NEWER) is not installed here: the unit tests did not run on it; NEWER=PATH names another"; fi

$(VENV)/.fuzz: $(VENV)/.dev
	$(BIN)/python $(PIP) -c constraints.txt -e '.[fuzz]' || echo "no atheris for this Python: fuzzing is not guided"
	@touch $@

# Everything that reads bytes from outside, SECONDS for each target. What breaks something lies in tests/fuzz/found.
fuzz: $(VENV)/.fuzz
	@failed=0; for target in $$(ls tests/fuzz/corpus); do \
	  $(BIN)/python tests/fuzz/drive.py $$target --seconds $(SECONDS) $(ARGS) || failed=1; done; exit $$failed

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@set -e; for example in examples/*/; do \
	  ls $$example*.py > /dev/null 2>&1 || continue; \
	  echo "mypy $$example"; (cd $$example && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache *.py); \
	done
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/hot_reload.py $(ARGS)
	$(BIN)/python benchmarks/request_path.py
	$(BIN)/python benchmarks/json_codec.py

PEERS ?= mosec pytriton torchserve mlserver litserve bentoml ray limits
# Other servers to compare with, each in an environment of its own. One that cannot be installed is named and left out.
bench-peers:
	@mkdir -p .bench && echo '*' > .bench/.gitignore
	@for peer in $(PEERS); do \
	  wanted=benchmarks/peers/requirements-$$peer.txt; \
	  test .bench/$$peer/.installed -nt $$wanted && continue; \
	  $(PYTHON) -m venv .bench/$$peer && .bench/$$peer/bin/python $(PIP) -c constraints.txt -r $$wanted \
	    && touch .bench/$$peer/.installed || echo "$$peer: cannot be installed here"; done

# Ours and theirs in one table of ratios; those that are not installed are left out by name.
bench-batching: $(VENV)/.dev
	$(BIN)/python benchmarks/batching.py $(ARGS)

# On a machine with CUDA; runs nothing elsewhere (the tests skip).
gpu: $(VENV)/.dev
	$(BIN)/python -m pytest tests/gpu -rs $(PYTEST_ARGS)

# The first measurements on a machine with CUDA, at most eight minutes; one JSON line a row.
gpu-report: $(VENV)/.dev
	$(BIN)/python benchmarks/gpu_first.py --budget 480 $(ARGS)

PACKAGEVENV := .venv-package
$(PACKAGEVENV)/.installed:
	$(PYTHON) -m venv $(PACKAGEVENV)
	$(PACKAGEVENV)/bin/python $(PIP) 'build>=1.2' 'twine>=6'
	@touch $@

# What a release consists of, built twice and compared, looked into, installed into empty environments, and used.
package: $(PACKAGEVENV)/.installed $(VENV)/.dev
	rm -rf dist
	$(PACKAGEVENV)/bin/python release/build.py dist
	$(BIN)/python -m pytest tests/deploy/test_wheel.py $(PYTEST_ARGS)

DOCSVENV := .venv-docs
$(DOCSVENV)/.installed: docs/site/requirements.txt
	$(PYTHON) -m venv $(DOCSVENV)
	$(DOCSVENV)/bin/python $(PIP) -r docs/site/requirements.txt
	@touch $@

# The pages as a site, in site/VERSION; site/index.html lists the versions that are there. A link or an anchor that leads nowhere is an error.
docs: $(DOCSVENV)/.installed
	@set -e; folder=site/$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' tfs_lite/__init__.py); rm -rf $$folder; \
	$(DOCSVENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --conf-dir docs/site --doctree-dir $(DOCSVENV)/doctrees . $$folder; \
	$(DOCSVENV)/bin/python docs/site/links.py site; echo "the first page: $$folder/index.html"

protos: $(VENV)/.dev
	$(BIN)/python -m tfs_lite.protocols.build

# Grafana's dashboard, from the table in examples/monitoring/dashboard.py.
dashboards: $(VENV)/bin/python
	$(BIN)/python examples/monitoring/dashboard.py

clean:
	rm -rf $(VENV) $(TFVENV) $(CLUSTERVENV) $(LOWEST) $(PACKAGEVENV) $(DOCSVENV) .venv-$(NEWER) $(MODELS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site
