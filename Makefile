# The few verbs of this project; CI calls the same ones.
# Each makes what it needs by itself, on a bare machine with make and Python 3.11 or later.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
VENV_VLLM ?= .venv-vllm
OUT ?= out
TINY := .cache/tiny-qwen3
VLLM := $(or $(SERVETUNE_VLLM),$(CURDIR)/$(VENV_VLLM)/bin/vllm)

# Thousands of short processes would each compile the package anew where this is set.
unexport PYTHONDONTWRITEBYTECODE

BASE_STAMP := $(VENV)/.base-installed
DEV_STAMP := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help demo demo-vllm test test-engine lint types check docs format lock clean

help:  ## Show these verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "error: no Python found; install Python 3.11 or later" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: servetune needs Python 3.11 or later; give one with PYTHON=/path/to/python3" >&2; exit 2; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(BASE_STAMP): $(VENV)/.created requirements/base.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/base.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV_STAMP): $(BASE_STAMP) requirements/dev.txt
	tools/install_locked.sh $(VENV) requirements/dev.txt
	@touch $@

demo: $(BASE_STAMP)  ## The main job on the simulated engine: tune, report, recommend, deploy bundle
	$(BIN)/python examples/demo.py --out $(OUT)/demo

demo-vllm: $(BASE_STAMP) $(TINY)/config.json  ## The same on a real engine: vLLM on CPU, a tiny random model
	SERVETUNE_VLLM="$(VLLM)" $(BIN)/python examples/demo_vllm.py --model $(TINY) --out $(OUT)/demo-vllm

.PHONY: vllm
vllm:
	@PYTHON="$(PYTHON)" tools/vllm_cpu_env.sh $(VENV_VLLM)

# Made with the Python of the vLLM in use, which has what a model is made with.
$(TINY)/config.json: | vllm
	"$$(dirname "$$(command -v "$(VLLM)")")/python" tools/make_tiny_model.py $(TINY)

# Only the files that have such tests, as to collect all takes ten seconds each time.
TIMED_TESTS = $(shell grep -rl --include='test_*.py' mark.timed tests)
ENGINE_TESTS = $(shell grep -rl --include='test_*.py' mark.engine tests)

# Two parts: four processes on two cores, since many tests wait; then, alone on the machine, those
# that judge times. `pytest` by itself runs all in one process; tests/conftest.py has the rules.
test: $(DEV_STAMP)  ## Tests that need neither a real engine nor a GPU, the slow ones apart
	@status=0; \
	  $(BIN)/python -m pytest --part together -n 4 --dist loadgroup || status=1; \
	  $(BIN)/python -m pytest --part alone $(TIMED_TESTS) || status=1; \
	  exit $$status

# Those that take ten seconds or more each (servers that never get ready, kills at every request),
# and the charts in a browser.
.PHONY: test-slow
test-slow: $(DEV_STAMP)  ## The slow tests, of which `test` has none (seven minutes)
	@status=0; \
	  $(BIN)/python -m pytest --part together --slow -n 4 --dist loadgroup || status=1; \
	  $(BIN)/python -m pytest --part alone --slow $(TIMED_TESTS) || status=1; \
	  exit $$status

# The longest file first: the others fit beside it.
test-engine: $(DEV_STAMP) $(TINY)/config.json  ## The thread on real vLLM (a few minutes)
	@status=0; export SERVETUNE_VLLM="$(VLLM)" SERVETUNE_TINY_MODEL="$(CURDIR)/$(TINY)"; \
	  $(BIN)/python -m pytest -m engine --part together -n 2 --dist loadfile \
	    --no-loadscope-reorder tests/e2e/test_real_vllm.py $(ENGINE_TESTS) || status=1; \
	  $(BIN)/python -m pytest -m engine --part alone $(ENGINE_TESTS) || status=1; \
	  exit $$status

RAY_STAMP := $(VENV)/.ray-installed

$(RAY_STAMP): $(DEV_STAMP) requirements/ray.txt
	tools/install_locked.sh $(VENV) requirements/ray.txt
	@touch $@

VALIDATORS_STAMP := $(VENV)/.validators-installed

$(VALIDATORS_STAMP): $(DEV_STAMP) requirements/validators.txt
	tools/install_locked.sh $(VENV) requirements/validators.txt
	@touch $@

.PHONY: validators
validators: $(VALIDATORS_STAMP)  ## Schemas of Kubernetes, Compose and CloudFormation, and MLflow; without them `test` skips theirs

MUTATION_STAMP := $(VENV)/.mutation-installed

$(MUTATION_STAMP): $(DEV_STAMP) requirements/mutation.txt
	tools/install_locked.sh $(VENV) requirements/mutation.txt
	@touch $@

.PHONY: mutants
mutants: $(MUTATION_STAMP)  ## Changes of the pure rooms that no test notices, a sample (half an hour)
	$(BIN)/python tools/mutants.py --survivors

SITE_STAMP := $(VENV)/.site-installed

$(SITE_STAMP): $(DEV_STAMP) requirements/site.txt
	tools/install_locked.sh $(VENV) requirements/site.txt
	@touch $@

.PHONY: site
site: $(SITE_STAMP)  ## The documentation as a site in out/site, which reads without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(OUT)/site

.PHONY: test-ray
test-ray: $(RAY_STAMP)  ## What needs a Ray cluster; it is started on this machine
	$(BIN)/python -m pytest -m ray

.PHONY: test-night
test-night: $(RAY_STAMP) $(TINY)/config.json  ## Real engines through a night's accidents, and the fuzz test at length (an hour)
	SERVETUNE_VLLM="$(VLLM)" SERVETUNE_TINY_MODEL="$(CURDIR)/$(TINY)" \
	  $(BIN)/python -m pytest -m night

frontend/node_modules/.installed: frontend/package-lock.json
	cd frontend && npm ci --ignore-scripts
	@touch $@

.PHONY: page
page: $(DEV_STAMP) frontend/node_modules/.installed  ## The dashboard's script and style out of frontend/; needs Node
	$(BIN)/python tools/page_types.py
	cd frontend && npm run build

lint: $(DEV_STAMP)  ## Style, and the rooms' allowed imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(DEV_STAMP)  ## Strict types
	$(BIN)/mypy

check: lint types test  ## What must hold before a commit

docs: $(DEV_STAMP)  ## Reference pages out of the code
	$(BIN)/python tools/reference_pages.py

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(DEV_STAMP)  ## Pins with hashes, without addresses
	tools/lock.sh

clean:
	rm -rf $(VENV) $(VENV_VLLM) .cache build dist $(OUT)
