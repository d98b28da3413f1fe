"""Environment variables that torch and vLLM read once, while they are imported, and the choice of CPU or GPU. Standard
library only.

The command line calls `choose_device` and `prepare` before it imports anything else. What the user has already set is
kept.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import resource
import sys
import warnings
from pathlib import Path

from nemo_prorl.config import ConfigError, Device

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
    # gloo connects two ranks when they first talk. By default every rank opens sockets to all others in every one of
    # Megatron's groups: a hundred ranks run out of file descriptors.
    "TORCH_GLOO_LAZY_INIT": "1",
    # torch notes this many of each rank's latest collectives; the watchdog writes them down when a run hangs.
    "TORCH_FR_BUFFER_SIZE": "2000",
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

CUDA_ONLY = {
    # For fp32 models vLLM takes its Triton attention, and Triton multiplies fp32 numbers as TF32 by default: with ten
    # bits of mantissa, where the trainer has 23. 16-bit models, and kernels that name a precision, are not affected.
    "TRITON_F32_DEFAULT": "ieee",
}


OPEN_FILES = 65_536
"""Enough for a rank among thousands."""

CHATTY = ("torch", "torch._library", "megatron", "vllm", "transformers", "lightning")
"""Packages whose warnings are about each other's versions and missing accelerators. torch sets the level of its own
logger while it is imported, not that of the ones below it."""


def has_cuda() -> bool:
    """Whether this process may use an NVIDIA GPU of the machine, and its torch was built for CUDA; without importing
    torch. `engines.device.check_gpus` then finds out whether torch can really use it."""
    return not _gpus_are_hidden() and not _is_cpu_build() and _has_device_files()


def choose_device(device: Device) -> None:
    """Makes this process compute on `device`; to be called before torch is imported.

    Raises ConfigError when GPUs are wanted, or were given to this job by Slurm, and torch was built without CUDA or the
    node shows no GPU: such a job would train on the CPU for as long as its time limit allows.
    """
    if device is Device.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    given = _num_allocated_gpus()
    if has_cuda() or (device is Device.auto and not given):
        return
    wanted = f"Slurm gave this job {given} GPU(s) a node" if given else "trainer.device=cuda asks for a GPU"
    escape = "write trainer.device=cpu to train on the CPU"
    if _is_cpu_build():
        raise ConfigError(
            f"{wanted}, but torch {importlib.metadata.version('torch')} in {sys.prefix} was built without CUDA: name "
            f"an interpreter whose torch has it (PYTHON=... in slurm/site.env, docs/cluster.md), or {escape}."
        )
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} hides them"
    raise ConfigError(
        f"{wanted}, but {hidden if _gpus_are_hidden() else 'there is no /dev/nvidia0 here'}: mend that, or {escape}."
    )


def _num_allocated_gpus() -> int:
    """GPUs of this node that belong to the Slurm job or step in which this process runs."""
    if "SLURM_JOB_ID" not in os.environ:
        return 0
    return int(os.environ.get("SLURM_GPUS_ON_NODE", "").rpartition(":")[2] or 0)  # "8", or "gpu:h100:8"


def _gpus_are_hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")


def _is_cpu_build() -> bool:
    return importlib.metadata.version("torch").endswith("+cpu")


def _has_device_files() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def prepare() -> None:
    """Sets the variables that are not set yet, raises the limit of open files, and silences what the engines say of
    themselves and a user cannot act on. No effect on modules that were imported before."""
    warnings.filterwarnings("ignore", module=f"({'|'.join(CHATTY)})(\\..*)?$")
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name, value in (ALWAYS | (CUDA_ONLY if has_cuda() else CPU_ONLY)).items():
        os.environ.setdefault(name, value)
    _allow_open_files()


def _allow_open_files() -> None:
    """Raises this process's limit of open files, sockets included: login shells, whose limits Slurm hands on, often
    allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def order_launches(*, tensor_parallel: int, ahead: bool) -> None:
    """One queue of launches to the GPU, from which kernels begin in their order: Megatron relies on it to overlap the
    communication of tensor parallelism. A sampler beside the policy would wait there behind all that the policy has
    launched, hence with `ahead` CUDA's own number of queues. No effect once CUDA is initialised."""
    if tensor_parallel > 1 and not ahead:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def let_segments_grow(*, sampler_tensor_parallel: int) -> None:
    """Makes torch's allocator grow its segments instead of adding new ones. Packed passes differ in their number of
    tokens, so that fixed segments which one pass leaves behind are often of no use to the next.

    vLLM switches this off for its own memory pools. It stays off for engines of several ranks, whose custom all-reduce
    shares memory by CUDA IPC. No effect on CPU, or once CUDA is initialised."""
    if sampler_tensor_parallel == 1 and has_cuda() and "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
