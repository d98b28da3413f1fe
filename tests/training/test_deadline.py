"""When a run pauses: signals, time limits, and the expected duration of the next step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig
from nemo_prorl.training import deadline
from nemo_prorl.training.deadline import Deadline, find_ends

NOW = 1_000_000.0


@pytest.fixture(autouse=True)
def _no_signal_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_received", [])


@pytest.fixture
def catching(handlers_restored: None) -> None:
    deadline.catch_signals()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_asks_for_a_pause_and_the_first_of_its_kind_says_so(
    catching: None, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Deadline({}).reason() == ""
    for _ in range(2):
        os.kill(os.getpid(), number)
    assert Deadline({}).reason() == f"{number.name} came"
    assert capfd.readouterr().err == f"{number.name} came: the run saves itself after this step and pauses.\n"


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """Restores the handling of Ctrl-C, which shells switch off for background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("speaks", [True, False])
def test_ctrl_c_asks_for_a_pause_and_ends_the_process_when_pressed_again(
    in_the_foreground: None, capfd: pytest.CaptureFixture[str], speaks: bool
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with deadline.pausing_on_interrupt(speaks=speaks):
        os.kill(os.getpid(), signal.SIGINT)
        assert Deadline({}).reason() == "SIGINT came"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    said = "Ctrl-C: the run saves itself after this step and ends; again: it ends at once."
    assert capfd.readouterr().err.strip() == said * speaks


def test_a_process_in_the_background_ignores_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deadline.pausing_on_interrupt(speaks=True):
            os.kill(os.getpid(), signal.SIGINT)
            assert Deadline({}).reason() == ""
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("steps", "validations", "saves", "left_s", "pauses"),
    [
        ([100.0], [], [], 161.0, False),
        ([100.0], [], [], 159.0, True),
        ([100.0, 300.0, 50.0], [], [], 459.0, True),  # the longest counts
        ([100.0], [40.0], [20.0], 249.0, True),
        ([100.0], [40.0], [20.0], 251.0, False),
        ([100.0], [], [], -5.0, True),  # too late is no reason to go on
        ([], [], [], 1.0, False),  # nothing is known yet: a first step is always tried
        ([], [40.0], [20.0], 1.0, False),  # also after the validation of the stage's start
    ],
)
def test_a_step_is_begun_only_if_there_is_time_for_it(
    steps: list[float], validations: list[float], saves: list[float], left_s: float, pauses: bool
) -> None:
    """The time needed is 1.5 times the longest of each part, plus 10 seconds."""
    watched = Deadline({"the job": NOW + left_s, "another": NOW + 1e6})
    for what, durations in (("step", steps), ("validation", validations), ("save", saves)):
        for seconds in durations:
            watched.note(what, seconds)
    assert watched.reason(NOW).startswith("the job leaves ") == pauses
    assert bool(watched.reason(NOW)) == pauses


def test_a_long_step_is_forgotten_in_time() -> None:
    watched = Deadline({"the job": NOW + 200})
    watched.note("step", 1000.0)
    assert watched.reason(NOW)
    for _ in range(deadline.NUM_RECENT):
        watched.note("step", 1.0)
    assert not watched.reason(NOW)


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 0), ("00:00:00:30", 30), ("00:03:55:00", 14100), ("1:2:3:4", 93784)]
)
def test_the_users_limit_is_nemos(text: str, seconds: int) -> None:
    config = ExpManagerConfig(max_time_per_run=text)
    assert config.max_time_per_run_s == seconds
    expected = {"exp_manager.max_time_per_run": deadline.STARTED + seconds} if seconds else {}
    assert find_ends(config, {}) == expected


@pytest.mark.parametrize(
    "text", ["30", "00:30", "4h", "00:24:00:00:00", "00:00:60:00", "-1:00:00:00", "00:0a:00:00"]
)
def test_a_malformed_time_is_refused_with_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="write DD:HH:MM:SS") as caught:
        ExpManagerConfig(max_time_per_run=text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "ends"), [("1795271372", [1795271372.0]), ("", [])])
def test_slurm_says_when_its_job_ends(text: str, ends: list[float]) -> None:
    assert list(find_ends(ExpManagerConfig(), {"SLURM_JOB_END_TIME": text}).values()) == ends


def test_signals_are_caught_before_anything_heavy_is_imported() -> None:
    """Slurm may send a signal while torch loads."""
    program = "import sys, nemo_prorl.training.deadline; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_more_time_to_shut_down_means_an_earlier_pause() -> None:
    ends = {"exp_manager.max_time_per_run": NOW + 100}
    for spare_s, pauses in ((10.0, False), (70.0, True)):
        limit = Deadline(ends, spare_s=spare_s)
        limit.note("step", 40.0)
        assert bool(limit.reason(NOW + 20)) is pauses


def test_a_signal_of_slurm_at_the_start_of_a_short_job_asks_for_no_pause(
    catching: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every start of the job would be a single step."""
    monkeypatch.setenv("PRORL_HEED_USR1_FROM", f"{time.time() + 60:.0f}")
    signal.raise_signal(signal.SIGUSR1)
    assert not deadline.has_come(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    assert deadline.has_come(signal.SIGTERM)
    monkeypatch.setenv("PRORL_HEED_USR1_FROM", "0")
    signal.raise_signal(signal.SIGUSR1)
    assert deadline.has_come(signal.SIGUSR1)
