#!/usr/bin/env bash
# Runs the tests: those of the reward service (tests/reward) in .venv-reward, then all others in .venv. Fails if any
# fails. Arguments go to pytest; each path among them runs in the environment that it belongs to.
#
# pytest-xdist runs a test file on each processor (tests/conftest.py says in which order). `-n 4` among the arguments
# sets the number of workers, and `-n 0` switches them off, for example for --pdb.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

options=() trainer=() service=()
for argument in "$@"; do
    if [[ $argument != tests* && $argument != ./tests* ]] || [ ! -e "${argument%%::*}" ]; then
        options+=("$argument")
    else
        case ${argument#./} in
            tests/reward | tests/reward/*) service+=("$argument") ;;
            *) trainer+=("$argument") ;;
        esac
    fi
done
if [ $((${#trainer[@]} + ${#service[@]})) -eq 0 ]; then
    trainer=(tests --ignore=tests/reward)
    service=(tests/reward)
fi

# Without bytecode, each worker would compile all tests anew, which takes 13 s.
unset PYTHONDONTWRITEBYTECODE

log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM # bash runs this after pytest, which ends at Ctrl-C by itself
status=0 summary=()

run() { # TITLE CACHE ENVIRONMENT TESTS...
    local title=$1 cache=$2 environment=$3 code
    shift 3
    [ $# -gt 0 ] || return 0
    printf '=== the tests of the %s\n' "$title"
    # A cache per part, so that --lf selects what failed last time in that part. tee must outlive Ctrl-C, because pytest
    # still prints then.
    "$environment/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder \
        -o "cache_dir=.pytest_cache/$cache" "$@" ${options[@]+"${options[@]}"} | tee -i "$log"
    code=${PIPESTATUS[0]}
    summary+=("$title: $(grep . "$log" | tail -n 1)")
    # 5 is pytest's "no test selected", which is no failure if options such as -k select tests of the other part only.
    [ "$code" -eq 0 ] || { [ "$code" -eq 5 ] && [ ${#options[@]} -gt 0 ]; } || status=1
}

run 'reward service' service .venv-reward ${service[@]+"${service[@]}"}
run trainer trainer .venv ${trainer[@]+"${trainer[@]}"}
printf '%s\n' "" "${summary[@]}"
exit $status
