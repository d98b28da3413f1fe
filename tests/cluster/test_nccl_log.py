"""Tests of reading NCCL's network from log lines in the form of NCCL 2.21 to 2.30."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from nemo_prorl.cluster.nccl_log import (
    NcclNetwork,
    network_of_this_process,
    parse_nccl_log,
)

INFINIBAND = """\
n1:811:811 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0
n1:811:811 [0] NCCL INFO Bootstrap: Using ib0:10.1.0.1<0>
n1:811:811 [0] NCCL INFO cudaDriverVersion 13000
n1:811:811 [0] NCCL INFO NCCL version 2.29.7+cuda13.0
n1:811:902 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
n1:811:902 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.1.0.1<0>
n1:811:902 [0] NCCL INFO Initialized NET plugin IB
n1:811:902 [0] NCCL INFO Assigned NET plugin IB to comm
n1:811:902 [0] NCCL INFO Using network IB
n1:811:902 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:811:902 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
"""
TCP = """\
n1:32:379 [0] NCCL INFO NCCL version 2.29.7+cuda13.0
n1:32:379 [0] NCCL INFO Failed to open libibverbs.so[.1]
n1:32:379 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]veth4a:fe80::1%veth4a<0>
n1:32:379 [0] NCCL INFO Using non-device net plugin version 0
n1:32:379 [0] NCCL INFO Using network Socket
n1:32:379 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0
"""
NO_DEVICE = TCP.replace("Failed to open libibverbs.so[.1]", "NET/IB : No device found.")
FORBIDDEN = "n1:3:3 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + NO_DEVICE
ROCE = INFINIBAND.replace("1/IB", "1/RoCE").replace("/GDRDMA", "")
PLUGIN = """\
n1:5:9 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
n1:5:9 [0] NCCL INFO Using network AWS Libfabric
n1:5:9 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/AWS Libfabric/0/GDRDMA
"""


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            INFINIBAND,
            "NCCL 2.29.7+cuda13.0 uses InfiniBand (mlx5_0:1/IB, mlx5_3:1/IB) between nodes with GPUDirect RDMA",
        ),
        (ROCE, "NCCL 2.29.7+cuda13.0 uses RoCE (mlx5_0:1/RoCE, mlx5_3:1/RoCE) between nodes"),
        (
            TCP,
            "NCCL 2.29.7+cuda13.0 uses TCP (eth0, veth4a) between nodes, because libibverbs could not be loaded",
        ),
        (
            NO_DEVICE,
            "NCCL 2.29.7+cuda13.0 uses TCP (eth0, veth4a) between nodes, because NCCL found no InfiniBand device",
        ),
        (
            FORBIDDEN,
            "NCCL 2.29.7+cuda13.0 uses TCP (eth0, veth4a) between nodes, because NCCL_IB_DISABLE=1 is set",
        ),
    ],
)
def test_the_log_says_which_network_is_used_and_why_it_is_not_infiniband(log: str, sentence: str) -> None:
    network = parse_nccl_log(log)
    assert network is not None
    assert network.sentence == sentence


def test_a_plug_in_has_a_name_of_its_own() -> None:
    assert parse_nccl_log(PLUGIN) == NcclNetwork(name="AWS Libfabric", has_gpu_direct=True)


def test_of_several_communicators_the_last_one_counts() -> None:
    network = parse_nccl_log(TCP + INFINIBAND)
    assert network is not None
    assert (network.name, network.why_not_ib) == ("IB", "")


@pytest.mark.parametrize("log", ["", "n1:3:3 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n", "\x00\x01"])
def test_before_nccl_has_connected_anybody_nothing_is_said(log: str) -> None:
    assert parse_nccl_log(log) is None


@pytest.mark.parametrize(
    ("num_ranks", "on_node", "file", "name"),
    [
        ("16", "8", "%h.%p", "IB"),
        ("16", "8", "other", None),
        ("16", "8", "", None),
        ("8", "8", "%h.%p", None),  # NCCL's log has a network there too, but nothing is sent over it
        ("", "", "%h.%p", None),
    ],
)
def test_each_process_has_a_log_of_its_own_and_one_node_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_ranks: str, on_node: str, file: str, name: str | None
) -> None:
    given = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": on_node, "NCCL_DEBUG_FILE": f"{tmp_path}/{file}"}
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
        if not value:
            monkeypatch.delenv(variable)
    (tmp_path / f"{socket.gethostname().partition('.')[0]}.{os.getpid()}").write_text(INFINIBAND)
    network = network_of_this_process()
    assert (network.name if network else None) == name
