# What the launchers source: reads the site's settings and hands over to slurm/job.
# shellcheck shell=bash

# sbatch passes on what salloc, another job or the shell has set, and srun would read it as options of each step.
for inherited in "${!SLURM_@}" "${!SRUN_@}"; do
    case $inherited in
        SLURM_JOB* | SLURM_ARRAY_* | SLURM_SUBMIT_* | SLURM_CLUSTER_NAME | SLURM_CONF | SLURM_JWT) ;;
        SLURM_RESTART_COUNT | SLURM_CPUS_ON_NODE | SLURM_GPUS_ON_NODE) ;;
        *) unset "$inherited" ;;
    esac
done

# shellcheck source=slurm/site.sh
source slurm/site.sh
if [ -n "${MODULES:-}" ]; then
    type module >/dev/null 2>&1 ||
        refuse "MODULES=$MODULES, but this shell has no command \`module\`: source the file that defines it, such as" \
            "/etc/profile.d/modules.sh, in $SITE_ENV."
    # shellcheck disable=SC2086 # unquoted, because MODULES may name several modules
    module load $MODULES || refuse "\`module load $MODULES\` failed: correct MODULES in $SITE_ENV."
fi
set -euo pipefail

with_python() { # ARGUMENT...: becomes a Python of this node, with which the job is managed
    local python
    for python in python3 python3.{13..9} /usr/bin/python3 "${PYTHON:-.venv/bin/python}"; do
        # -E: variables such as PYTHONHOME are meant for the trainer's interpreter.
        if "$python" -E -s -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
            exec "$python" -E -s "$@" # takes this shell's place, and so its signals
        fi
    done
    refuse "$(hostname) has no Python 3.9 or newer, with which the job is managed: put one on PATH in $SITE_ENV."
}

run_stage() { # STAGE [OVERRIDE...]: starts or continues a stage and trains it as long as the job's time allows
    export JOB_SCRIPT=$0
    with_python -m slurm.job "$@"
}

run_once() { # COMMAND...: runs a command on one node, in the container that site.env names
    (with_python -m slurm.job.once "$@")
}
