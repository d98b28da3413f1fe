"""GPUs as their vendor's data sheets describe them, and the share of these peak rates that real programs reach.

Data sheets: "NVIDIA H100 Tensor Core GPU" (SXM column), "NVIDIA H200 Tensor Core GPU", "NVIDIA A100 Tensor Core GPU"
(80 GB SXM column); network adapters: "NVIDIA DGX H100" and "DGX A100" (one adapter per GPU). Arithmetic is dense bf16,
half of what the sheets print with sparsity; bandwidths of links are for one direction, half of what they print.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_prorl.config import ConfigError

GIB = 2**30

BANDWIDTH_SHARE = 0.8
"""Share of the memory's bandwidth when tensors are read contiguously."""
LINK_SHARE = 0.7
"""Share of a link's bandwidth in collectives of large tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Peak rates. Example: GPUS["h100"]"""

    name: str
    memory_gib: float
    """As CUDA reports it, which is less than on the data sheet."""
    flops: float
    """Dense bf16 operations per second."""
    memory_bytes_s: float
    nvlink_bytes_s: float
    """Bandwidth to all other GPUs of the node together, one direction."""
    network_bytes_s: float
    """Bandwidth to other nodes, one direction."""
    pcie_bytes_s: float
    """Bandwidth to the host, one direction."""


_H100 = Gpu(
    name="h100", memory_gib=79.1, flops=989.4e12, memory_bytes_s=3.35e12,
    nvlink_bytes_s=450e9, network_bytes_s=50e9, pcie_bytes_s=64e9,
)  # fmt: skip
_H200 = replace(_H100, name="h200", memory_gib=139.8, memory_bytes_s=4.8e12)
_A100 = Gpu(
    name="a100", memory_gib=79.2, flops=312e12, memory_bytes_s=2.039e12,
    nvlink_bytes_s=300e9, network_bytes_s=25e9, pcie_bytes_s=32e9,
)  # fmt: skip
GPUS = {gpu.name: gpu for gpu in (_H100, _H200, _A100)}


def gpu_of(name: str) -> Gpu:
    """Returns the GPU of this name. Raises ConfigError if it is unknown."""
    if name not in GPUS:
        raise ConfigError(f"--gpu={name} is not known: write one of {', '.join(GPUS)}.")
    return GPUS[name]
