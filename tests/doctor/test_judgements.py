"""The pure halves of doctor's checks: facts go in, a finding comes out. Each kind of fault is planted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from nemo_prorl.doctor.gpus import MISSING, GpuFacts, judge_gpus
from nemo_prorl.doctor.machine import FolderFacts, judge_limits, judge_run_folder, probe_folder, read_limits
from nemo_prorl.doctor.network import NetworkFacts, infiniband_gbit_s, judge_network
from nemo_prorl.doctor.report import Finding, Severity, with_allowed
from nemo_prorl.doctor.sandbox import RewardFacts, judge_sandbox

GB = 1e9
LIMITS = {"open files": 4096, "locked memory": inf, "processes": inf, "shared memory": 8.0}
GPUS = GpuFacts(versions="driver 580.65, torch 2.13.0 for CUDA 13.0", gpus=["NVIDIA H200 (140 GiB)"] * 8)
REWARD = RewardFacts(sandbox="namespaces", domains=["math", "code"])
NO_SANDBOX = replace(REWARD, sandbox="none", reasons=["a program inside could read a host file"])
RUN = FolderFacts(path="/runs", free_bytes=500 * GB)
NETWORK = NetworkFacts(interface="ib0", gloo_bytes_s=2 * GB, nccl_bytes_s=40 * GB, clock_s=0.01)


def limits(num_ranks: int = 32, num_gpus: int = 8, infiniband: bool = True, **others: float) -> list[Finding]:
    allowed = LIMITS | {name.replace("_", " "): value for name, value in others.items()}
    return judge_limits(allowed, num_ranks=num_ranks, num_gpus=num_gpus, has_infiniband=infiniband)


def sandbox(facts: RewardFacts, *domains: str, others: bool = False) -> list[Finding]:
    return [judge_sandbox(facts, domains=domains, has_functions=others)]


def run_folder(facts: FolderFacts) -> list[Finding]:
    return [judge_run_folder(facts, checkpoint_bytes=28 * GB, num_kept=4)]


def network(facts: NetworkFacts, infiniband: Sequence[float] = (400.0, 0.0)) -> list[Finding]:
    return judge_network(facts, names=["a", "b"], infiniband=infiniband)


HEALTHY = (
    limits(),
    judge_gpus(GPUS, num_allocated=8),
    sandbox(REWARD, "math", "code"),
    sandbox(REWARD, "chemistry", others=True),
    run_folder(RUN),
    network(NETWORK),
    network(replace(NETWORK, nccl_bytes_s=1 * GB, uses_tcp=True), infiniband=[]),
)


@pytest.mark.parametrize("findings", HEALTHY, ids=lambda findings: findings[0].name)
def test_a_healthy_node_has_nothing_to_complain_of(findings: list[Finding]) -> None:
    assert [item for item in findings if item.status is not Severity.ok] == []


FAULTS = {
    "open files": (limits(num_ranks=1024), "failure", "4,096"),
    "locked memory": (limits(locked_memory=0.1), "failure", "0.1 GiB"),
    "processes": (limits(processes=1000), "warning", "1,000"),
    "shared memory": (limits(shared_memory=0.0625), "failure", "0.0625 GiB"),  # docker's default
    "dead GPU": (judge_gpus(replace(GPUS, gpus=GPUS.gpus[:7]), num_allocated=8), "failure", "7 of the 8"),
    "mixed GPUs": (judge_gpus(replace(GPUS, gpus=["H100", "A100"]), num_allocated=2), "warning", "A100"),
    "login node": (judge_gpus(GpuFacts(are_needed=True), num_allocated=0), "warning", "none is here"),
    "old driver": (judge_gpus(GpuFacts(refusal="too old: use 580."), num_allocated=8), "failure", "too old"),
    "slow kernels": (judge_gpus(replace(GPUS, engine_error=MISSING), num_allocated=8), "warning", "twice"),
    "broken kernels": (
        judge_gpus(replace(GPUS, engine_error="no cublasLt"), num_allocated=8),
        "failure",
        "Lt",
    ),
    "no sandbox": (sandbox(NO_SANDBOX, "math", "code"), "failure", "could read a host file"),
    "no sandbox, no code": (sandbox(NO_SANDBOX, "math"), "warning", "could read a host file"),
    "unknown domain": (sandbox(REWARD, "chemistry"), "failure", "chemistry"),
    "no service": (sandbox(RewardFacts(refusal="no fastapi"), "math"), "failure", "no fastapi"),
    "full disk": (run_folder(replace(RUN, free_bytes=100 * GB)), "failure", "up to 4 are kept"),
    "no locks": (run_folder(replace(RUN, has_locks=False)), "warning", "no file locks"),
    "no run folder": (run_folder(FolderFacts(path="/runs", refusal="read-only")), "failure", "read-only"),
    "firewall": (network(NetworkFacts(refusal="not reached")), "failure", "not reached"),
    "port in use": (network(NetworkFacts(refusal="x: EADDRINUSE")), "failure", "EADDRINUSE"),
    "slow NCCL": (network(replace(NETWORK, nccl_bytes_s=19 * GB)), "failure", "adapter has 50 GB/s"),
    "NCCL over TCP": (
        network(replace(NETWORK, uses_tcp=True, nccl_network="because libibverbs could not be loaded")),
        "failure",
        "because libibverbs could not be loaded",
    ),
    "cables": (
        network(replace(NETWORK, uses_tcp=True), infiniband=[0.0, 0.0]),
        "warning",
        "no InfiniBand port",
    ),
    "management network": (network(replace(NETWORK, gloo_bytes_s=50e6)), "warning", "0.05 GB/s over ib0"),
    "clocks": (network(replace(NETWORK, clock_s=5.0)), "warning", "5.00 s"),
    "wrong clocks": (network(replace(NETWORK, clock_s=3600.0)), "failure", "3600.00 s"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_alone_and_comes_with_advice(name: str) -> None:
    findings, status, words = FAULTS[name]
    bad = [item for item in findings if item.status in (Severity.warning, Severity.failure)]
    assert [item.status.value for item in bad] == [status]
    assert words in bad[0].found
    assert bad[0].advice
    assert ("MASTER_PORT" in bad[0].advice) == (name == "port in use")


def test_what_is_not_there_is_neither_good_nor_bad() -> None:
    findings = [
        *judge_gpus(GpuFacts(versions="torch 2.13.0+cpu"), num_allocated=0),
        *limits(num_gpus=0, infiniband=False)[1::2],
        *network(NetworkFacts(missing=[1])),
    ]
    assert {item.status for item in findings} == {Severity.not_applicable}
    assert "b did not connect" in findings[-1].found


def test_the_user_may_allow_a_failure_but_not_a_mistake() -> None:
    slow = Finding("open files", "few", "more", status=Severity.failure)
    mistake = replace(slow, name="start", is_mistake=True)
    allowed = with_allowed([slow, mistake], ["open-files", "start"])
    assert [item.status.value for item in allowed] == ["warning", "failure"]


def test_this_machines_limits_and_infiniband_can_be_read(tmp_path: Path) -> None:
    assert read_limits()["open files"] > 0
    for number, state in ((1, "4: ACTIVE\n"), (2, "1: DOWN\n")):
        port = tmp_path / f"sys/class/infiniband/mlx5_0/ports/{number}"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert infiniband_gbit_s(tmp_path) == [400.0, 0.0]
    assert infiniband_gbit_s(tmp_path / "sys") == []


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    facts = probe_folder(tmp_path / "new" / "run")
    assert (facts.refusal, facts.has_locks) == ("", True)
    assert facts.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "Not a directory" in probe_folder(tmp_path / "file" / "run").refusal
