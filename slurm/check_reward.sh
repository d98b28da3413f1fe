#!/usr/bin/env bash
# usage: check_reward.sh FOLDER: writes what this node can grade to FOLDER/NODE.reward, where `doctor` waits for it.
trap '' USR1
answer=$1/$SLURMD_NODENAME.reward
python=${REWARD_CONTAINER:+python} # as in reward.sh
"${python:-${PYTHON:-.venv/bin/python}}" -m reward check --json >"$answer.writing" 2>"$answer.log" ||
    tail -n 1 "$answer.log" >"$answer.writing"
mv "$answer.writing" "$answer"
