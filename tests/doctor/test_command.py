"""`python -m nemo_prorl doctor` on this machine, alone and as two nodes of a job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from nemo_prorl.config import DataConfig, ExpManagerConfig, RunConfig
from nemo_prorl.data.rows import write_rows
from nemo_prorl.doctor.examine import Place, known_domains, names_of_nodes, place_of_this_process
from nemo_prorl.doctor.report import read_report
from nemo_prorl.doctor.sandbox import finish_reward_check, start_reward_check
from tests.conftest import REWARD_PYTHON, ROOT
from tests.data.conftest import make_row

NODES = ("near", "far")
QUICK = ("--only=limits", "--only=folders")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither in a job nor with this user's caches."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def task_of(node: str) -> dict[str, str]:
    """Returns the variables of one task of a step of two."""
    place = {"SLURM_PROCID": str(NODES.index(node)), "SLURMD_NODENAME": node}
    return {"SLURM_STEP_NUM_TASKS": str(len(NODES)), **place}


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """run_as(node, *arguments, **environment) runs one task of a step of two in this process, after those that it would
    wait for."""

    def run(node: str, *arguments: str, **environment: str) -> int:
        with monkeypatch.context() as here:
            for name, value in {**task_of(node), **environment}.items():
                here.setenv(name, value)
            return cli.main(["doctor", f"--nodes={','.join(NODES)}", *arguments])

    return run


def test_a_machine_without_a_model_is_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", *QUICK, "--only=start", f"exp_manager.explicit_log_dir={tmp_path}/run"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "no model was named" in said
    assert "Every check is fine; not checked: " in said
    assert list(tmp_path.iterdir()) == [], "neither the run's folder nor the caches"


def test_findings_are_written_as_json(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    run = f"exp_manager.explicit_log_dir={tmp_path}/run"
    assert cli.main(["doctor", *QUICK, f"--json={file}", run]) == 0
    found = {item["name"]: item["status"] for item in json.loads(file.read_text())}
    assert found["open files"] == "ok"
    assert {"caches", "run folder"} <= found.keys()


def test_a_run_folder_that_cannot_be_is_a_failure_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    run = f"exp_manager.explicit_log_dir={tmp_path}/file/run"
    assert cli.main(["doctor", *QUICK, run]) == 1
    assert "-> write another exp_manager.explicit_log_dir" in capsys.readouterr().out
    assert cli.main(["doctor", *QUICK, "--allow=run-folder", run]) == 0


def test_a_configuration_that_cannot_start_is_a_mistake(tmp_path: Path) -> None:
    assert cli.main(["doctor", "--only=start", f"model.path={tmp_path}"]) == 2


@pytest.mark.parametrize(
    "arguments", [("--nodes=a,b",), ("--only=everything",), ("--reward-elsewhere",), ("no.such=1",)]
)
def test_wrong_arguments_are_mistakes(arguments: tuple[str, ...]) -> None:
    assert cli.main(["doctor", *arguments]) == 2


@pytest.mark.parametrize("argument", ["no.such=1", "--allow=netwrk", "stage=none"])
def test_a_launcher_can_tell_a_mistake_from_a_broken_node(
    tmp_path: Path, run_as: Callable[..., int], argument: str
) -> None:
    """Anything may end with 2 on a node; only what it has written says that the user is to blame."""
    for node in NODES:
        assert run_as(node, f"--folder={tmp_path}", argument) == 2
        found = read_report(tmp_path / f"{node}.json")
        assert found is not None
        assert (found.verdict, found.is_complete) == ("mistake", True)
        assert found.sentence.startswith("start: ")


def test_a_check_that_does_not_exist_cannot_be_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--allow=netwrk"]) == 2
    assert "names netwrk, which is not a check: write one of GPUs, GPU-health," in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.medium
def test_this_machines_service_says_what_it_can_grade() -> None:
    facts = finish_reward_check(REWARD_PYTHON, start_reward_check(REWARD_PYTHON))
    assert facts.refusal == ""
    assert facts.level in ("namespaces", "landlock", "namespaces-only", "none")
    assert {"math", "code", "logic"} <= {*facts.domains}
    assert facts.packages["langdetect"]


def test_a_service_that_does_not_start_is_a_refusal(tmp_path: Path) -> None:
    assert "does not exist" in finish_reward_check("/no/such", start_reward_check("/no/such")).refusal
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    broken.chmod(0o755)
    assert "it is broken" in finish_reward_check(str(broken), start_reward_check(str(broken))).refusal


def test_the_domains_of_the_data_meet_the_sandbox_of_the_node(tmp_path: Path) -> None:
    """What the launcher's other container says is awaited, and held against the rows."""
    write_rows(tmp_path / "rows.parquet", [make_row("a", domain="code"), make_row("b", domain="math")])
    said = {
        "sandbox": "none",
        "reasons": ["a program inside forked"],
        "domains": ["code", "math"],
        "packages": {},
    }
    folder = tmp_path / "doctor"
    folder.mkdir()
    (folder / f"{socket.gethostname()}.reward").write_text(json.dumps(said))
    arguments = ["doctor", "--only=sandbox", f"--folder={folder}", "--reward-elsewhere", "data.validation=[]"]
    assert cli.main([*arguments, f"data.train={{{tmp_path}/rows.parquet: 1}}"]) == 1
    report = read_report(folder / f"{socket.gethostname()}.json")
    assert report is not None
    assert "a program inside forked" in report.sentence
    assert (folder / "domains").read_text() == "code\nmath\n"


def test_another_node_takes_the_domains_from_the_first_and_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURMD_NODENAME": "far"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    said = {"sandbox": "none", "reasons": ["no kernel"], "domains": ["code", "math"], "packages": {}}
    (tmp_path / "far.reward").write_text(json.dumps(said))
    (tmp_path / "domains").write_text("code\nmath\n")
    options = [f"data.train={{{tmp_path}/rows.jsonl: 1}}", f"exp_manager.explicit_log_dir={tmp_path}/run"]
    only = ["--only=sandbox", f"--folder={tmp_path}", "--nodes=near,far", "--reward-elsewhere"]
    assert cli.main(["doctor", *only, *options]) == 1
    report = read_report(tmp_path / "far.json")
    assert report is not None
    assert "the data has code, which cannot be graded here: no kernel" in report.sentence
    assert not (tmp_path / "run").exists()


def test_the_domains_of_a_validation_set_are_those_of_its_own_files(tmp_path: Path) -> None:
    problems = tmp_path / "problems"
    problems.mkdir()
    for name, domain in (("train", "math"), ("test", "stem")):
        (problems / f"{name}.jsonl").write_text(json.dumps({"prompt": "?", "answer": "A", "domain": domain}))
    config = RunConfig(
        data=DataConfig(train={f"{problems}/train.jsonl": 1.0}, validation=[str(problems)]),
        exp_manager=ExpManagerConfig(explicit_log_dir=f"{tmp_path}/run"),
    )
    assert known_domains(config) == {"math", "stem"}


def test_of_two_nodes_the_one_with_the_fault_is_named(
    tmp_path: Path, run_as: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "doctor"
    arguments = (*QUICK, f"--folder={folder}", f"exp_manager.explicit_log_dir={tmp_path}/run")
    (tmp_path / "file").write_text("")
    assert run_as("far", *arguments, TRITON_CACHE_DIR=f"{tmp_path}/file/x") == 1
    assert run_as("near", *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "near:"
    assert "caches              failure" in "\n".join(lines[lines.index("far:") :])
    reports = {node: read_report(folder / f"{node}.json") for node in NODES}
    assert [report.verdict for report in reports.values() if report] == ["ok", "failure"]


def test_slurm_names_the_nodes_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(node="n2", index=1, num_nodes=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names_of_nodes(place) == []
    (tmp_path / "scontrol").write_text("#!/bin/sh\n[ $3 = 'n[1-2]' ] && printf 'n1\\nn2\\n'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    assert names_of_nodes(place) == ["n1", "n2"]
    assert names_of_nodes(Place(node="n2")) == ["n2"]


@pytest.mark.parametrize(("num_gpus", "expected"), [("8", 8), ("gpu:h100:8", 8), ("", 0)])
def test_the_gpus_of_a_node_are_counted_whichever_way_slurm_writes_them(
    num_gpus: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", num_gpus)
    assert place_of_this_process().num_allocated == 0
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert place_of_this_process().num_allocated == expected


def test_what_another_node_than_the_first_refuses_is_no_mistake_of_the_user(
    tmp_path: Path, run_as: Callable[..., int]
) -> None:
    assert run_as("far", "--only=start", f"--folder={tmp_path}", "model.path=/no/such") == 1
    report = read_report(tmp_path / "far.json")
    assert report is not None
    assert report.verdict == "failure"
    assert run_as("near", "--only=start", f"--folder={tmp_path}", "model.path=/no/such") == 2
    report = read_report(tmp_path / "near.json")
    assert report is not None
    assert report.verdict == "mistake"


@pytest.mark.slow
def test_two_nodes_meet_and_measure_their_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "nemo_prorl", "doctor", f"--nodes={','.join(NODES)}", "--only=network"]
    tasks = [
        subprocess.Popen(
            [*command, f"--folder={tmp_path}"],
            cwd=ROOT,
            env={**os.environ, **task_of(node), **meeting},
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in NODES
    ]
    said = [task.communicate(timeout=300)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert "2 nodes connect; gloo" in said[0]
    assert "clocks              ok" in said[0]
