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
from nemo_prorl.doctor.examine import Place, known_domains, names_of_nodes, place_of_this_process
from nemo_prorl.doctor.report import read_report
from nemo_prorl.doctor.sandbox import begin_reward_check
from tests.conftest import ROOT

NODES = ("near", "far")
QUICK = ("--only=limits", "--only=folders")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a job."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)


def task_of(node: str) -> dict[str, str]:
    """Returns the variables of one task of a step of two."""
    place = {"SLURM_PROCID": str(NODES.index(node)), "SLURMD_NODENAME": node}
    return {"SLURM_STEP_NUM_TASKS": str(len(NODES)), **place}


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """run_as(node, *arguments) runs one task of a step of two in this process, after those that it would wait for."""

    def run(node: str, *arguments: str) -> int:
        with monkeypatch.context() as here:
            for name, value in task_of(node).items():
                here.setenv(name, value)
            return cli.main(["doctor", f"--nodes={','.join(NODES)}", *arguments])

    return run


def test_a_machine_without_a_model_is_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = tmp_path / "out", f"exp_manager.explicit_log_dir={tmp_path}/run"
    assert cli.main(["doctor", *QUICK, "--only=start", f"--folder={folder}", run]) == 0
    said = capsys.readouterr().out
    assert "no model was named" in said
    assert "Every check is fine; not checked: " in said
    (file,) = folder.glob("*.json")
    found = {item["name"]: item["status"] for item in json.loads(file.read_text())["findings"]}
    assert (found["open files"], found["run folder"]) == ("ok", "ok")
    assert list(tmp_path.iterdir()) == [folder], "no run's folder"


def test_a_run_folder_that_cannot_be_is_a_failure_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    run = f"exp_manager.explicit_log_dir={tmp_path}/file/run"
    assert cli.main(["doctor", *QUICK, run]) == 1
    assert "-> write another exp_manager.explicit_log_dir" in capsys.readouterr().out
    assert cli.main(["doctor", *QUICK, "--allow=run-folder", run]) == 0


@pytest.mark.parametrize(
    "argument", ["--nodes=a,b", "--only=everything", "--reward-elsewhere", "--allow=netwrk", "no.such=1"]
)
def test_wrong_arguments_are_mistakes(argument: str) -> None:
    assert cli.main(["doctor", argument]) == 2


@pytest.mark.parametrize("argument", ["no.such=1", "--allow=netwrk", "stage=none"])
def test_a_launcher_can_tell_a_mistake_from_a_broken_node(
    tmp_path: Path, run_as: Callable[..., int], argument: str
) -> None:
    """Anything may end with 2 on a node; only what it has written says that the user is to blame."""
    for node in NODES:
        assert run_as(node, f"--folder={tmp_path}", argument) == 2
        found = json.loads((tmp_path / f"{node}.json").read_text())
        assert (found["verdict"], found["is_complete"]) == ("mistake", True)
        assert found["sentence"].startswith("start: ")


@pytest.mark.medium
def test_this_machines_service_says_what_it_can_grade() -> None:
    facts = begin_reward_check(None)()
    assert facts.refusal == ""
    assert facts.sandbox in ("namespaces", "landlock", "namespaces-only", "none")
    assert {"math", "code", "logic"} <= {*facts.domains}


def test_a_service_that_does_not_start_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert "ended with code 1 (it is broken)" in begin_reward_check(None)().refusal
    for text in ("", "No module named reward\n"):
        (tmp_path / "report").write_text(text)
        assert (text.strip() or "nothing") in begin_reward_check(tmp_path / "report")().refusal


def test_the_domains_of_the_data_meet_the_sandbox_of_the_node(
    tmp_path: Path, run_as: Callable[..., int]
) -> None:
    """What the launcher's other container says is awaited, and held against the rows, which the first node reads."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    options = [
        f"data.train={{{rows}: 1}}",
        "data.validation=[]",
        f"exp_manager.explicit_log_dir={tmp_path}/run",
    ]
    (tmp_path / "domains").write_text("code\nmath\n")
    for node, lacks, read in (
        ("far", "the data has code, which cannot be graded here: no kernel", "code\nmath\n"),
        ("near", "the data has domains that no grader knows: math", "math\n"),
    ):
        said = {"sandbox": "none", "reasons": ["no kernel"], "domains": ["code"], "version": "v"}
        (tmp_path / f"{node}.reward").write_text(json.dumps(said))
        assert run_as(node, "--only=sandbox", f"--folder={tmp_path}", "--reward-elsewhere", *options) == 1
        assert lacks in json.loads((tmp_path / f"{node}.json").read_text())["sentence"]
        assert (tmp_path / "domains").read_text() == read
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
    """What another node than the first refuses is no mistake of the user: its file system may be missing."""
    arguments = ("--only=start", "--only=limits", f"--folder={tmp_path}", "model.path=/no/such")
    assert run_as("far", *arguments) == 1
    assert run_as("near", *arguments) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "near:"
    assert "start               failure" in "\n".join(lines[lines.index("far:") :])
    verdicts = [json.loads((tmp_path / f"{node}.json").read_text())["verdict"] for node in NODES]
    assert verdicts == ["mistake", "failure"]
    assert read_report(tmp_path, "far") is not None


def test_slurm_names_the_nodes_of_a_step_and_counts_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(node="n2", index=1, num_nodes=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names_of_nodes(place) == []
    (tmp_path / "scontrol").write_text("#!/bin/sh\n[ $3 = 'n[1-2]' ] && printf 'n1\\nn2\\n'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    assert names_of_nodes(place) == ["n1", "n2"]
    assert names_of_nodes(Place(node="n2")) == ["n2"]
    for written, number in (("8", 8), ("gpu:h100:8", 8), ("", 0)):
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", written)
        assert place_of_this_process().num_allocated == 0
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        assert place_of_this_process().num_allocated == number


@pytest.mark.slow
def test_two_nodes_meet_and_measure_their_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
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
    said = [task.communicate(timeout=500)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert "2 nodes connect; gloo" in said[0]
    assert "clocks              ok" in said[0]
