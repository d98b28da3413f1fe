#!/usr/bin/env bash
# Makes .venv, for trainer and reward service, from the locks in requirements/. Does nothing when it is up to date.
#   scripts/setup.sh [cpu]     .venv
#   scripts/setup.sh cuda      .venv-cuda, for GPUs; it needs no GPU to be made
#   scripts/setup.sh nemo      .venv and .venv-nemo, likewise trl, clients, papers: the packages of NeMo, of TRL, of the
#                              other trainers whose clients we test, and of the papers' verifiers, on top of .venv's,
#                              which they see
#   PYTHON             the interpreter to use; otherwise python3.11, then python3.12, and python3.12 for .venv-cuda. An
#                      environment of another version of Python is made anew
#   TOOLS=no           leaves out what only tests and checks need, as in the images
#   MAX_JOBS           processes that build Transformer Engine's extension, each about 1.5 GB; otherwise one per core
#   PYTORCH_CPU_INDEX  where torch's build without CUDA comes from when pip's own sources have none
# Exit status: 3 if no torch of the right kind was found for this Python, 1 for every other failure.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTORCH_CPU_INDEX=${PYTORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

fail() {
    echo "error: $*" >&2
    exit "${status:-1}"
}

find_python() { # VERSIONS...: prints the first that is there, of PYTHON alone if it is set
    local candidates=("${@/#/python}") candidate versions="$*"
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        # Run it: a shim of a version manager may stand for a version that is not there.
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' \
            "$@" >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python ${versions// / or } with the venv module was found (tried: ${candidates[*]}): install one, on" \
        "Debian with 'apt-get install python$1-venv', or name it with PYTHON=/path/to/python$1."
}

fingerprint() { # of files: what a stamp holds
    cat "$@" | sha256sum | cut -d ' ' -f 1
}

install() { # ENVIRONMENT ARGUMENTS...
    local environment=$1
    shift
    "$environment/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-deps "$@"
}

version_of() { # PACKAGE LOCK
    sed -n "s/^$1==//p" "requirements/$2.txt"
}

install_torch() { # ENVIRONMENT: the build without CUDA, which PyPI does not have
    local version
    version=$(version_of torch train)+cpu
    install "$1" "torch==$version" 2>/dev/null ||
        install "$1" --index-url "$PYTORCH_CPU_INDEX" "torch==$version" ||
        status=3 fail "torch $version was found neither in pip's sources nor at $PYTORCH_CPU_INDEX: set PYTORCH_CPU_INDEX or" \
            "PIP_EXTRA_INDEX_URL to an index that has it."
}

install_torch_for_cuda() { # ENVIRONMENT: not the build without CUDA, which pip prefers where a source has it
    local version
    version=$(version_of torch cuda)
    install "$1" "torch==$version,!=$version+cpu" ||
        status=3 fail "pip's sources have no torch $version for CUDA; its message stands above."
}

# Transformer Engine's extension for torch: C++ without kernels, which are in transformer_engine_cu13. pip takes a wheel
# from its sources, or builds one with the compiler and headers that the packages of CUDA have.
install_transformer_engine() { # ENVIRONMENT
    echo "Transformer Engine's extension: if no wheel is found, building it takes about 40 minutes of one core..."
    PATH=$PWD/$1/bin:$PATH CUDA_HOME=$(packages_of "$1")/nvidia/cu13 MAX_JOBS=${MAX_JOBS:-$(nproc)} \
        NVTE_BUILD_USE_NVIDIA_WHEELS=1 NVTE_PYTORCH_FORCE_BUILD=TRUE \
        install "$1" --no-build-isolation "transformer_engine_torch==$(version_of transformer_engine_torch cuda)" ||
        fail "pip could not build or install Transformer Engine's extension; its message stands above."
}

check_torch() { # ENVIRONMENT
    "$1/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' ||
        fail "torch in $1 does not import, or was built for CUDA: remove $1 and run 'make setup' again."
}

# A driver without a GPU: each function that a library of torch or vLLM asks of it returns CUDA_ERROR_NO_DEVICE.
make_driver_stub() { # ENVIRONMENT
    local library
    mkdir -p "$1/libcuda-stub"
    find "$(packages_of "$1")"/{torch,vllm} -type f -name '*.so*' | while read -r library; do
        [[ $(readelf -d "$library") != *'[libcuda.so'* ]] || nm -D --undefined-only "$library"
    done | grep -oE '\<cu[A-Z]\w*$' | sort -u | sed 's/.*/int &(void) { return 100; }/' |
        cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$1/libcuda-stub/libcuda.so.1" -x c -
}

check_imports() { # ENVIRONMENT: imports what a run imports, in its order
    local driver="the driver's libcuda.so.1" libraries=${LD_LIBRARY_PATH:-} output
    if ! "$1/bin/python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
        make_driver_stub "$1"
        libraries=$PWD/$1/libcuda-stub${libraries:+:$libraries}
        driver="a stand-in for libcuda.so.1 in $1/libcuda-stub, because this machine has no NVIDIA driver"
    fi
    output=$(LD_LIBRARY_PATH=$libraries "$1/bin/python" -c \
        'import torch, transformer_engine.pytorch, megatron.core, vllm._C_stable_libtorch, torchvision, flashinfer
import vllm.model_executor.warmup.kernel_warmup, vllm.model_executor.warmup.minimax_m3_msa_warmup' 2>&1) || {
        echo "$output" >&2
        fail "$1 does not import; the error stands above. If LD_LIBRARY_PATH or CUDA_HOME names another CUDA," \
            "unset it; otherwise remove $1 and run 'make setup-cuda' again."
    }
    echo "$1: torch, Transformer Engine, Megatron-Core and vLLM can be imported, with $driver."
}

check_compiler() { # PYTHON
    local headers
    headers=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    echo '#include <Python.h>' | c++ -x c++ -fsyntax-only "-I$headers" - 2>/dev/null ||
        fail "no C++ compiler that finds Python's headers in $headers: install both, on Debian with 'apt-get install g++" \
            "python3.12-dev'. Triton needs them in every run, too."
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
    local folder=$1 key lock versions=(3.11 3.12)
    shift
    for lock in "$@"; do
        [ -f "$lock" ] || fail "$lock is missing: this is not a complete checkout."
    done
    key=$(fingerprint "$@" scripts/setup.sh)
    if [ "$(cat "$folder/setup-stamp" 2>/dev/null)" = "$key" ] && "$folder/bin/python" -c '' 2>/dev/null &&
        has_the_version_asked_for "$folder"; then
        return
    fi
    [ "$folder" != .venv-cuda ] || versions=(3.12)
    echo "Setting up $folder: $(cat "$@" | grep -c '==') packages, a few minutes the first time..."
    if ! "$folder/bin/python" -c 'import pip' 2>/dev/null || ! has_the_version_asked_for "$folder"; then
        local python
        python=$(find_python "${versions[@]}") || exit 1
        [ "$folder" != .venv-cuda ] || check_compiler "$python"
        [ ! -d "$folder" ] || set_aside "$folder"
        "$python" -m venv "$folder"
    fi
    rm -f "$folder/setup-stamp"
    case $folder in
        .venv) install_torch "$folder" ;;
        .venv-cuda) install_torch_for_cuda "$folder" ;;
    esac
    install "$folder" -r <(cat "$@" | grep -v '^transformer_engine_torch==') || fail "pip could not install $*; its message stands above." \
        "(pycosat is built from source: that needs a C compiler and Python's headers, on Debian gcc and python3-dev.)"
    case $folder in
        .venv) check_torch "$folder" ;;
        .venv-cuda)
            install_transformer_engine "$folder"
            check_imports "$folder"
            ;;
    esac
    # The checkout itself is on the path: `python -m nemo_prorl` works from any folder, and an edit needs no build.
    pwd >"$(packages_of "$folder")/nemo_prorl.pth"
    echo "$key" >"$folder/setup-stamp"
    trap - EXIT
    rm -rf "$folder.before"
}

tools() { # LOCK: unless the tools are left out
    [ "${TOOLS:-}" = no ] || echo "requirements/$1.txt"
}

# shellcheck disable=SC2046 # no word, or one without spaces
case ${1:-} in
    "" | cpu | nemo | trl | clients | papers) environment .venv requirements/train.txt $(tools dev) ;;
    cuda) environment .venv-cuda requirements/cuda.txt $(tools dev) ;;
    *) fail "'$1' is no environment: write nothing, or one of cpu, cuda, nemo, trl, clients, papers." ;;
esac
case ${1:-} in
    nemo | trl | clients | papers)
        PYTHON=$PWD/.venv/bin/python environment ".venv-$1" "requirements/$1.txt"
        packages_of .venv >"$(packages_of ".venv-$1")/trainer.pth"
        ;;
esac
