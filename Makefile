# `make help` lists the targets. `make setup` makes the two environments that nearly all of them run in.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-fast test-nemo test-clients test-kernels check format reference docs bench bench-reward real findings stories recipes boundary profile gpu-check

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv and .venv-reward from the locked requirements; does nothing if they are up to date
	@scripts/setup.sh

demo: setup  ## train a small reasoning policy on this machine (DEMO_ARGS="--seed 2" passes options)
	@.venv/bin/python -m nemo_prorl demo $(DEMO_ARGS)

test: setup  ## run the tests, except slow ones (PYTEST_ARGS=PATH runs other tests instead, slow or not)
	@scripts/test.sh $(if $(PYTEST_ARGS),$(PYTEST_ARGS),-m "not slow")

test-slow: setup  ## run the slow tests: whole runs, kills and resumes, several ranks, Slurm, other people's data
	@scripts/test.sh -m slow $(PYTEST_ARGS)

test-fast: setup  ## run the tests that take less than half a second and start no engine, service or other process
	@scripts/test.sh -m "not live and not medium and not slow" --ignore=tests/engines/vllm --ignore=tests/real $(PYTEST_ARGS)

test-nemo: setup  ## run the tests of NeMo's exp_manager in .venv-nemo: its packages on top of the trainer's
	@scripts/setup.sh nemo
	@.venv-nemo/bin/python -m pytest tests/nemo $(PYTEST_ARGS)

test-clients: setup  ## test the service with other trainers' own client code, in .venv-clients (PRORL_SLIME=DIR for slime's)
	@scripts/setup.sh clients
	@.venv-clients/bin/python -m pytest tests/clients $(PYTEST_ARGS)

test-kernels: setup  ## run the tests that need Triton, which it puts into .venv-triton: our kernels, vLLM's model runner V2
	@test -d .venv-triton/triton-$(TRITON).dist-info || .venv/bin/python -m pip install -qq --disable-pip-version-check \
		--no-deps --upgrade --target .venv-triton -r requirements/triton.txt
	@PYTHONPATH=.venv-triton .venv/bin/python -m pytest tests/gpu/test_kernel.py $(PYTEST_ARGS)
	@PYTHONPATH=.venv-triton .venv/bin/python -m pytest -p tests.gpu.runner_v2 tests/engines/vllm/test_sampling.py \
		-k "of_transformers and not 0.6"

TRITON = $(shell sed -n 's/^triton==//p' requirements/triton.txt)

check: setup  ## check lint, format, types, import rules and shell scripts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/shellcheck -x launchers/*.sh slurm/*.sh scripts/*.sh tests/slurm/*.sh .ci/run

reference: setup  ## write docs/reference/ from the code: commands, options and metrics
	@.venv/bin/python -m scripts.reference

docs: setup .venv-docs/bin/mkdocs  ## build docs/ as HTML in build/docs, with MkDocs in .venv-docs
	@.venv-docs/bin/mkdocs build --quiet --strict
	@echo "build/docs/index.html; with the search box: .venv-docs/bin/mkdocs serve"

.venv-docs/bin/mkdocs: requirements/docs.txt
	@.venv/bin/python -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/docs.txt
	@touch $@

bench: setup  ## measure our trainer and TRL's GRPOTrainer on the same work, in .venv-trl (BENCH_ARGS="--quick")
	@scripts/setup.sh trl
	@.venv/bin/python benchmarks/bench_peer.py $(BENCH_ARGS)

bench-reward: setup  ## measure the reward service's correctness and speed beside other verifiers (BENCH_ARGS="--seconds 10")
	@.venv-reward/bin/python benchmarks/bench_reward.py $(BENCH_ARGS)

real: setup  ## grade model outputs that others recorded and graded, and compare (DATA=DIR, BENCH_ARGS="--limit 500")
	@.venv-reward/bin/python benchmarks/real_graders.py "$(DATA)" $(BENCH_ARGS)

findings: setup  ## repeat the papers' ablations and a stalled run on the tiny policy (BENCH_ARGS="--only clip --seeds 1")
	@.venv/bin/python -m experiments.findings $(BENCH_ARGS)

stories: setup  ## train a pretrained 260K-parameter model with and without resets (MODEL=DIR with its Hugging Face files)
	@.venv/bin/python -m experiments.findings --only stories --model "$(MODEL)" $(BENCH_ARGS)

recipes: setup  ## train the same model with several recipes of conf/recipe and compare (MODEL=DIR)
	@.venv/bin/python -m experiments.findings --only recipes --model "$(MODEL)" $(BENCH_ARGS)

boundary: setup  ## does prolonged RL solve what the base policy cannot? (BENCH_ARGS="--quick"; docs/boundary.md)
	@.venv/bin/python -m experiments.boundary $(BENCH_ARGS)

profile: setup  ## profile a step: time per phase and per function (BENCH_ARGS="--shape larger")
	@.venv/bin/python benchmarks/profile_step.py $(BENCH_ARGS)

gpu-check:  ## check the engines on this machine's GPU, or the CPU part without one (PYTHON=python3, BENCH_ARGS="--only kernel")
	@$(PYTHON) -m benchmarks.gpu_check $(BENCH_ARGS)

# gpu-check does not depend on setup, because a machine with a GPU may have its own torch and megatron-core and no .venv.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

format: setup  ## format the code and fix what the linter can fix
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
