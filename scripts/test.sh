#!/usr/bin/env bash
# Runs the tests: the reward service's (tests/reward) in .venv-reward, all others in .venv. Fails when any does.
# Arguments go to pytest. Paths among them select the tests, each in the environment it belongs to.
#
# Two lanes at the same time, because tests wait a good deal, for servers or for Slurm: the trainer's tests, shown as
# they run, and beside them the reward service's and then Slurm's, shown at the end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

options=() trainer=() service=() slurm=()
for argument in "$@"; do
    if [[ $argument != tests* && $argument != ./tests* ]] || [ ! -e "${argument%%::*}" ]; then
        options+=("$argument")
    else
        case ${argument#./} in
            tests/reward*) service+=("$argument") ;;
            tests/slurm*) slurm+=("$argument") ;;
            *) trainer+=("$argument") ;;
        esac
    fi
done
if [ $((${#trainer[@]} + ${#service[@]} + ${#slurm[@]})) -eq 0 ]; then
    trainer=(tests --ignore=tests/reward --ignore=tests/slurm)
    service=(tests/reward)
    slurm=(tests/slurm)
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

run() { # NAME ENVIRONMENT TESTS...
    local name=$1 environment=$2 code=0
    shift 2
    [ $# -gt 0 ] || return 0
    # What failed last time (--lf) is remembered for each part by itself.
    "$environment/bin/python" -m pytest -o "cache_dir=.pytest_cache/$name" "$@" \
        ${options[@]+"${options[@]}"} >"$logs/$name" 2>&1 </dev/null || code=$?
    # pytest's 5 is "no test selected": right when options such as -k chose tests of the other parts only.
    [ "$code" -eq 0 ] || { [ "$code" -eq 5 ] && [ ${#options[@]} -gt 0 ]; }
}

beside() {
    local code=0
    run service .venv-reward ${service[@]+"${service[@]}"} || code=1
    run slurm .venv ${slurm[@]+"${slurm[@]}"} || code=1
    return $code
}

summary=()
show() { # NAME TITLE PROCESS TESTS...: what the part has printed, and goes on to print until the process ends
    local name=$1 title=$2 process=$3
    shift 3
    [ $# -gt 0 ] || return 0
    printf '=== the tests of the %s\n' "$title"
    touch "$logs/$name"
    tail -n +1 -f --pid="$process" "$logs/$name"
    summary+=("$title: $(grep . "$logs/$name" | tail -n 1)")
}

set -m # a process group for each lane: bash lets no other kind of background process notice Ctrl-C
run trainer .venv ${trainer[@]+"${trainer[@]}"} &
main=$!
beside &
other=$!
set +m
trap 'kill -INT -- "-$main" "-$other" 2>/dev/null' INT TERM
show trainer trainer "$main" ${trainer[@]+"${trainer[@]}"}
show service 'reward service' "$other" ${service[@]+"${service[@]}"}
show slurm 'Slurm launchers' "$other" ${slurm[@]+"${slurm[@]}"}
status=0
wait "$main" || status=1
wait "$other" || status=1
printf '%s\n' "" "${summary[@]}"
exit $status
