"""Ranks, replicas and communication of Python objects, with torch.distributed and without Megatron.

Every rank runs the same program. A replica is a set of ranks that hold one copy of the model (tensor x pipeline
parallel); there are `data_parallel` replicas. Python objects travel over gloo on CPU even if tensors use NCCL.
"""

from __future__ import annotations

import datetime
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist

from nemo_prorl.config import ConfigError
from nemo_prorl.config.layout import (
    check_layout,
    is_one_machine,
    rank_from_environment,
    world_size_from_environment,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The role of each rank. Ranks are numbered by tensor, then data, then pipeline parallel (Megatron's order)."""

    rank: int
    world_size: int
    tensor_parallel: int
    pipeline_parallel: int

    @property
    def data_parallel(self) -> int:
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def replica(self) -> int:
        """Data-parallel index of this rank."""
        return self.rank // self.tensor_parallel % self.data_parallel

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def replica_ranks(self, replica: int) -> list[int]:
        """Ranks of a replica, ascending; the first is its leader."""
        stride = self.tensor_parallel * self.data_parallel
        first = replica * self.tensor_parallel
        return [
            first + stage * stride + shard
            for stage in range(self.pipeline_parallel)
            for shard in range(self.tensor_parallel)
        ]

    @property
    def leads_replica(self) -> bool:
        return self.rank == self.replica_ranks(self.replica)[0]


@dataclass(slots=True)
class Traffic:
    """Counts the bytes that this rank receives in `gather` and `exchange`."""

    num_bytes: int = 0

    def take(self) -> int:
        """Returns the bytes since the last call."""
        taken, self.num_bytes = self.num_bytes, 0
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process and its communication with the other ranks."""

    layout: Layout
    traffic: Traffic = field(default_factory=Traffic)

    def gather(self, value: T) -> list[T]:
        """Returns every rank's value, in rank order, on every rank."""
        if self.layout.world_size == 1:
            return [value]
        parts: list[Any] = [None] * self.layout.world_size
        dist.all_gather_object(parts, pickle.dumps(value))
        self.traffic.num_bytes += sum(len(part) for part in parts) - len(parts[self.layout.rank])
        return [pickle.loads(part) for part in parts]

    def exchange(self, parcels: Mapping[int, T]) -> list[T]:
        """Sends each value of `parcels` to the rank that is its key. Returns the values sent to this rank, in the order
        of their senders. Collective: ranks without values to send call it too."""
        rank, world_size = self.layout.rank, self.layout.world_size
        if world_size == 1:
            return list(parcels.values())
        sent = [
            pickle.dumps(parcels[to]) if to in parcels and to != rank else b"" for to in range(world_size)
        ]
        sizes = torch.tensor([len(part) for part in sent])
        sizes_received = torch.empty_like(sizes)
        dist.all_to_all_single(sizes_received, sizes)
        received = torch.empty(int(sizes_received.sum()), dtype=torch.uint8)
        data = bytearray(b"".join(sent))
        outgoing = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        dist.all_to_all_single(received, outgoing, sizes_received.tolist(), sizes.tolist())
        self.traffic.num_bytes += len(received)
        parts = received.split(sizes_received.tolist())
        values = {sender: pickle.loads(part.numpy()) for sender, part in enumerate(parts) if len(part)}
        if rank in parcels:
            values[rank] = parcels[rank]
        return [values[sender] for sender in sorted(values)]

    def gather_replicas(self, value: T) -> list[T]:
        """Returns one value per replica (its leader's), in replica order, on every rank."""
        leaders = self.gather(value if self.layout.leads_replica else None)
        return [leaders[self.layout.replica_ranks(i)[0]] for i in range(self.layout.data_parallel)]  # type: ignore[misc]

    def from_main(self, value: T) -> T:
        """Returns rank 0's value on every rank."""
        if self.layout.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def on_main(self, function: Callable[[], T]) -> T:
        """Calls `function` on rank 0 only and returns its result on every rank. An error is raised on all of them."""
        return self.from_main(self.together(function if self.layout.is_main else lambda: None))  # type: ignore[arg-type, return-value]

    def together(self, function: Callable[[], T]) -> T:
        """Calls `function`, which must not be collective, on every rank and returns this rank's result. An error on any
        rank is raised on all, so that no rank waits for one that has failed."""
        try:
            value, error = function(), None
        except Exception as caught:
            error = caught
        sent: Exception | None = error
        if error is not None and not isinstance(error, ConfigError):
            # With its traceback, as a type that every rank can unpickle.
            text = "".join(traceback.format_exception(error))
            sent = RuntimeError(f"on {socket.gethostname()}: {text}")
        for rank, found in enumerate(self.gather(sent)):
            if found is not None:
                raise error if error is not None and rank == self.layout.rank else found
        return value

    def any(self, flag: bool) -> bool:
        """Returns True on every rank if `flag` is true on any."""
        return any(self.gather(flag))

    def barrier(self) -> None:
        if self.layout.world_size > 1:
            self.gather(None)


def alone() -> Ranks:
    """Returns a single rank for work outside a job, which needs no process group."""
    return Ranks(layout=Layout(rank=0, world_size=1, tensor_parallel=1, pipeline_parallel=1))


class RanksDidNotMeet(RuntimeError):
    """Not every rank of the job could be reached at the start."""


COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)
"""Longest wait for another rank in a collective after the start. It is long because a rank may sample, validate or
compile between two collectives; the watchdog (trainer.hang_timeout_s) ends runs that hang."""


def initialise(tensor_parallel: int, pipeline_parallel: int, *, start_timeout_s: float = 300.0) -> Ranks:
    """Joins the process group of the job that torchrun or Slurm started, or makes one of a single rank. CUDA tensors
    use NCCL, CPU tensors gloo.

    Raises ConfigError if the ranks do not fit the layout or MASTER_ADDR or MASTER_PORT is missing, and RanksDidNotMeet
    if they cannot all communicate within `start_timeout_s`.
    """
    world_size = world_size_from_environment()
    check_layout(world_size, tensor_parallel, pipeline_parallel)
    rank = rank_from_environment()
    if world_size > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise ConfigError(
            "WORLD_SIZE is set, but MASTER_ADDR or MASTER_PORT is not: start the ranks with torchrun."
        )
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size), ("LOCAL_RANK", 0)):
        os.environ.setdefault(name, str(value))  # vLLM reads them
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if world_size == 1:
            # A single rank needs no port, which another program might use or a child process inherit.
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            _meet(backend, rank, world_size, start_timeout_s)
    layout = Layout(
        rank=rank, world_size=world_size, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel
    )
    return Ranks(layout=layout)


def leave(ranks: Ranks) -> None:
    """Ends the process group of several ranks. Processes that exit soon after `initialise` need it: threads of gloo
    that still run at the end would abort them."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        ranks.barrier()
        dist.destroy_process_group()


def _meet(backend: str, rank: int, world_size: int, timeout_s: float) -> None:
    """Initialises the default process group and gathers once, which needs working network interfaces. Raises
    RanksDidNotMeet."""
    interface = interface_to(os.environ["MASTER_ADDR"])
    if interface == "lo" and not is_one_machine():  # on some systems a node's own name is 127.0.1.1
        interface = interface_to(_ELSEWHERE)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    began_s = time.monotonic()
    try:
        dist.init_process_group(
            backend, rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=timeout_s)
        )
        hosts: list[Any] = [None] * world_size
        dist.all_gather_object(hosts, socket.gethostname())
    except (dist.DistError, RuntimeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if "EADDRINUSE" in str(error):
            raise RanksDidNotMeet(
                f"rank {rank} cannot wait for the others at {address}, because another program uses this port: write "
                "another MASTER_PORT."
            ) from error
        raise RanksDidNotMeet(
            f"rank {rank} on {socket.gethostname()} could not reach all {world_size} ranks by way of {address} "
            f"({time.monotonic() - began_s:.0f} s; trainer.start_timeout_s={timeout_s:g}): a rank has not started or "
            "has ended, a firewall is between them, or GLOO_SOCKET_IFNAME names the wrong network interface "
            f"({first_line})."
        ) from error
    # torch has no public function that changes the timeout of an existing group.
    dist.distributed_c10d._set_pg_timeout(COLLECTIVE_TIMEOUT)
    dist.distributed_c10d._get_default_store().set_timeout(COLLECTIVE_TIMEOUT)


_ELSEWHERE = "192.0.2.1"
"""A documentation address (RFC 5737) that no machine has; packets to it would take the default route."""


def interface_to(host: str) -> str:
    """Returns the name of the network interface by which this machine reaches `host`, such as "eth0"; "" if unknown.

    Without it gloo takes the interface that the machine's own name resolves to, which is loopback on many systems and
    the slow management network on others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # a UDP connect sends nothing; it only looks up the route
        except OSError:
            return ""
        address = probe.getsockname()[0]
    return next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(entry.address == address for entry in addresses)
        ),
        "",
    )


def traces_of_collectives() -> dict[str, bytes]:
    """Returns backend -> pickled trace of torch's flight recorder: this rank's latest TORCH_FR_BUFFER_SIZE collectives.
    torch's `torchfrtrace` compares the NCCL traces of all ranks."""
    recorders = {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}  # torch has the second only with CUDA
    dumps = {backend: getattr(torch._C._distributed_c10d, name, None) for backend, name in recorders.items()}
    return {backend: dump(includeStackTraces=False) for backend, dump in dumps.items() if dump is not None}


def unfinished_collectives(trace: bytes) -> list[str]:
    """Returns one line for each collective of a trace that has begun and not ended, the oldest first."""
    entries = pickle.loads(trace).get("entries", [])
    return [
        f"{entry['profiling_name']} number {entry['collective_seq_id']} of group {entry['process_group'][1]}, sizes "
        f"{entry['input_sizes']}"
        for entry in entries
        if not entry["retired"]
    ]
