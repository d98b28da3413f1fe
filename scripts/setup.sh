#!/usr/bin/env bash
# Makes .venv (trainer) and .venv-reward (reward service) from the locks in requirements/. Two environments, because
# the graders and Hydra need different versions of the same parser. Does nothing when both are up to date.
# `scripts/setup.sh reward` makes .venv-reward only. With `nemo`, `trl` or `clients` it also makes .venv-nemo, .venv-trl or
# .venv-clients: the packages of NeMo, of TRL, and of the other trainers whose clients we test, on top of .venv's, which
# they see.
#   PYTHON             the interpreter to use; otherwise python3.11, then python3.12. An environment of another
#                      version of Python is made anew
#   PYTORCH_CPU_INDEX  where torch's build without CUDA comes from when pip's own sources have none
# Exit status: 3 if no torch without CUDA was found for this Python, 1 for every other failure.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTORCH_CPU_INDEX=${PYTORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

fail() {
    echo "error: $*" >&2
    exit "${status:-1}"
}

find_python() {
    local candidates=("python3.11" "python3.12") candidate
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        # Run it: a shim of a version manager may stand for a version that is not there.
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
            >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or 3.12 with the venv module was found (tried: ${candidates[*]}): install one, on Debian" \
        "with 'apt-get install python3.11-venv', or name it with PYTHON=/path/to/python3.11."
}

fingerprint() { # of files: what a stamp holds
    cat "$@" | sha256sum | cut -d ' ' -f 1
}

install() { # ENVIRONMENT ARGUMENTS...
    local environment=$1
    shift
    "$environment/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-deps "$@"
}

install_torch() { # ENVIRONMENT: the build without CUDA, which PyPI does not have
    local version
    version=$(sed -n 's/^torch==//p' requirements/train.txt)+cpu
    install "$1" "torch==$version" 2>/dev/null ||
        install "$1" --index-url "$PYTORCH_CPU_INDEX" "torch==$version" ||
        status=3 fail "torch $version was found neither in pip's sources nor at $PYTORCH_CPU_INDEX: set PYTORCH_CPU_INDEX or" \
            "PIP_EXTRA_INDEX_URL to an index that has it."
}

check_torch() { # ENVIRONMENT
    "$1/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' ||
        fail "torch in $1 does not import, or was built for CUDA: remove $1 and run 'make setup' again."
}

has_the_version_asked_for() { # ENVIRONMENT
    local version='import sys; print(*sys.version_info[:2])'
    [ -z "${PYTHON:-}" ] || [ "$("$1/bin/python" -c "$version")" = "$("$PYTHON" -c "$version" 2>/dev/null)" ]
}

packages_of() { # ENVIRONMENT: the folder they are in
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

set_aside() { # FOLDER: an environment, which comes back if its successor cannot be made
    rm -rf "$1.before"
    mv "$1" "$1.before"
    # shellcheck disable=SC2064 # the folder's name as it is now
    trap "rm -rf '$1' && mv '$1.before' '$1'" EXIT
}

environment() { # FOLDER LOCKS...
    local folder=$1 key lock
    shift
    for lock in "$@"; do
        [ -f "$lock" ] || fail "$lock is missing: this is not a complete checkout."
    done
    key=$(fingerprint "$@" scripts/setup.sh)
    if [ "$(cat "$folder/setup-stamp" 2>/dev/null)" = "$key" ] && "$folder/bin/python" -c '' 2>/dev/null &&
        has_the_version_asked_for "$folder"; then
        return
    fi
    echo "Setting up $folder: $(cat "$@" | grep -c '==') packages, a few minutes the first time..."
    if ! "$folder/bin/python" -c 'import pip' 2>/dev/null || ! has_the_version_asked_for "$folder"; then
        local python
        python=$(find_python) || exit 1
        [ ! -d "$folder" ] || set_aside "$folder"
        "$python" -m venv "$folder"
    fi
    rm -f "$folder/setup-stamp"
    local requirements=()
    for lock in "$@"; do requirements+=(-r "$lock"); done
    [ "$folder" != .venv ] || install_torch "$folder"
    install "$folder" "${requirements[@]}" || fail "pip could not install $*; its message stands above." \
        "(pycosat is built from source: that needs a C compiler and Python's headers, on Debian gcc and python3-dev.)"
    [ "$folder" != .venv ] || check_torch "$folder"
    # The checkout itself is on the path: `python -m nemo_prorl` works from any folder, and an edit needs no build.
    pwd >"$(packages_of "$folder")/nemo_prorl.pth"
    echo "$key" >"$folder/setup-stamp"
    trap - EXIT
    rm -rf "$folder.before"
}

[ "${1:-}" = reward ] || environment .venv requirements/train.txt requirements/dev.txt
environment .venv-reward requirements/reward.txt requirements/reward-dev.txt
case ${1:-} in
    nemo | trl | clients)
        PYTHON=$PWD/.venv/bin/python environment ".venv-$1" "requirements/$1.txt"
        packages_of .venv >"$(packages_of ".venv-$1")/trainer.pth"
        ;;
esac
