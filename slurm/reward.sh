#!/usr/bin/env bash
# The reward service of one node: FOLDER (where it announces itself; holds the token) and the node's ADDRESS or name.
# Started again when it dies, because training goes on meanwhile with the other nodes' servers. FOLDER/over, which the job
# makes when it ends, and a second SIGTERM end this script together with the server.
trap '' USR1 # "save and pause" goes to all steps of a job, and is not meant for this one
# So does the SIGTERM of a preemption with a grace time, after which the trainer still needs verdicts for its step.
trap 'told_to_end=yes' TERM
num_told=0
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
    # 0: it was told to end. 2: it was started in a wrong way, which does not change.
    [ $code -eq 0 ] || [ $code -eq 2 ] || sleep 5
    [ ! -e "$folder/over" ] || exit 0
    [ -z "${told_to_end:-}" ] || num_told=$((num_told + 1)) told_to_end=
    [ "$num_told" -lt 2 ] || exit 0 # after a preemption's signal this one is that of the job's end
    echo "$(date --utc +%FT%TZ) the reward service on $SLURMD_NODENAME ended with code $code"
    [ $code -ne 2 ] || exit 2
done
