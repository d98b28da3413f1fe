#!/usr/bin/env bash
# Runs the policy with Transformer Engine's layers on the CPU, with emulated kernels (tests/gpu/emulated): its own tests,
# and the tests of the policy, of its layouts and of its checkpoints.
#   scripts/test_te.sh .venv ARGUMENTS        with the Python of Transformer Engine and Triton beside it
#   scripts/test_te.sh .venv-cuda ARGUMENTS   with what is in it; then also what Triton and vLLM's wheel for CUDA make of
#                                             our kernels and arguments
# ARGUMENTS go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
environment=$1
shift
unset PYTHONDONTWRITEBYTECODE
[ "$environment" != .venv ] || export PYTHONPATH=$PWD/.venv-te:$PWD/.venv-triton
tests=(
    tests/gpu/emulated
    tests/engines/megatron/test_build.py
    tests/engines/megatron/test_checkpoint.py
    tests/engines/megatron/test_conversion.py
    tests/engines/megatron/test_families.py
    tests/engines/megatron/test_low_rank.py
    tests/engines/megatron/test_parallel.py
    tests/engines/megatron/test_policy.py
    tests/test_export.py
    # These start Python anew, without the emulation, are about a machine without a GPU, or count what kernels read.
    --deselect tests/engines/megatron/test_checkpoint.py::test_a_full_disk_in_the_middle_of_a_real_save
    --deselect tests/engines/megatron/test_conversion.py::test_an_export_holds_a_file_and_not_the_model
    --deselect tests/test_export.py::test_push
    --deselect tests/engines/megatron/test_policy.py::test_the_results_of_all_passes_are_copied_at_once
    --deselect tests/engines/megatron/test_policy.py::test_passes_use_the_threads_that_they_are_given_and_nothing_else_does
)
status=0
"$environment/bin/python" -m pytest -p tests.gpu.emulated.plugin -q "${tests[@]}" "$@" || status=1
if [ "$environment" = .venv-cuda ]; then
    # On a machine without a driver, setup.sh has made a stand-in for its library.
    [ ! -d .venv-cuda/libcuda-stub ] || export LD_LIBRARY_PATH=$PWD/.venv-cuda/libcuda-stub:${LD_LIBRARY_PATH:-}
    .venv-cuda/bin/python -m pytest -q tests/gpu/test_compiling.py tests/gpu/test_head_of_cuda.py \
        tests/gpu/test_kernel.py tests/gpu/test_vllm_cuda.py \
        "$@" || status=1
fi
exit $status
