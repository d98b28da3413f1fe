"""Reads NCCL's log to find out which network it uses between nodes: if InfiniBand fails, it silently uses TCP.

NCCL writes the log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET to NCCL_DEBUG_FILE; the launchers set all three.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.config.layout import is_one_machine

SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
_REASONS = {
    "Failed to open libibverbs": "libibverbs could not be loaded",
    "NCCL_IB_DISABLE set by environment to 1": "NCCL_IB_DISABLE=1 is set",
    "NET/IB : No device found": "NCCL found no InfiniBand device",
}
"""Text in the log -> reason why NCCL does not use InfiniBand, the most specific first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNetwork:
    """Example: NcclNetwork(name="IB", devices=("mlx5_0:1/IB",), has_gpu_direct=True, version="2.29.7+cuda13.0")"""

    name: str
    """NCCL's name: IB (InfiniBand or RoCE), Socket (TCP), or that of a plug-in, such as AWS Libfabric."""
    devices: tuple[str, ...] = ()
    """Adapters with port and kind, or network interfaces."""
    has_gpu_direct: bool = False
    """Whether adapters read the GPU's memory directly (GPUDirect RDMA). Known once ranks on two nodes have exchanged
    data."""
    version: str = ""
    """NCCL's version."""
    why_not_ib: str = ""
    """Why the network is not IB; empty if the log does not say."""

    @property
    def sentence(self) -> str:
        network = {"Socket": "TCP", "IB": "InfiniBand"}.get(self.name, self.name)
        if self.name == "IB" and all(device.endswith("/RoCE") for device in self.devices):
            network = "RoCE"
        devices = f" ({', '.join(self.devices)})" if self.devices else ""
        detail = " with GPUDirect RDMA" if self.has_gpu_direct else ""
        if self.why_not_ib:
            detail = f", because {self.why_not_ib}"
        return f"NCCL{self.version and f' {self.version}'} uses {network}{devices} between nodes{detail}"


def parse_nccl_log(text: str) -> NcclNetwork | None:
    """Returns the network of the last communicator in a log; None if NCCL has not chosen one."""
    names = re.findall(r"NCCL INFO Using network (.+)", text)
    if not names:
        return None
    name = names[-1].strip()
    lists = re.findall(rf"NCCL INFO NET/{re.escape(name)} : Using (.*)", text)
    devices = re.findall(r"\[\d+\](\S+)", lists[-1].partition(";")[0]) if lists else []
    if name == "Socket":
        devices = [device.partition(":")[0] for device in devices]
    versions = re.findall(r"NCCL version (\S+)", text)
    reasons = [why for mark, why in _REASONS.items() if mark in text and name == "Socket"]
    return NcclNetwork(
        name=name,
        devices=tuple(devices),
        has_gpu_direct=bool(re.search(rf" via NET/{re.escape(name)}/\S*GDRDMA", text)),
        version=versions[-1] if versions else "",
        why_not_ib=reasons[0] if reasons else "",
    )


def network_of_this_process() -> NcclNetwork | None:
    """Returns the network of this process; None if NCCL has written no log or not connected ranks yet. Also None if all
    ranks are on one node, where NCCL chooses a network, often TCP, but sends nothing over it."""
    log = os.environ.get("NCCL_DEBUG_FILE")
    if is_one_machine() or not log:
        return None
    host = socket.gethostname().partition(".")[0]
    file = Path(log.replace("%h", host).replace("%p", str(os.getpid())))  # as NCCL replaces them
    try:
        return parse_nccl_log(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
