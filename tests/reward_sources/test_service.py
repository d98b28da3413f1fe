"""Tests of the reward service as a child process: its start, its stop, and the message if it does not start. One test
uses the real service, the others, which are about starting, a few lines of Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.distributed import alone, initialise
from nemo_prorl.reward_sources.service import (
    URL_VARIABLE,
    RewardServiceNotStarted,
    announced_by_main,
    reward_client,
    reward_service,
    running_service,
)
from reward.client import RewardClient, RewardServiceError
from reward.protocol import ScoreRequest
from tests.conftest import ROOT
from tests.engines.conftest import run_ranks

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


@pytest.mark.slow
def test_the_real_service_grades_and_is_gone_afterwards(tmp_path: Path) -> None:
    with (
        running_service(RewardConfig(), tmp_path / "run") as service,
        RewardClient(urls=[service.url]) as client,
    ):
        client.wait_until_ready(120)
        futures = [
            client.submit(
                ScoreRequest(
                    request_id=answer,
                    domain="math",
                    response=f"\\boxed{{{answer}}}",
                    task={"answer": "4"},
                )
            )
            for answer in ("4", "5")
        ]
        assert [future.result().score for future in futures] == [1.0, 0.0]
    assert service.process.returncode == 0
    with RewardClient(urls=[service.url]) as client, pytest.raises(Exception, match="not ready"):
        client.wait_until_ready(0.5)
    assert (tmp_path / "run" / "reward_service.log").is_file()


def test_a_service_that_ends_at_once_says_its_last_words(tmp_path: Path, fake_python: MakePython) -> None:
    config = fake_python("import sys; print('one'); print('the port is taken', file=sys.stderr); sys.exit(3)")
    with (
        pytest.raises(RewardServiceNotStarted, match=r"ended with code 3.*the port is taken") as caught,
        reward_service(config, tmp_path / "run"),
    ):
        pass
    assert str(tmp_path / "run" / "reward_service.log") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_service_that_never_gets_ready_is_stopped(tmp_path: Path, fake_python: MakePython) -> None:
    config = fake_python("import time; time.sleep(600)", ready_timeout_s=3.0)
    said = r"not ready in reward.ready_timeout_s=3: .*reward_service.log\).$"
    with pytest.raises(RewardServiceNotStarted, match=said), reward_service(config, tmp_path):
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


def test_signals_to_the_trainers_group_do_not_reach_the_service(
    tmp_path: Path, fake_python: MakePython
) -> None:
    """Ctrl-C, `timeout` and batch systems send it to the group; the trainer still has to finish its step and save."""
    fake_python(WRITES_READY + "time.sleep(600)")
    program = (
        "import signal, sys; from pathlib import Path; from nemo_prorl.config import RewardConfig\n"
        "from nemo_prorl.reward_sources.service import running_service\n"
        f"for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda *_: None)\n"
        f"sys.executable = {sys.executable!r}\n"
        f"with running_service(RewardConfig(), Path({str(tmp_path)!r})) as service:\n"
        "    print('ready', flush=True); sys.stdin.readline(); service.check(); print('still there', flush=True)\n"
    )
    trainer = subprocess.Popen(
        [PYTHON, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "ready\n"
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(trainer.pid, number)
    said, _ = trainer.communicate("go on\n", timeout=60)
    assert said == "still there\n"
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


def test_a_signal_to_all_processes_of_a_job_does_not_end_the_service(
    tmp_path: Path, fake_python: MakePython
) -> None:
    config = fake_python('print("ready", flush=True)' + WRITES_READY + "time.sleep(60)")
    with running_service(config, tmp_path) as service:
        service.process.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(0.5)
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def two_ranks_worker(folder: Path, url: str) -> dict[str, Any]:
    """Returns the servers that one of two ranks sees in a folder that only the main rank can read."""
    ranks = initialise(1, 1)
    is_main = ranks.layout.is_main
    missing = folder / "missing" if is_main else Path("/no/such/folder")
    try:
        with reward_client(RewardConfig(discovery_dir=str(missing), ready_timeout_s=0.2), ranks, folder):
            said = ""
    except RewardServiceError as error:
        said = str(error)
    ready = folder / "node.json"
    if is_main:
        ready.write_text(json.dumps({"url": "http://127.0.0.1:1"}))
    announced = announced_by_main(folder if is_main else missing, ranks)
    assert announced is not None
    early = {} if is_main else dict(announced())
    ranks.barrier()
    known = dict(announced()) if is_main else {}
    ranks.barrier()
    known = known or dict(announced())
    ranks.barrier()
    if is_main:
        ready.write_text(json.dumps({"url": url}))
    config = RewardConfig(discovery_dir=str(folder if is_main else missing))
    with reward_client(config, ranks, folder) as grader:
        request = ScoreRequest(request_id="r", domain="math", response="\\boxed{5}", task={"answer": "5"})
        score = grader.submit(request, None).result(120).score  # type: ignore[arg-type]
        ranks.barrier()
    return {
        "said": said,
        "early": early,
        "known": known,
        "score": score,
        "version": grader.version,
        "knows": grader.grades("math"),
    }


@pytest.mark.slow
def test_the_main_rank_finds_the_servers_for_all_ranks(service: str, tmp_path: Path) -> None:
    main, other = run_ranks(two_ranks_worker, 2, folder=tmp_path, url=service)
    assert main["said"] == other["said"]
    assert "no reward server announced itself in" in main["said"]
    assert other["early"] == {}, "the main rank has told nobody yet"
    assert main["known"] == other["known"] == {"node": "http://127.0.0.1:1"}
    assert main["score"] == other["score"] == 1.0
    assert main["version"] == other["version"] != ""
    assert main["knows"]
    assert other["knows"]


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
