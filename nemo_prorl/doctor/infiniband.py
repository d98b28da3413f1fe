"""Checks whether NCCL can use InfiniBand. Where libibverbs cannot be loaded, NCCL silently uses TCP."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning

LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1")
"""Libraries that NCCL opens by name: verbs, and the connection manager that providers need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an adapter. Example: Port(device="mlx5_0", state="ACTIVE", gbit_s=400.0)"""

    device: str
    state: str
    gbit_s: float

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandFacts:
    """The machine's ports, and what this process needs to use them."""

    ports: Sequence[Port] = ()
    missing_libraries: Sequence[str] = ()
    """Those of LIBRARIES that cannot be loaded."""
    has_device_files: bool = True
    """Whether /dev/infiniband/uverbs* exist. A container sees the ports in /sys even if it was not given the
    devices."""

    @property
    def fastest_gbit_s(self) -> float:
        """The rate of the fastest active port; 0 if there is none."""
        return max((port.gbit_s for port in self.ports if port.is_active), default=0.0)


def read_infiniband(root: Path = Path("/")) -> InfinibandFacts:
    """Returns the ports of this machine. root: the root of the file system, another one in tests."""
    ports = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        state = _text(port / "state").rpartition(" ")[2]  # of, for example, "4: ACTIVE"
        rate = re.match(r"[\d.]+", _text(port / "rate"))  # of, for example, "400 Gb/sec (4X NDR)"
        ports.append(Port(device=port.parts[-3], state=state, gbit_s=float(rate[0]) if rate else 0.0))
    missing = []
    for library in LIBRARIES if ports else ():
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(library)
    has_device_files = any(root.glob("dev/infiniband/uverbs*"))
    return InfinibandFacts(ports=ports, missing_libraries=missing, has_device_files=has_device_files)


def judge_infiniband(facts: InfinibandFacts) -> Finding:
    """Returns whether NCCL can use the ports. It cannot if libraries or device files are missing."""
    name = "InfiniBand"
    if not facts.ports:
        return not_applicable(name, "this node has no adapter, so NCCL uses TCP between nodes")
    active = [port for port in facts.ports if port.is_active]
    found = f"{len(active)} of {len(facts.ports)} ports are active"
    if not active:
        return warning(name, found, "ask the administrator about the cables and the subnet manager")
    if facts.missing_libraries:
        advice = "install libibverbs1, ibverbs-providers and librdmacm1 in the trainer's image or on the node"
        return failure(name, f"{found}, but {', '.join(facts.missing_libraries)} cannot be loaded", advice)
    if not facts.has_device_files:
        advice = "pass the devices to the container (MELLANOX_VISIBLE_DEVICES=all for enroot)"
        return failure(name, f"{found}, but there is no /dev/infiniband/uverbs*", advice)
    return ok(name, f"{found}, the fastest with {facts.fastest_gbit_s:.0f} Gbit/s")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
