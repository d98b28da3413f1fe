"""Tests of the reward service as a child process, which most of them replace by a few lines of Python, and of what a
run checks before sampling: which servers can grade its data, and which tasks no grader accepts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.distributed import Layout, alone
from nemo_prorl.reward_sources.service import (
    URL_VARIABLE,
    check_tasks,
    ready_client,
    reward_client,
    reward_service,
    running_service,
)
from reward.client import RewardServiceError
from reward.protocol import ScoreRequest
from tests.data.conftest import make_row
from tests.reward.fake_server import FakeServer, fake_servers

PYTHON = sys.executable
WRITES_READY = """
import json, os, sys, time
ready = sys.argv[sys.argv.index("--ready-file") + 1]
aside = ready + ".aside"
open(aside, "w").write(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
os.replace(aside, ready)
"""

HEEDS_A_HANG_UP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
"""As the service does: a program inherits from `nohup` that it ignores the signal with which a run stops it."""

MakePython = Callable[[str], RewardConfig]


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePython:
    """Puts an "interpreter" in place of this one that ignores its arguments, runs the given program, and writes its pid
    beside itself."""

    def make(program: str, ready_timeout_s: float = 120.0) -> RewardConfig:
        (tmp_path / "program.py").write_text(HEEDS_A_HANG_UP + program)
        script = tmp_path / "python"
        script.write_text(
            f'#!/bin/sh\necho $$ >"{tmp_path}/pid"\nexec "{PYTHON}" "{tmp_path}/program.py" "$@"\n'
        )
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return RewardConfig(ready_timeout_s=ready_timeout_s)

    return make


def is_gone(pid: int) -> bool:
    """Returns whether the process has ended and its parent has collected it."""
    return not Path(f"/proc/{pid}").exists()


def test_a_service_that_ends_at_once_says_its_last_words(tmp_path: Path, fake_python: MakePython) -> None:
    config = fake_python("import sys; print('one'); print('the port is taken', file=sys.stderr); sys.exit(3)")
    with (
        pytest.raises(RewardServiceError, match=r"ended with code 3.*the port is taken") as caught,
        reward_service(config, tmp_path / "run"),
    ):
        pass
    assert str(tmp_path / "run" / "reward_service.log") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_service_that_never_gets_ready_is_stopped(tmp_path: Path, fake_python: MakePython) -> None:
    config = fake_python("import time; time.sleep(600)", ready_timeout_s=3.0)
    said = r"not ready in reward.ready_timeout_s=3: .*reward_service.log\).$"
    with pytest.raises(RewardServiceError, match=said), reward_service(config, tmp_path):
        pass
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_service_is_stopped_whatever_happens(
    tmp_path: Path, fake_python: MakePython, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    """Also if it ignores the signal to stop."""
    program = WRITES_READY
    if stubborn:
        program = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + program
        wait = subprocess.Popen.wait
        monkeypatch.setattr(
            subprocess.Popen, "wait", lambda self, timeout=None: wait(self, timeout and min(timeout, 0.5))
        )
    config = fake_python(program + "time.sleep(600)")

    def fail_in_it() -> None:
        with reward_service(config, tmp_path) as url:
            assert os.environ[URL_VARIABLE] == url
            assert url == "http://127.0.0.1:1"
            raise KeyError("the run failed")

    with pytest.raises(KeyError):
        fail_in_it()
    assert URL_VARIABLE not in os.environ
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_the_trainer_preloads_stays_out_of_the_service_and_an_earlier_log_stays(
    tmp_path: Path, fake_python: MakePython, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward_service.log").write_text("earlier\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("MARK_OF_THE_TRAINER", "kept")
    seen = tmp_path / "seen"
    config = fake_python(
        f"import os; open({str(seen)!r}, 'w').write(' '.join(os.environ)); print('later', flush=True)\n"
        + WRITES_READY
        + "time.sleep(600)"
    )
    with reward_service(config, tmp_path):
        names = seen.read_text().split()
    assert "MARK_OF_THE_TRAINER" in names
    assert {"LD_PRELOAD", "LD_LIBRARY_PATH"} & set(names) == set()
    assert (tmp_path / "reward_service.log").read_text() == "earlier\nlater\n"


def test_neither_a_signal_to_all_processes_of_a_job_nor_one_to_the_trainers_group_ends_the_service(
    tmp_path: Path, fake_python: MakePython
) -> None:
    """Batch systems send SIGUSR1 to each process, and Ctrl-C and `timeout` signal the group of the trainer, which still
    has to finish its step and save."""
    config = fake_python('print("ready", flush=True)' + WRITES_READY + "time.sleep(60)")
    with running_service(config, tmp_path) as service:
        assert os.getpgid(service.process.pid) != os.getpgid(0)
        service.process.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(0.5)
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_run_asks_the_service_of_the_command_that_started_it(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start one of its own, which fails here, and its options name none."""
    config = RewardConfig()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no" / "python"))
    with pytest.raises(FileNotFoundError), reward_client(config, alone(), tmp_path):
        pass
    monkeypatch.setenv(URL_VARIABLE, service)
    request = ScoreRequest(request_id="r", domain="math", response="\\boxed{5}", task={"answer": "5"})
    with reward_client(config, alone(), tmp_path) as grader:
        assert grader.submit(request, None).result(120).score == 1.0  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- what a run checks
REFUSED = {"ready": False, "is_refused": True, "reason": "no sandbox on this machine"}


@pytest.fixture
def fakes() -> Iterator[Callable[..., FakeServer]]:
    with fake_servers() as make:
        yield make


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ("code", r"refuses code \(no sandbox on this machine\): serve on machines that can"),
        ("haiku", r"does not know the domain haiku: .*install the grader plug-in"),
    ],
)
def test_a_service_that_cannot_grade_the_data_is_refused_with_its_own_reason(
    fakes: Callable[..., FakeServer], domain: str, words: str
) -> None:
    """Before anything is sampled, without waiting for reward.ready_timeout_s."""
    urls = [fakes(domains={"math": {"ready": True}, "code": REFUSED}).url]
    with ready_client(RewardConfig(), urls, ["math"]):
        pass
    config = RewardConfig(ready_timeout_s=3600.0)
    with pytest.raises(ConfigError, match=words), ready_client(config, urls, ["math", domain]):
        pass


def test_the_main_rank_alone_waits_and_the_others_learn_what_it_found(
    fakes: Callable[..., FakeServer], tmp_path: Path
) -> None:
    told: list[Any] = []
    fake = fakes(domains={"math": {"ready": True}, "code": {"ready": True}})
    config = RewardConfig(urls=[fake.url])
    for rank, on_main in enumerate((lambda found: told.append(found()) or told[0], lambda _: told[0])):
        layout = Layout(rank=rank, world_size=2, tensor_parallel=1, pipeline_parallel=1)
        ranks: Any = SimpleNamespace(layout=layout, on_main=on_main)
        with reward_client(config, ranks, tmp_path, ["math", "code"]) as grader:
            assert (grader.version, grader.grades("code"), grader.grades("logic")) == ("v1", True, False)
            if rank:
                assert not fake.tokens, "a client comes with the first request"
                request = ScoreRequest(request_id="r", domain="code", response="", task={})
                assert grader.submit(request, None).result(60).score == 1  # type: ignore[arg-type]
        fake.tokens.clear()


DOUBLE = {"inputs": ["2"], "outputs": ["4"], "fn_name": "double"}
BAD_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"task": {"ground_truth": "4"}}, 'the task needs "answer", a non-empty string'),
    ({"domain": "code", "task": {**DOUBLE, "cpu_s": 0}}, '"cpu_s" must be a number of seconds'),
    ({"domain": "logic", "task": {"task": "no_such_puzzle", "entry": {}}}, "no Reasoning Gym task"),
    ({"domain": "instruction", "task": {"instruction_id_list": ["x"], "kwargs": []}}, "0 kwargs"),
]


def checked_file(tmp_path: Path, *rows: Row) -> str:
    file = tmp_path / "rows.parquet"
    write_rows(file, list(rows))
    return str(file)


@pytest.mark.parametrize(
    ("row", "reason"), [*BAD_TASKS, ({"domain": "maths"}, "grader for the domain 'maths', but math")]
)
def test_a_task_that_no_grader_accepts_is_named(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    good = [make_row("g/0"), make_row("g/1"), make_row("g/2", domain="code", task=DOUBLE)]
    file = checked_file(tmp_path, *good)
    check_tasks(RewardConfig(), [file])
    words = (
        rf"rows\.parquet: 1 of 4 checked rows cannot be graded, such as row 3 \(b/0\): .*{reason}.*; "
        "correct its domain or task"
    )
    bad = checked_file(tmp_path, *good, make_row("b/0", **row))
    with pytest.raises(ConfigError, match=words) as caught:
        check_tasks(RewardConfig(), [bad])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (RewardConfig(), True),
        (RewardConfig(urls=["http://x"]), False),
        (RewardConfig(function=["a.py:f"], weights={"service": 1.0}), False),
    ],
)
def test_what_others_may_grade_is_left_to_them(tmp_path: Path, config: RewardConfig, refused: bool) -> None:
    """A service on another machine may have plug-ins and verifiers that are not installed here, and functions may grade
    any domain."""
    for row in (
        make_row("a", domain="chess", task={"fen": "8/8"}),
        make_row("b", task={"answer": "4", "verifier": "papers"}),
    ):
        with pytest.raises(ConfigError) if refused else nullcontext():
            check_tasks(config, [checked_file(tmp_path, row)])
    with pytest.raises(ConfigError, match="1 of 1"):
        check_tasks(config, [checked_file(tmp_path, make_row("c", task={"answer": ""}))])


@pytest.mark.parametrize("weights", [{}, {"service": 0.0}])
def test_tasks_do_not_matter_where_the_service_decides_nothing(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    config = RewardConfig(function=["a.py:f"], weights=weights)
    check_tasks(config, [checked_file(tmp_path, make_row("a", task={}))])


def test_an_environment_without_graders_is_refused_before_a_service_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a run that would start a service needs them here."""
    monkeypatch.setattr("reward.__main__._SERVER_MODULES", ("a_module_that_nobody_has",))
    file = checked_file(tmp_path, make_row("a/0", task={}))
    with pytest.raises(
        ConfigError, match=r"cannot be started: a_module_\w+ cannot be imported: .*\[server\]"
    ):
        check_tasks(RewardConfig(), [file])
    check_tasks(RewardConfig(urls=["http://x"]), [file])
