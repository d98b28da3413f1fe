"""The network between the nodes of a job: can all meet, how fast is an all-reduce, do their clocks agree? As a program:
one process a node, which meets the others at MASTER_ADDR:MASTER_PORT and prints what it found as JSON."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.doctor.finding import Finding, failure, not_applicable, ok, warning

if TYPE_CHECKING:
    import torch

    from nemo_prorl.nccl_log import NcclNetwork

MEET_S = 60.0
"""How long a node waits for the others (our choice: all have written their local findings before)."""
TIMEOUT_S = 180.0
"""For all of it, with the import of torch."""
GO = "go\n"
GLOO_BYTES, NCCL_BYTES = 64 << 20, 256 << 20
NUM_REPEATS = 5
MIN_SHARE = 0.4
"""Of the fastest adapter's rate: 20 GB/s with 400 Gbit/s. NCCL over InfiniBand reaches most of it, over TCP a small
part (our choice)."""
MIN_GLOO_BYTES_S = 100e6
"""Below it, exchanging the rollouts of a step takes a noticeable share of it (our choice: a 1 Gbit/s network)."""
MAX_CLOCK_S, WRONG_CLOCK_S = 2.0, 60.0
"""Differences that are worth a warning, and that make the end of a Slurm job come too early or late to save (our
choice)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """What one node saw. Rates are bus bandwidths, which do not depend on the number of nodes: bytes of the tensor x
    2 (n - 1) / n / seconds (nccl-tests, doc/PERFORMANCE.md)."""

    refusal: str = ""
    """Why this node could not talk to the others."""
    missing: list[int] = field(default_factory=list)
    """Nodes that did not come to the meeting, by index."""
    interface: str = ""
    """That gloo uses; empty: its own choice."""
    gloo_bytes_s: float = 0.0
    nccl_bytes_s: float = 0.0
    """Of one GPU a node; 0 where a node has none."""
    uses_tcp: bool = False
    """Whether NCCL goes over TCP."""
    nccl_network: str = ""
    """A sentence on the network that NCCL uses; empty where it was not used."""
    clock_s: float = 0.0
    """Latest minus earliest clock."""


def judge_network(facts: NetworkFacts, *, names: Sequence[str], fastest_gbit_s: float) -> list[Finding]:
    """`names`: of the nodes, by index; `fastest_gbit_s`: of InfiniBand, 0 without it."""
    if facts.refusal:
        advice = "look for a firewall, or name the right interface: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
        return [failure("network", facts.refusal, advice)]
    if facts.missing:
        missing = ", ".join(names[index] for index in facts.missing)
        return [not_applicable("network", f"not measured: {missing} did not come to the meeting")]
    return [_speed(facts, len(names), fastest_gbit_s), _clock(facts)]


def _speed(facts: NetworkFacts, num_nodes: int, fastest_gbit_s: float) -> Finding:
    found = f"{num_nodes} nodes meet; gloo {facts.gloo_bytes_s / 1e9:.2f} GB/s over {facts.interface or 'its default'}"
    if facts.nccl_bytes_s:
        found += f"; NCCL {facts.nccl_bytes_s / 1e9:.1f} GB/s a GPU"
        if facts.nccl_network:
            found += f"; {facts.nccl_network}"
        is_slow = facts.nccl_bytes_s < MIN_SHARE * fastest_gbit_s / 8 * 1e9
        if is_slow or (facts.uses_tcp and fastest_gbit_s):
            found += f"; this node's fastest adapter has {fastest_gbit_s / 8:.0f} GB/s"
            advice = (
                "mend what keeps NCCL from InfiniBand, or name its adapters (NCCL_IB_HCA); DOCTOR_ALLOW=network trains "
                "all the same"
            )
            return failure("network", found, advice)
    if facts.gloo_bytes_s < MIN_GLOO_BYTES_S:
        return warning("network", found, "name a faster interface: GLOO_SOCKET_IFNAME in slurm/site.env")
    return ok("network", found)


def _clock(facts: NetworkFacts) -> Finding:
    found, advice = f"differ by {facts.clock_s:.2f} s", "set the clocks (chrony, NTP)"
    if facts.clock_s > WRONG_CLOCK_S:
        return failure("clocks", f"{found}: this run would misjudge when its job ends", advice)
    if facts.clock_s > MAX_CLOCK_S:
        return warning("clocks", found, advice)
    return ok("clocks", found)


def start_network_probe(index: int, num_nodes: int) -> subprocess.Popen[str]:
    """A process that imports torch, which takes long on a shared file system, and then waits for its turn."""
    environment = {**os.environ, "RANK": str(index), "WORLD_SIZE": str(num_nodes), "LOCAL_RANK": "0"}
    command = [sys.executable, "-m", "nemo_prorl.doctor.network"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish_network_probe(process: subprocess.Popen[str]) -> NetworkFacts:
    """Collective: every node calls it at about the same time. Hangs and crashes are a refusal."""
    try:
        said, complaint = process.communicate(GO, timeout=TIMEOUT_S)
        return NetworkFacts(**json.loads(said.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        process.kill()
        return NetworkFacts(refusal=f"the test of the network hung for {TIMEOUT_S:g} s")
    except (IndexError, ValueError, TypeError):
        last = " ".join(complaint.split())[-200:]
        return NetworkFacts(refusal=f"the test of the network ended with code {process.returncode} ({last})")


def _meet_and_measure() -> NetworkFacts:
    """In a process of its own, on every node."""
    import torch
    import torch.distributed as dist

    from nemo_prorl.distributed import interface_to

    if sys.stdin.readline() != GO:
        sys.exit("nobody has asked for a test of the network")
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
            refusal=f"the first node, {address}:{port}, was not reached: {_first_line(error)}"
        )
    try:
        store.wait([f"here/{other}" for other in range(num_nodes)], limit)
    except (dist.DistError, RuntimeError):
        return NetworkFacts(
            missing=[other for other in range(num_nodes) if not store.check([f"here/{other}"])]
        )
    try:
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=num_nodes, timeout=limit
        )
        clocks: list[Any] = [None] * num_nodes
        dist.barrier()
        dist.all_gather_object(clocks, time.time())
        gloo = _bus_bandwidth(torch.ones(GLOO_BYTES // 4), dist.all_reduce, num_nodes)
        have_gpus: list[Any] = [None] * num_nodes
        dist.all_gather_object(have_gpus, torch.cuda.is_available())
        nccl, chosen = _measure_nccl(num_nodes, limit) if all(have_gpus) else (0.0, None)
        with suppress(RuntimeError):  # all is measured: another node may be gone already
            dist.barrier()
    except (dist.DistError, RuntimeError) as error:
        return NetworkFacts(refusal=f"nodes met, but could not exchange data: {_first_line(error)}")
    return NetworkFacts(
        interface=os.environ.get("GLOO_SOCKET_IFNAME", ""),
        gloo_bytes_s=gloo,
        nccl_bytes_s=nccl,
        uses_tcp=chosen is not None and chosen.is_tcp,
        nccl_network="" if chosen is None else chosen.sentence,
        clock_s=max(clocks) - min(clocks),
    )


def _measure_nccl(num_nodes: int, limit: datetime.timedelta) -> tuple[float, NcclNetwork | None]:
    """Returns the bus bandwidth of one GPU per node in bytes per second, and what NCCL's log says of the network."""
    import torch
    import torch.distributed as dist

    from nemo_prorl.nccl_log import SETTINGS, parse_nccl_log

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        os.environ |= {**SETTINGS, "NCCL_DEBUG_FILE": str(log)}  # NCCL reads them when it is first used
        group = dist.new_group(backend="nccl", timeout=limit)
        tensor = torch.ones(NCCL_BYTES // 4, device="cuda")
        rate = _bus_bandwidth(tensor, lambda x: dist.all_reduce(x, group=group), num_nodes)
        return rate, parse_nccl_log(
            log.read_text(encoding="utf-8", errors="replace")
        ) if log.exists() else None


def _bus_bandwidth(tensor: torch.Tensor, reduce_: Callable[[torch.Tensor], Any], num_nodes: int) -> float:
    """Bytes per second."""
    import torch

    def wait() -> None:
        if tensor.is_cuda:
            torch.cuda.synchronize()

    reduce_(tensor)  # connects
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
    print(json.dumps(asdict(_meet_and_measure())), flush=True)
    os._exit(0)  # the first node's store may still be asked by others, whose errors nobody needs
