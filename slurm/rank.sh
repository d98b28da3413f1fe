#!/usr/bin/env bash
# usage: rank.sh COMMAND ARGUMENT...: runs `python -m nemo_prorl COMMAND ARGUMENT...` as a task of a job step, inside the
# container if there is one.
trap '' USR1 # would kill the rank until the trainer has its own handler
# Compiled code is loaded from this folder, so it must not belong to another user.
(umask 077 && mkdir -p "$CACHE_DIR") || {
    echo "error: CACHE_DIR=$CACHE_DIR cannot be made on $(hostname): name another folder in site.env." >&2
    exit 78
}
[ -O "$CACHE_DIR" ] || {
    echo "error: CACHE_DIR=$CACHE_DIR on $(hostname) belongs to somebody else: name another folder in site.env." >&2
    exit 78
}
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
command=("${PYTHON:-.venv/bin/python}" -m nemo_prorl "$@")
[ "$1" = doctor ] || exec "${command[@]}"

# Nothing is trained yet, so nothing can be saved: the launcher reads when the signal came.
(exec "${command[@]}") & # ignores the signal
trap 'date +%s >"$USR1_FOLDER/usr1"' USR1
until wait $!; code=$? && [ $code -ne 138 ]; do :; done # 138: the signal has interrupted the wait
exit $code
