"""Tests of the roles of ranks and their communication: against Megatron's own order, and over real gloo groups."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.config.layout import check_layout
from nemo_prorl.distributed import Layout, Ranks, RanksDidNotMeet, initialise, interface_to
from tests.engines.conftest import free_port, run_ranks

LAYOUTS = [(1, 1, 1), (4, 1, 1), (4, 2, 1), (4, 1, 2), (4, 2, 2), (8, 2, 2), (24, 2, 3), (64, 8, 2)]
"""(ranks, tensor, pipeline)"""
LAUNCHER = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
"""The variables that torchrun sets."""


def layouts(world_size: int, tensor: int, pipeline: int) -> list[Layout]:
    return [
        Layout(rank=rank, world_size=world_size, tensor_parallel=tensor, pipeline_parallel=pipeline)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("sizes", LAYOUTS)
def test_replicas_share_the_ranks_out(sizes: tuple[int, int, int]) -> None:
    ranks = layouts(*sizes)
    replicas = [ranks[0].replica_ranks(index) for index in range(ranks[0].data_parallel)]
    assert sorted(rank for replica in replicas for rank in replica) == list(range(sizes[0]))
    for index, replica in enumerate(replicas):
        assert replica == sorted(replica)
        assert [ranks[rank].replica for rank in replica] == [index] * len(replica)
        assert [ranks[rank].leads_replica for rank in replica] == [True] + [False] * (len(replica) - 1)
    assert [rank.is_main for rank in ranks] == [True] + [False] * (sizes[0] - 1)


@pytest.mark.parametrize("sizes", LAYOUTS)
def test_the_order_is_megatrons(sizes: tuple[int, int, int]) -> None:
    from nemo_prorl.engines.megatron.core import parallel_state

    world_size, tensor, pipeline = sizes
    generator = parallel_state.RankGenerator(
        tp=tensor, ep=1, dp=world_size // (tensor * pipeline), pp=pipeline, cp=1, order="tp-cp-ep-dp-pp"
    )
    layout = layouts(*sizes)[0]
    replicas = [layout.replica_ranks(index) for index in range(layout.data_parallel)]
    assert sorted(replicas) == sorted(sorted(group) for group in generator.get_ranks("tp-pp"))


@pytest.mark.parametrize(
    ("world_size", "tensor", "pipeline", "fits"),
    [
        (4, 2, 2, True),
        (6, 2, 1, True),
        (4, 3, 1, False),
        (2, 2, 2, False),
        (1, 2, 1, False),
        (6, 2, 2, False),
    ],
)
def test_ranks_hold_whole_replicas_or_there_is_one_sentence(
    world_size: int, tensor: int, pipeline: int, fits: bool
) -> None:
    if fits:
        check_layout(world_size, tensor, pipeline)
        return
    with pytest.raises(ConfigError, match=f"multiple of {tensor * pipeline}") as caught:
        check_layout(world_size, tensor, pipeline)
    assert "\n" not in str(caught.value)


def exchanged(ranks: Ranks) -> dict[str, Any]:
    """Exchanges arrays: every rank sends one to itself and to the next, of another length on every rank; then only the
    last sends, to all; then none."""
    rank, world_size = ranks.layout.rank, ranks.layout.world_size
    ranks.traffic.take()
    parcels = {to % world_size: np.full(1000 * rank, rank) for to in (rank, rank + 1)}
    found = [(int(part.sum()), len(part)) for part in ranks.exchange(parcels)]
    num_bytes = ranks.traffic.take()
    of_last = ranks.exchange({to: (rank, to) for to in range(world_size)} if rank == world_size - 1 else {})
    return {"next": found, "bytes": num_bytes, "of_last": of_last, "nothing": ranks.exchange({})}


def failing(ranks: Ranks) -> list[str]:
    """Returns the errors on this rank when rank 1 fails, and when the main rank does, in two ways."""
    told = []

    def fail(error: Exception) -> None:
        raise error

    for error in (ConfigError("write another"), LookupError("no such place")):
        for attempt in (
            lambda error=error: ranks.together(lambda: fail(error) if ranks.layout.rank == 1 else None),
            lambda error=error: ranks.on_main(lambda: fail(error)),
        ):
            try:
                attempt()
            except (ConfigError, LookupError, RuntimeError) as caught:
                told.append(f"{type(caught).__name__} {'no such place' in str(caught)}")
    return told


def report(ranks: Ranks) -> dict[str, Any]:
    rank = ranks.layout.rank
    value = {"rank": rank, "bytes": bytes([rank]) * (1000 * rank)}  # of a different length on every rank
    return {
        "gather": [got["rank"] for got in ranks.gather(value)],
        "sizes": [len(got["bytes"]) for got in ranks.gather(value)],
        "replicas": ranks.gather_replicas(f"from {rank}"),
        "from_main": ranks.from_main(f"from {rank}"),
        "none": ranks.any(False),
        "one": ranks.any(rank == ranks.layout.world_size - 1),
        "exchange": exchanged(ranks),
        "on_main": ranks.on_main(lambda: f"by {rank}"),
        "together": ranks.together(lambda: f"by {rank}"),
        "failing": failing(ranks),
    }


def four_ranks_worker() -> list[dict[str, Any]]:
    """Tests the layouts of four ranks one after the other."""
    results = []
    for tensor, pipeline in ((2, 2), (2, 1), (1, 2), (1, 1)):
        ranks = initialise(tensor, pipeline)
        results.append(report(ranks))
        ranks.barrier()
    return results


@pytest.mark.slow
def test_values_reach_every_rank() -> None:
    expected_replicas = [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0], [1], [2], [3]]]
    for rank, results in enumerate(run_ranks(four_ranks_worker, 4)):
        for result, replicas in zip(results, expected_replicas, strict=True):
            assert result["gather"] == [0, 1, 2, 3]
            assert result["sizes"] == [0, 1000, 2000, 3000]
            assert result["replicas"] == [f"from {replica[0]}" for replica in replicas]
            assert result["from_main"] == "from 0"
            assert (result["none"], result["one"]) == (False, True)
            before = (rank - 1) % 4
            exchange = result["exchange"]
            assert exchange["next"] == [(1000 * r * r, 1000 * r) for r in sorted((before, rank))]
            assert 8000 * before < exchange["bytes"] < 8000 * before + 500
            assert (exchange["of_last"], exchange["nothing"]) == ([(3, rank)], [])
            assert (result["on_main"], result["together"]) == ("by 0", f"by {rank}")
            own, of_main = ("LookupError" if rank == at else "RuntimeError" for at in (1, 0))
            assert result["failing"] == ["ConfigError False"] * 2 + [f"{own} True", f"{of_main} True"]


def lone_process() -> None:
    """Runs without torchrun's variables, which `initialise` sets then."""
    for name in [name for name in os.environ if name in LAUNCHER or "SLURM" in name]:
        del os.environ[name]
    ranks = initialise(1, 1)
    assert (ranks.gather(5), ranks.gather_replicas(7)) == ([5], [7])
    assert (ranks.exchange({0: 6}), ranks.exchange({}), ranks.traffic.take()) == ([6], [], 0)
    assert ranks.from_main(8) == 8
    assert ranks.any(True)
    assert not ranks.any(False)
    ranks.barrier()
    initialise(1, 1)


@pytest.mark.slow
def test_one_process_is_a_job_of_one_rank() -> None:
    run_ranks(lone_process, 1)


def lone_rank(rank: int, port: int) -> str:
    """Returns the message of one rank of two whose other rank never comes."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    with pytest.raises(RanksDidNotMeet) as caught:
        initialise(1, 1, start_timeout_s=1)
    return str(caught.value)


def message_of_a_lone_rank(rank: int, port: int) -> str:
    (sentence,) = run_ranks(lone_rank, 1, rank=rank, port=port)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_comes_is_one_sentence_within_the_time_limit(rank: int) -> None:
    port = free_port()
    sentence = message_of_a_lone_rank(rank, port)
    assert f"rank {rank} on " in sentence
    assert f"could not reach all 2 ranks by way of 127.0.0.1:{port} (" in sentence
    assert "trainer.start_timeout_s=1)" in sentence


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        sentence = message_of_a_lone_rank(0, taken.getsockname()[1])
    assert "another program uses this port" in sentence


def test_the_interface_is_the_one_that_leads_to_the_first_rank() -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("127.0.0.53") == "lo"
    assert interface_to("host.invalid") == ""
    own = next(
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    )
    assert interface_to(own[1]) == own[0]


def sockets_worker() -> int:
    """Returns the number of this rank's sockets once the trainer's groups exist, every group has been used, and every
    rank has sent something to every other."""
    from nemo_prorl.engines.megatron import build

    ranks = initialise(1, 1)
    build.initialise_groups(ranks.layout, 1)
    ranks.exchange(dict.fromkeys(range(ranks.layout.world_size), "rollouts"))
    ranks.barrier()
    links = (os.readlink(path) for path in map(str, Path("/proc/self/fd").iterdir()) if os.path.islink(path))
    num_sockets = sum(link.startswith("socket:") for link in links)
    ranks.barrier()
    return num_sockets


@pytest.mark.slow
def test_sockets_hardly_grow_with_the_number_of_ranks() -> None:
    """With one socket per peer in each of Megatron's eight groups, some 100 ranks would use up 1,024 open files."""
    few, many = (max(run_ranks(sockets_worker, world_size)) for world_size in (4, 12))
    print(f"sockets of a rank: {few} of 4 ranks, {many} of 12")
    assert (many - few) / (12 - 4) < 2.5
