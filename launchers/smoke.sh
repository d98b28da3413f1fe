#!/usr/bin/env bash
#SBATCH --job-name=smoke
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:10:00
#SBATCH --signal=USR1@60
#SBATCH --no-requeue
#SBATCH --output=%x-%j.out
# The first job on a cluster: trains the demo's policy for ten steps on one node, on its GPUs or else its CPUs, without the
# network. Overrides are arguments. The last lines say what it showed:
#   sbatch launchers/smoke.sh

cd "$SLURM_SUBMIT_DIR"
[ -f slurm/common.sh ] || { echo "error: $PWD is not the root of the repository: run sbatch from there." && exit 1; }
source slurm/common.sh
export RUN_DIR=runs/smoke-$SLURM_JOB_ID
python=${PYTHON:-.venv/bin/python}
run_once "$python" -m nemo_prorl.demo.build
(run_stage demo1 --config-name=laptop trainer.num_steps=10 "$@")
[ -e "$RUN_DIR/stages/demo1.done" ] || { echo "smoke: not done in time: give it more with sbatch --time." && exit 1; }
run_once "$python" -m nemo_prorl status "$RUN_DIR"
echo "smoke: $(hostname) with ${SLURM_GPUS_ON_NODE:-no} GPU(s) trained the demo's policy: the checks of the node, reward" \
    "service, sampling, updates, validation and checkpoints work here. Several nodes and large models are not shown."
