"""Environment variables that torch and vLLM read once, while they are imported. Standard library only.

The command line calls `prepare` before it imports anything else. What the user has already set is kept.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from pathlib import Path

ALWAYS = {
    # The engine lives in our process: weights reach it by reference, and no child outlives us.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # vLLM logs dozens of lines a start-up, and whole batches when a step fails; our own errors say what matters.
    "VLLM_LOGGING_LEVEL": "ERROR",
    # No telemetry from a training job.
    "VLLM_NO_USAGE_STATS": "1",
    # Checkpoints are local folders; a lookup on the hub only delays or fails an isolated node.
    "HF_HUB_OFFLINE": "1",
    # Loading a model takes a blink or a batch job: no progress bars between the lines of the run.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # libtorch reports on NUMA memory policies at every start.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # Forked graders and loaders make fast tokenizers warn about a pool that we do not need.
    "TOKENIZERS_PARALLELISM": "false",
}

CPU_ONLY = {
    # One thread is the fastest for small models and makes fp32 samples independent of the batch they are in.
    # libgomp reads it while it loads: setting it later leaves its pool as it is. Policies raise it with
    # torch.set_num_threads.
    "OMP_NUM_THREADS": "1",
    # Idle threads of such a pool sleep; by default they spin and take the cores from everybody else.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Three helpers of vLLM are compiled even in eager mode: seconds at the first sample, and a crash without g++.
    "TORCHDYNAMO_DISABLE": "1",
    # vLLM pins its threads to the first cores: every colocated rank to the same ones.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The runner that these settings were tested with, also where triton-cpu is installed.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


CHATTY = ("torch", "torch._library", "megatron", "vllm", "transformers", "lightning")
"""Packages whose warnings are about each other's versions and missing accelerators. torch sets the level of its own
logger while it is imported, not that of the ones below it."""


def has_cuda() -> bool:
    """Whether the machine shows this process an NVIDIA GPU that its torch can use, without importing torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    return not hidden and not cpu_build and any(Path("/dev").glob("nvidia[0-9]*"))


def prepare() -> None:
    """Sets what is not set yet, and silences what the engines say of themselves and a user cannot act on. No effect on
    modules that were imported before."""
    warnings.filterwarnings("ignore", module=f"({'|'.join(CHATTY)})(\\..*)?$")
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name, value in (ALWAYS if has_cuda() else ALWAYS | CPU_ONLY).items():
        os.environ.setdefault(name, value)


def order_launches(*, tensor_parallel: int, ahead: bool) -> None:
    """One queue of launches to the GPU, from which kernels begin in their order: Megatron relies on it to overlap the
    communication of tensor parallelism. A sampler beside the policy would wait there behind all that the policy has
    launched, hence with `ahead` CUDA's own number of queues. No effect once CUDA is initialised."""
    if tensor_parallel > 1 and not ahead:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
