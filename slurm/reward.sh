#!/usr/bin/env bash
# The reward service of one node: FOLDER (where it announces itself; holds the token) and the node's ADDRESS or name.
# Started again when it dies, because training goes on meanwhile with the other nodes' servers.
trap '' USR1 # "save and pause" goes to all steps of a job, and is not meant for this one
trap : TERM  # so does the SIGTERM of a preemption with a grace time, which ends the server but not this script
folder=$1 ready=$1/$SLURMD_NODENAME.json
address=$(getent ahostsv4 "$2" | awk 'NR == 1 { print $1 }')
if [ "$address" != "$2" ] && [[ $address == 127.* ]]; then
    address=$(hostname -I | awk '{ print $1 }') # a name that means loopback to the node itself helps nobody else
fi
export CUDA_VISIBLE_DEVICES= # graders need no GPU

while true; do
    # Graders take what the ranks leave: the engine loop of a rank, one Python thread, is in the way of every token.
    nice -n 19 "${REWARD_PYTHON:-.venv-reward/bin/python}" -m reward serve --host "$address" --ready-file "$ready" \
        --token-file "$folder/token" --workers "${REWARD_WORKERS:-0}"
    code=$?
    rm -f "$ready"
    [ ! -e "$folder/over" ] || exit 0 # the trainer has ended
    echo "$(date --utc +%FT%TZ) the reward service on $SLURMD_NODENAME ended with code $code"
    [ $code -ne 2 ] || exit 2 # a mistake in how it was started: the same again is no help
    [ $code -eq 0 ] || sleep 5 # 0: it was told to end, and the trainer still waits for the verdicts of its step
done
