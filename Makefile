# `make help` lists the targets. `make setup` makes the environment that nearly all of them run in.
# ARGS="..." goes to the command: make demo ARGS="--seed 2", make test ARGS=tests/data, make bench ARGS="--quick".
.DEFAULT_GOAL := help
.PHONY: help setup setup-cuda images demo demo-llm test test-slow test-fast test-nemo test-clients test-kernels test-te \
	test-cuda-build check format reference docs gpu-check profile bench bench-reward experiment

help:  ## list the targets; ARGS="..." passes options to any
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv from the locked requirements
	@scripts/setup.sh

setup-cuda:  ## make .venv-cuda for GPUs (10 GB)
	@scripts/setup.sh cuda

images:  ## build the container images (TAG=latest; see the script)
	@scripts/build_images.sh $(ARGS)

demo: setup  ## train a small reasoning policy on this machine
	@.venv/bin/python -m nemo_prorl demo $(ARGS)

demo-llm: setup  ## train a real language model (135M) on this machine
	@.venv/bin/python -m nemo_prorl demo-llm $(ARGS)

# A test file at a time on each processor; tests/conftest.py says in which order. ARGS="-n 0" for --pdb. Without bytecode
# each worker would compile all tests anew, which takes 13 s.
PYTEST = unset PYTHONDONTWRITEBYTECODE; .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: setup  ## run the tests but slow ones (ARGS=PATH: those of PATH)
	@$(PYTEST) $(if $(ARGS),$(ARGS),-m "not slow")

test-slow: setup  ## run the slow tests: whole runs, kills, ranks, Slurm
	@$(PYTEST) -m slow $(ARGS)

test-fast: setup  ## run the tests that start no engine, service or process
	@$(PYTEST) -m "not live and not medium and not slow" --ignore=tests/engines/vllm --ignore=tests/real $(ARGS)

test-nemo: setup  ## run the tests of NeMo's exp_manager, in .venv-nemo
	@scripts/setup.sh nemo
	@.venv-nemo/bin/python -m pytest tests/nemo $(ARGS)

test-clients: setup  ## test other trainers' own clients and the papers' verifiers
	@scripts/setup.sh clients
	@scripts/setup.sh papers
	@.venv-clients/bin/python -m pytest tests/clients --ignore=tests/clients/test_papers.py $(ARGS)
	@.venv-papers/bin/python -m pytest --noconftest -p no:hydra_pytest tests/clients/test_papers.py

test-kernels: setup  ## run the tests that need Triton, in .venv-triton
	@scripts/beside.sh triton
	@PYTHONPATH=.venv-triton .venv/bin/python -m pytest tests/gpu/test_kernel.py tests/gpu/test_compiling.py $(ARGS)
	@PYTHONPATH=.venv-triton .venv/bin/python -m pytest -p tests.gpu.runner_v2 tests/engines/vllm/test_sampling.py \
		-k "of_transformers and not 0.6"

test-te: setup  ## test Transformer Engine's layers with emulated kernels
	@scripts/beside.sh triton te
	@scripts/test_te.sh .venv $(ARGS)

test-cuda-build: setup setup-cuda  ## test the GPU environment on a machine without a GPU
	@scripts/test_te.sh .venv-cuda $(ARGS)

check: setup  ## check lint, format, docstrings, types, imports, scripts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python scripts/docstrings.py
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/hadolint --ignore DL3008 Dockerfile
	.venv/bin/shellcheck -x launchers/*.sh slurm/*.sh scripts/*.sh tests/slurm/*.sh .ci/run

format: setup  ## format the code and fix what the linter can fix
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

reference: setup  ## write docs/reference/ from the code
	@.venv/bin/python -m scripts.reference

docs: setup .venv-docs/bin/mkdocs  ## build docs/ as HTML in build/docs
	@.venv-docs/bin/mkdocs build --quiet --strict
	@echo "build/docs/index.html; with the search box: .venv-docs/bin/mkdocs serve"

.venv-docs/bin/mkdocs: requirements/docs.txt
	@.venv/bin/python -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/docs.txt
	@touch $@

# gpu-check does not depend on setup, because a machine with a GPU may have its own torch and megatron-core and no .venv.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

gpu-check:  ## check the engines on this machine's GPU (PYTHON=python3)
	@$(PYTHON) -m benchmarks.gpu_check $(ARGS)

profile: setup  ## profile a step: time per phase and per function
	@.venv/bin/python -m benchmarks.profile_step $(ARGS)

bench: setup  ## compare with TRL's GRPOTrainer on the same work
	@scripts/setup.sh trl
	@.venv/bin/python -m benchmarks.bench_peer $(ARGS)

bench-reward: setup  ## measure the reward service beside other verifiers
	@scripts/setup.sh papers
	@.venv-papers/bin/python -m benchmarks.bench_reward $(ARGS)

experiment: setup  ## repeat a study of experiments/ (NAME=findings)
	@$(if $(filter grading,$(NAME)),scripts/setup.sh papers && .venv-papers,.venv)/bin/python -m experiments.$(NAME) $(ARGS)
