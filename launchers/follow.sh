#!/usr/bin/env bash
#SBATCH --job-name=follow
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Measures each checkpoint of a run beside its training, until the run ends, on the GPUs of one node (docs/evaluation.md):
#   sbatch launchers/follow.sh runs/prorl suite=validation
# A minute before the time limit the job requeues itself to continue.

cd "$SLURM_SUBMIT_DIR"
[ -f slurm/common.sh ] || { echo "error: $PWD is not the root of the repository: run sbatch from there." && exit 1; }
source slurm/common.sh
run_once "${PYTHON:-.venv/bin/python}" -m nemo_prorl evaluate --follow "$@" --ranks "${SLURM_GPUS_ON_NODE:-1}" &
trap 'scontrol requeue "$SLURM_JOB_ID"; sleep 60' USR1
wait $!
