"""Checks whether torch can use the machine's GPUs, and reports what a run computes with. Imports torch, so
`environment.choose_device` has to be called before this module is imported."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.environment import has_cuda, samples_on_gpus_only
from nemo_prorl.engines.interface import Policy, Sampler
from nemo_prorl.run_folder.storage import ENGINES_FILE, replace_text

CPU_FILE = Path("/proc/cpuinfo")
DRIVER_FILE = Path("/proc/driver/nvidia/version")


def check_gpus(*, samples: bool = True) -> None:
    """Raises ConfigError if torch was built for CUDA but cannot use the node's GPUs (usually because the driver is
    older than torch's CUDA), or if the node has fewer GPUs than ranks. samples: refuses a vLLM that was built for CUDA
    where no GPU is used, too."""
    if not has_cuda():
        if samples and samples_on_gpus_only():
            raise ConfigError(
                f"vLLM in {sys.prefix} was built for CUDA, and no GPU is used here: start on a GPU node, without "
                "trainer.device=cpu, or with the environment for CPUs that `make setup` installs."
            )
        return
    if not torch.cuda.is_available():
        raise ConfigError(
            f"this node has GPUs, but torch {torch.__version__}, which was built for CUDA {torch.version.cuda}, cannot "
            f"use them with NVIDIA driver {driver_version()}: CUDA 13 needs driver 580 or newer (or the cuda-compat "
            "package); use such a node or a torch built for an older CUDA, or write trainer.device=cpu to train on the "
            "CPU."
        )
    local_rank, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise ConfigError(
            f"LOCAL_RANK={local_rank}, but torch sees {num_gpus} GPU(s) on this node: start one rank per GPU, and let "
            "every rank see all GPUs of its node (srun --gpu-bind=none)."
        )


def note_engines(policy: Policy, sampler: Sampler, run_dir: Path, say: Callable[[str], None]) -> None:
    """Prints what this rank computes with as one line, by `say`, and writes it to RUN/engines.json."""
    facts = {**in_use(), **policy.in_use(), **sampler.in_use()}
    say("in use: " + "; ".join(f"{name}: {value}" for name, value in facts.items()))
    replace_text(run_dir / ENGINES_FILE, json.dumps(facts, indent=1) + "\n")


def in_use() -> dict[str, str]:
    """Describes this rank's device and the libraries that drive it, as torch reports them."""
    if not torch.cuda.is_available():
        return {"device": f"CPU {processor()}", "torch": torch.__version__}
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    return {
        "device": f"{torch.cuda.get_device_name()}, capability {capability}",
        "driver": driver_version(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
    }


def processor() -> str:
    """Returns the name of the CPU's model, or else of its architecture. Equal sums need the same one."""
    try:
        found = re.search(r"^model name\s*: (.+)$", CPU_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def driver_version() -> str:
    """Returns the version of NVIDIA's kernel driver, such as "580.65.06", or "unknown"."""
    try:
        text = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return found[1] if found else "unknown"
