# What the launchers source: reads the site's settings, which have to be read by bash, and hands over to slurm/job.
# shellcheck shell=bash

# sbatch passes on what salloc, another job or the shell has set, and srun would read it as options of each step.
for name in "${!SLURM_@}" "${!SRUN_@}"; do
    case $name in
        SLURM_JOB* | SLURM_ARRAY_* | SLURM_SUBMIT_* | SLURM_CLUSTER_NAME | SLURM_CONF | SLURM_JWT) ;;
        SLURM_RESTART_COUNT | SLURM_CPUS_ON_NODE | SLURM_GPUS_ON_NODE) ;;
        *) unset "$name" ;;
    esac
done
unset name

if [ -n "${SITE_ENV:-}" ] && [ ! -e "$SITE_ENV" ]; then
    echo "error: SITE_ENV=$SITE_ENV does not exist: write the path of a file such as slurm/site.env." >&2
    exit 1
elif [ -e "${SITE_ENV:=slurm/site.env}" ]; then
    set -o allexport
    # shellcheck source=slurm/site.env.example
    source "$SITE_ENV"
    set +o allexport
fi
if [ -n "${MODULES:-}" ]; then
    if ! type module >/dev/null 2>&1; then
        echo "error: MODULES=$MODULES, but this shell has no command \`module\`: source the file that defines it, such as" \
            "/etc/profile.d/modules.sh, in $SITE_ENV." >&2
        exit 1
    fi
    # shellcheck disable=SC2086 # unquoted, because MODULES may name several modules
    module load $MODULES || { echo "error: \`module load $MODULES\` failed: correct MODULES in $SITE_ENV." >&2 && exit 1; }
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
    echo "error: $(hostname) has no Python 3.9 or newer, with which the job is managed: put one on PATH in $SITE_ENV." >&2
    exit 1
}

run_stage() { # STAGE [OVERRIDE...]: starts or continues a stage and trains it as long as the job's time allows
    export JOB_SCRIPT=$0
    with_python -m slurm.job "$@"
}

run_once() { # COMMAND...: runs a command on one node, in the container that site.env names
    (with_python -m slurm.job.once "$@")
}
