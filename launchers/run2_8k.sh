#!/usr/bin/env bash
#SBATCH --job-name=run2_8k
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Run 2 of 8, responses of up to 8k, on 4 nodes x 8 H100. conf/stage/run2.yaml describes it. Overrides are arguments:
#   sbatch launchers/run2_8k.sh algorithm.kl_beta=0 trainer.learning_rate=1e-6          # run 1 is done
#   sbatch launchers/run2_8k.sh stage.parent= model.path=FOLDER exp_manager.explicit_log_dir=FOLDER     # alone
# Ten minutes before the time limit the job saves a checkpoint and requeues itself to continue: docs/cluster.md.

cd "$SLURM_SUBMIT_DIR"
[ -f slurm/common.sh ] || { echo "error: $PWD is not the root of the repository: run sbatch from there." && exit 1; }
source slurm/common.sh
run_stage run2 "$@"
