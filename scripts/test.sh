#!/usr/bin/env bash
# Runs the trainer's tests in .venv and the reward service's (tests/reward) in .venv-reward; fails when either does.
# Arguments go to pytest. Paths among them select the tests, each in the environment it belongs to.
#
# Both run at the same time: each waits a good deal, for Slurm or for sandboxes. The trainer's are shown as they run,
# the service's after them.
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

run() { # ENVIRONMENT TESTS...
    local environment=$1 code=0
    shift
    # What failed last time (--lf) is remembered for each environment by itself.
    "$environment/bin/python" -m pytest -o "cache_dir=.pytest_cache/$environment" "$@" \
        ${options[@]+"${options[@]}"} 2>&1 || code=$?
    # pytest's 5 is "no test selected": right when options such as -k chose tests of the other environment only.
    [ "$code" -eq 0 ] || { [ "$code" -eq 5 ] && [ ${#options[@]} -gt 0 ]; }
}

status=0 summary=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
if [ ${#service[@]} -gt 0 ]; then
    set -m # a process group of its own: bash lets no other kind of background process notice Ctrl-C
    run .venv-reward "${service[@]}" >"$logs/service" </dev/null &
    set +m
    background=$!
    trap 'kill -INT -- "-$background" 2>/dev/null' INT TERM
fi
if [ ${#trainer[@]} -gt 0 ]; then
    echo "=== the trainer's tests$([ ${#service[@]} -eq 0 ] || echo ', and the reward service'\''s at the same time')"
    run .venv "${trainer[@]}" | tee "$logs/trainer" || status=1
    summary+=("trainer: $(grep . "$logs/trainer" | tail -n 1)")
fi
if [ ${#service[@]} -gt 0 ]; then
    echo "=== the reward service's tests"
    tail -n +1 -f --pid="$background" "$logs/service"
    wait "$background" || status=1
    summary+=("reward service: $(grep . "$logs/service" | tail -n 1)")
fi
printf '%s\n' "" "${summary[@]}"
exit $status
