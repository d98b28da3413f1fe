"""Checks the network between the nodes of a job: connections, the speed of an all-reduce, and the nodes' clocks. Run as
a program, one per node, meets the others at MASTER_ADDR:MASTER_PORT and prints what it found as JSON."""

from __future__ import annotations

import datetime
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.doctor.children import facts_of_child, start_child
from nemo_prorl.doctor.report import Finding, failure, not_applicable, ok, warning

if TYPE_CHECKING:
    import torch

    from nemo_prorl.cluster.nccl_log import NcclNetwork

MEET_S = 90.0
"""Time for which a node waits for the others, which import torch meanwhile; all have written their local findings."""
TIMEOUT_S = 240.0
"""Time limit of the whole test, including the import of torch."""
GLOO_BYTES, NCCL_BYTES = 64 << 20, 256 << 20
NUM_REPEATS = 5
MIN_FRACTION = 0.4
"""Required fraction of the fastest adapter's rate, such as 20 GB/s with 400 Gbit/s. NCCL reaches most of
the rate over InfiniBand, and a small part of it over TCP."""
MIN_GLOO_BYTES_S = 100e6
"""The rate of a 1 Gbit/s network. Below it, exchanging rollouts takes a noticeable part of a step."""
MAX_CLOCK_S, WRONG_CLOCK_S = 2.0, 60.0
"""Differences above which there is a warning, and above which a run would misjudge the end of its Slurm job and save
too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """What one node measured. Rates are bus bandwidths, which do not depend on the number of nodes n: bytes of the
    tensor x 2 (n - 1) / n / seconds (nccl-tests, doc/PERFORMANCE.md)."""

    refusal: str = ""
    """Why this node could not communicate with the others; empty if it could."""
    missing: list[int] = field(default_factory=list)
    """Indices of nodes that did not connect."""
    interface: str = ""
    """The interface that gloo was told to use; empty if it chose one itself."""
    gloo_bytes_s: float = 0.0
    nccl_bytes_s: float = 0.0
    """Rate of one GPU per node; 0 if a node has none."""
    uses_tcp: bool = False
    """Whether NCCL uses TCP."""
    nccl_network: str = ""
    """A sentence that describes the network NCCL uses; empty if NCCL was not used."""
    clock_s: float = 0.0
    """Difference between the latest and the earliest clock."""


def infiniband_gbit_s(root: Path = Path("/")) -> list[float]:
    """Returns the rate of each InfiniBand port of this node, 0 for one that is not active. root: the root of the file
    system, another one in tests."""
    rates = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        with suppress(OSError):
            is_active = "ACTIVE" in (port / "state").read_text(encoding="utf-8").split()  # "4: ACTIVE"
            rate = re.match(r"[\d.]+", (port / "rate").read_text(encoding="utf-8"))  # "400 Gb/sec (4X NDR)"
            rates.append(float(rate[0]) if is_active and rate else 0.0)
    return rates


def judge_network(facts: NetworkFacts, *, names: Sequence[str], infiniband: Sequence[float]) -> list[Finding]:
    """Returns the findings about speed and clocks. names: names of the nodes, by index. infiniband: what
    `infiniband_gbit_s` returns."""
    if facts.refusal:
        advice = "look for a firewall, or name the right interface: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
        if "EADDRINUSE" in facts.refusal:  # a launcher looks for this name, and tries another port
            advice = "the port is in use by another program: write another MASTER_PORT"
        return [failure("network", facts.refusal, advice)]
    if facts.missing:
        missing = ", ".join(names[index] for index in facts.missing)
        return [not_applicable("network", f"not measured: {missing} did not connect")]
    found, advice = f"they differ by {facts.clock_s:.2f} s", "synchronise the clocks (chrony, NTP)"
    clocks = ok("clocks", found)
    if facts.clock_s > WRONG_CLOCK_S:
        clocks = failure("clocks", f"{found}: this run would misjudge when its job ends", advice)
    elif facts.clock_s > MAX_CLOCK_S:
        clocks = warning("clocks", found, advice)
    return [_speed(facts, len(names), infiniband), clocks]


def _speed(facts: NetworkFacts, num_nodes: int, infiniband: Sequence[float]) -> Finding:
    gloo = f"gloo {facts.gloo_bytes_s / 1e9:.2f} GB/s over {facts.interface or 'its default interface'}"
    nccl = f"NCCL {facts.nccl_bytes_s / 1e9:.1f} GB/s per GPU" if facts.nccl_bytes_s else ""
    found = "; ".join(filter(None, [f"{num_nodes} nodes connect", gloo, nccl, facts.nccl_network]))
    fastest = max(infiniband, default=0.0) / 8  # GB/s
    if facts.nccl_bytes_s:
        if facts.nccl_bytes_s < MIN_FRACTION * fastest * 1e9 or (facts.uses_tcp and fastest):
            advice = (
                "find out what keeps NCCL from using InfiniBand, or name its adapters (NCCL_IB_HCA); "
                "DOCTOR_ALLOW=network trains nevertheless"
            )
            return failure("network", f"{found}; this node's fastest adapter has {fastest:.0f} GB/s", advice)
        if infiniband and not fastest:
            advice = "ask the administrator about the cables and the subnet manager"
            return warning("network", f"{found}; no InfiniBand port of this node is active", advice)
    if facts.gloo_bytes_s < MIN_GLOO_BYTES_S:
        return warning("network", found, "name a faster interface: GLOO_SOCKET_IFNAME in slurm/site.env")
    return ok("network", found)


def measure_network(index: int, num_nodes: int) -> NetworkFacts:
    """Returns what this node measures together with the others, in a process of its own. All nodes have to call it at
    about the same time."""
    ranks = {"RANK": str(index), "WORLD_SIZE": str(num_nodes), "LOCAL_RANK": "0"}
    return facts_of_child(
        start_child(__name__, environment=os.environ | ranks),
        NetworkFacts,
        limit_s=TIMEOUT_S,
        hung=f"the test of the network hung for {TIMEOUT_S:g} s",
        failed="the test of the network ended with code {code} ({last})",
    )


def _connect_and_measure() -> NetworkFacts:
    """Connects to the other nodes and measures. Runs in a process of its own, on every node at once."""
    import torch
    import torch.distributed as dist

    from nemo_prorl.distributed import interface_to

    rank, num_nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = datetime.timedelta(seconds=MEET_S)
    interface = interface_to(address)
    if interface not in ("", "lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    try:
        store = dist.TCPStore(address, port, num_nodes, rank == 0, timeout=limit, wait_for_workers=False)
        store.set(f"here/{rank}", "")
    except (dist.DistError, RuntimeError) as error:
        return NetworkFacts(
            refusal=f"the first node, {address}:{port}, cannot be reached: {_first_line(error)}"
        )
    try:
        store.wait([f"here/{other}" for other in range(num_nodes)], limit)
    except (dist.DistError, RuntimeError):
        missing = [other for other in range(num_nodes) if not store.check([f"here/{other}"])]
        return NetworkFacts(missing=missing)
    try:
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=num_nodes, timeout=limit
        )
        answers: list[Any] = [None] * num_nodes
        has_gpu = torch.cuda.is_available()
        dist.barrier()
        dist.all_gather_object(answers, (time.time(), has_gpu))
        clocks, have_gpus = zip(*answers, strict=True)
        gloo = _bus_bandwidth(torch.ones(GLOO_BYTES // 4), dist.all_reduce, num_nodes)
        nccl, chosen = _measure_nccl(num_nodes, limit) if all(have_gpus) else (0.0, None)
        with suppress(RuntimeError):  # everything is measured, so another node may have ended already
            dist.barrier()
    except (dist.DistError, RuntimeError) as error:
        return NetworkFacts(refusal=f"nodes connect, but could not exchange data: {_first_line(error)}")
    return NetworkFacts(
        interface=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        gloo_bytes_s=gloo,
        nccl_bytes_s=nccl,
        uses_tcp=chosen is not None and chosen.name == "Socket",
        nccl_network="" if chosen is None else chosen.sentence,
        clock_s=max(clocks) - min(clocks),
    )


def _measure_nccl(num_nodes: int, limit: datetime.timedelta) -> tuple[float, NcclNetwork | None]:
    """Returns the bus bandwidth of one GPU per node in bytes per second, and the network that NCCL's log names."""
    import torch
    import torch.distributed as dist

    from nemo_prorl.cluster.nccl_log import SETTINGS, parse_nccl_log

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        os.environ |= {**SETTINGS, "NCCL_DEBUG_FILE": str(log)}  # NCCL reads these when it is first used
        group = dist.new_group(backend="nccl", timeout=limit)
        tensor = torch.ones(NCCL_BYTES // 4, device="cuda")
        rate = _bus_bandwidth(tensor, lambda x: dist.all_reduce(x, group=group), num_nodes)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return rate, parse_nccl_log(text)


def _bus_bandwidth(tensor: torch.Tensor, reduce_: Callable[[torch.Tensor], Any], num_nodes: int) -> float:
    """Returns the bus bandwidth of an all-reduce in bytes per second, the mean over NUM_REPEATS."""
    import torch

    wait = torch.cuda.synchronize if tensor.is_cuda else lambda: None
    reduce_(tensor)  # not measured, because it sets up connections
    wait()
    began = time.monotonic()
    for _ in range(NUM_REPEATS):
        reduce_(tensor)
    wait()
    seconds = (time.monotonic() - began) / NUM_REPEATS
    return tensor.numel() * tensor.element_size() * 2 * (num_nodes - 1) / num_nodes / seconds


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


if __name__ == "__main__":
    print(json.dumps(asdict(_connect_and_measure())), flush=True)
    # Skips torch's shutdown, which would print errors if the first node, with the store, has ended.
    os._exit(0)
