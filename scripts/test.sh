#!/usr/bin/env bash
# Runs the trainer's tests in .venv and the reward service's (tests/reward) in .venv-reward; fails when either does.
# Arguments go to pytest. Paths among them select the tests, each in the environment it belongs to.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

options=() trainer=() service=()
for argument in "$@"; do
    if [[ $argument != tests* && $argument != ./tests* ]] || [ ! -e "${argument%%::*}" ]; then
        options+=("$argument")
    elif [[ $argument == tests/reward* || $argument == ./tests/reward* ]]; then
        service+=("$argument")
    else
        trainer+=("$argument")
    fi
done
if [ ${#trainer[@]} -eq 0 ] && [ ${#service[@]} -eq 0 ]; then
    trainer=(tests --ignore=tests/reward)
    service=(tests/reward)
fi

status=0 summary=()
run() { # NAME ENVIRONMENT TESTS...
    local name=$1 python=$2/bin/python log code
    shift 2
    [ $# -gt 0 ] || return 0
    log=$(mktemp)
    "$python" -m pytest "$@" ${options[@]+"${options[@]}"} 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    # pytest's 5 is "no test selected": right when options such as -k chose tests of the other environment only.
    [ "$code" -eq 0 ] || { [ "$code" -eq 5 ] && [ ${#options[@]} -gt 0 ]; } || status=1
    summary+=("$name: $(tail -n 1 "$log")")
    rm -f "$log"
}

run trainer .venv ${trainer[@]+"${trainer[@]}"}
run "reward service" .venv-reward ${service[@]+"${service[@]}"}
printf '%s\n' "" ${summary[@]+"${summary[@]}"}
exit $status
