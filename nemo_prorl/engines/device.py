"""Whether torch can use the GPUs that the machine has. Imports torch; `environment.choose_device` comes before it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.environment import has_cuda

DRIVER_FILE = Path("/proc/driver/nvidia/version")


def check_gpus() -> None:
    """Raises ConfigError when there are GPUs which torch was built for but cannot use (usually because the driver is
    older than torch's CUDA), or fewer of them than ranks on this node."""
    if not has_cuda():
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
            f"LOCAL_RANK={local_rank}, but torch sees {num_gpus} GPU(s) on this node: start one rank a GPU, and let "
            "every rank see all GPUs of its node (srun --gpu-bind=none)."
        )


def in_use() -> dict[str, str]:
    """Describes this rank's device and the libraries that drive it, as torch reports them."""
    if not torch.cuda.is_available():
        return {"device": f"CPU {platform.machine()}", "torch": torch.__version__}
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    return {
        "device": f"{torch.cuda.get_device_name()}, capability {capability}",
        "driver": driver_version(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
    }


def driver_version() -> str:
    """Version of NVIDIA's kernel driver, such as "580.65.06"; "unknown" where it does not say."""
    try:
        text = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return found[1] if found else "unknown"
