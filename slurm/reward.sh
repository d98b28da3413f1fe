#!/usr/bin/env bash
# usage: reward.sh FOLDER ADDRESS: runs the reward service of this node. ADDRESS is the node's address or name; FOLDER
# holds the token and gets the server's ready file. A server that dies is started again; meanwhile training uses those
# of the other nodes. The script ends with its server after a second SIGTERM, or if the job has made FOLDER/over.
folder=$1 ready=$1/$SLURMD_NODENAME.json
umask 077 # addresses are for this user only
# The request to save and pause, which Slurm sends to all steps of a job. Until the trainer runs, it is only noted.
trap 'date +%s >"$folder/usr1"' USR1
# A preemption with a grace time sends SIGTERM to all steps as well; the trainer still needs scores to finish its step.
trap 'told_to_end=yes' TERM
num_told=0
# IPv4 before IPv6, and no address at all is an error: an empty --host would listen on every interface.
address=$(getent ahosts "$2" | awk '$2 == "STREAM" { if ($1 !~ /:/) four = four ? four : $1; else six = six ? six : $1 }
    END { print four ? four : six }')
case $address in
    "$2") ;; # written as an address, so Slurm reaches it there
    127.* | ::1) address=$(hostname -I | awk '{ print $1 }') ;; # other nodes cannot reach a loopback address
esac
[ -n "$address" ] || {
    echo "error: $SLURMD_NODENAME has no address that other nodes could reach ($2): correct NodeAddr in slurm.conf or DNS." >&2
    exit 2
}
export CUDA_VISIBLE_DEVICES= # graders need no GPU
python=${REWARD_CONTAINER:+python} # in an image of its own, the trainer's path to Python means nothing
python=${python:-${PYTHON:-.venv/bin/python}}

while true; do
    # At low priority, because every token waits for the rank's sampler loop, which is a single Python thread.
    nice -n 19 "$python" -m reward serve --host "$address" --ready-file "$ready" \
        --token-file "$folder/token" --workers "${REWARD_WORKERS:-0}"
    code=$?
    rm -f "$ready"
    # 0: a signal ended it. 2, 126, 127: its arguments or environment are wrong, and a restart would not help.
    case $code in 0 | 2 | 126 | 127) ;; *) sleep 5 ;; esac
    [ ! -e "$folder/over" ] || exit 0
    [ -z "${told_to_end:-}" ] || num_told=$((num_told + 1)) told_to_end=
    [ "$num_told" -lt 2 ] || exit 0 # the first SIGTERM may be a preemption's, the second is the end of the job
    echo "$(date --utc +%FT%TZ) the reward service on $SLURMD_NODENAME ended with code $code"
    case $code in 2 | 126 | 127) exit $code ;; esac
done
