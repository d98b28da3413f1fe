# `make help` lists what there is. Everything runs from the two environments that `make setup` makes.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-nemo test-clients test-kernels check format reference docs bench bench-reward bench-clients real bench-controller findings stories recipes bench-micro profile gpu-check

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv and .venv-reward from the locked requirements; quick when they are up to date
	@scripts/setup.sh

demo: setup  ## train a small reasoning policy on this machine (DEMO_ARGS="--seed 2" passes options)
	@.venv/bin/python -m nemo_prorl demo $(DEMO_ARGS)

test: setup  ## run all tests (PYTEST_ARGS="-m 'not slow'" or a path passes arguments to pytest)
	@scripts/test.sh $(PYTEST_ARGS)

test-nemo: setup  ## with NeMo's exp_manager, in .venv-nemo: its packages on top of the trainer's
	@scripts/setup.sh nemo
	@.venv-nemo/bin/python -m pytest tests/nemo $(PYTEST_ARGS)

test-clients: setup  ## other trainers' own client code against the service, in .venv-clients (PRORL_SLIME=DIR for slime's)
	@scripts/setup.sh clients
	@.venv-clients/bin/python -m pytest tests/clients $(PYTEST_ARGS)

test-kernels: setup  ## what needs Triton, which it puts into .venv-triton: our kernels, and vLLM's model runner V2
	@test -d .venv-triton/triton-$(TRITON).dist-info || .venv/bin/python -m pip install -qq --disable-pip-version-check \
		--no-deps --upgrade --target .venv-triton -r requirements/triton.txt
	@PYTHONPATH=.venv-triton .venv/bin/python -m pytest tests/gpu/test_kernel.py $(PYTEST_ARGS)
	@PYTHONPATH=.venv-triton .venv/bin/python -m pytest -p tests.gpu.runner_v2 tests/engines/vllm/test_sampling.py \
		-k "of_transformers and not 0.6"

TRITON = $(shell sed -n 's/^triton==//p' requirements/triton.txt)

check: setup  ## lint, format, types, layers, and the shell scripts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/shellcheck -x launchers/*.sh slurm/*.sh scripts/*.sh tests/slurm/*.sh .ci/run

reference: setup  ## write docs/reference/ anew: commands, options and metrics, from the code
	@.venv/bin/python -m scripts.reference

docs: setup .venv-docs/bin/mkdocs  ## docs/ as HTML with a search box, in build/docs, by MkDocs in .venv-docs
	@.venv-docs/bin/mkdocs build --quiet --strict
	@echo "build/docs/index.html; with the search box: .venv-docs/bin/mkdocs serve"

.venv-docs/bin/mkdocs: requirements/docs.txt
	@.venv/bin/python -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements/docs.txt
	@touch $@

bench: setup  ## our trainer beside TRL's GRPOTrainer on the same work, in .venv-trl (BENCH_ARGS="--quick")
	@scripts/setup.sh trl
	@.venv/bin/python benchmarks/bench_peer.py $(BENCH_ARGS)

bench-reward: setup  ## the reward service's correctness and speed, beside other verifiers (BENCH_ARGS="--seconds 10")
	@.venv-reward/bin/python benchmarks/bench_reward.py $(BENCH_ARGS)

bench-clients: setup  ## the service through other trainers' clients, killed under load, and beside verl's graders (DATA=DIR)
	@scripts/setup.sh clients
	@.venv-clients/bin/python benchmarks/bench_clients.py "$(DATA)" $(BENCH_ARGS)

real: setup  ## the reward service on outputs that others recorded and graded (DATA=DIR, BENCH_ARGS="--limit 500")
	@.venv-reward/bin/python benchmarks/real_graders.py "$(DATA)" $(BENCH_ARGS)

bench-controller: setup  ## a run that its reference holds back, with and without the reset controller, three seeds each
	@.venv/bin/python benchmarks/bench_controller.py $(BENCH_ARGS)

findings: setup  ## the papers' ablations on the tiny policy, three seeds each (BENCH_ARGS="--only clip --seeds 1")
	@.venv/bin/python benchmarks/findings.py $(BENCH_ARGS)

stories: setup  ## a pretrained story-teller with and without resets (MODEL=DIR with its Hugging Face files)
	@.venv/bin/python benchmarks/bench_stories.py stories "$(MODEL)" $(BENCH_ARGS)

recipes: setup  ## recipes of conf/recipe side by side on the same story-teller (MODEL=DIR)
	@.venv/bin/python benchmarks/bench_stories.py recipes "$(MODEL)" $(BENCH_ARGS)

bench-micro: setup  ## the parts of a step by themselves, a reference beside each (BENCH_ARGS="--quick")
	@.venv/bin/python benchmarks/bench_micro.py $(BENCH_ARGS)

profile: setup  ## where every second of a step goes, and to which functions (BENCH_ARGS="--shape larger")
	@.venv/bin/python benchmarks/profile_step.py $(BENCH_ARGS)

gpu-check:  ## the engines on this machine's GPU, or what of them runs on CPU (PYTHON=python3, BENCH_ARGS="--only kernel")
	@$(PYTHON) -m benchmarks.gpu_check $(BENCH_ARGS)

# A machine with a GPU may have its own torch and megatron-core and no .venv: nothing is set up for it.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

format: setup  ## put the code into its form and mend what the linter can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
