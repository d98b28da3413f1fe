"""Tests of the reward service as a child process: its start, its stop, and the message if it does not start. One test
uses the real service, the others, which are about starting, a few lines of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.distributed import alone
from nemo_prorl.reward_sources.service import (
    URL_VARIABLE,
    reward_client,
    reward_service,
    running_service,
)
from reward.client import RewardServiceError
from reward.protocol import ScoreRequest

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
