#!/usr/bin/env bash
# usage: reward.sh FOLDER ADDRESS: runs the reward service of this node. ADDRESS is the node's address or name; FOLDER
# holds the token and gets the server's ready file. A server that dies is started again; meanwhile training uses those
# of the other nodes. The script ends with its server after a second SIGTERM, or if the job has made FOLDER/over.
trap '' USR1 # the request to save and pause, which Slurm sends to all steps of a job
# A preemption with a grace time sends SIGTERM to all steps as well; the trainer still needs scores to finish its step.
trap 'told_to_end=yes' TERM
num_told=0
folder=$1 ready=$1/$SLURMD_NODENAME.json
address=$(getent ahostsv4 "$2" | awk 'NR == 1 { print $1 }')
if [ "$address" != "$2" ] && [[ $address == 127.* ]]; then
    address=$(hostname -I | awk '{ print $1 }') # other nodes cannot reach a loopback address
fi
export CUDA_VISIBLE_DEVICES= # graders need no GPU

while true; do
    # At low priority, because every token waits for the rank's sampler loop, which is a single Python thread.
    nice -n 19 "${REWARD_PYTHON:-.venv-reward/bin/python}" -m reward serve --host "$address" --ready-file "$ready" \
        --token-file "$folder/token" --workers "${REWARD_WORKERS:-0}"
    code=$?
    rm -f "$ready"
    # 0: a signal ended it. 2: its arguments or environment are wrong, and a restart would not help.
    [ $code -eq 0 ] || [ $code -eq 2 ] || sleep 5
    [ ! -e "$folder/over" ] || exit 0
    [ -z "${told_to_end:-}" ] || num_told=$((num_told + 1)) told_to_end=
    [ "$num_told" -lt 2 ] || exit 0 # the first SIGTERM may be a preemption's, the second is the end of the job
    echo "$(date --utc +%FT%TZ) the reward service on $SLURMD_NODENAME ended with code $code"
    [ $code -ne 2 ] || exit 2
done
