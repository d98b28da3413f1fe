"""When a run saves: after a number of steps or minutes, the same on every rank, and never twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import CheckpointCallbackParams, ConfigError
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.markers import save_request
from nemo_prorl.training import checkpoint
from nemo_prorl.training.checkpoint import SaveSchedule
from nemo_prorl.training.trainer import ProRLTrainer
from tests.training.scripted_run import Killed, Run
from tests.training.thread_ranks import run_as_ranks


class Clock:
    """The schedule's clock, which the test advances. Saves are timed by another one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(checkpoint, "monotonic", lambda: self.now_s)

    def follow(self, run: Run) -> None:
        """Advances the clock by a minute in the updates of each step."""

        def on_phase(phase: str) -> None:
            self.now_s += 60.0 * (phase == "updates")

        run.on_phase = on_phase


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def saves_of(clock: Clock, step_s: list[float], **params: Any) -> list[int]:
    """Returns the steps after which a stage saves whose steps take this long."""
    schedule, saved = SaveSchedule(CheckpointCallbackParams(**params)), []
    for step, seconds in enumerate(step_s, start=1):
        is_due = schedule.is_due(step)
        clock.now_s += seconds
        schedule.by_clock = schedule.next_by_clock(step, seconds)
        if is_due:
            schedule.note_save()
            saved.append(step)
    return saved


@pytest.mark.parametrize(
    ("step_s", "params", "expected"),
    [
        ([60.0] * 12, {"every_n_train_steps": 0, "every_minutes": 5.0}, [5, 10]),
        ([60.0] * 12, {"every_n_train_steps": 4, "every_minutes": 5.0}, [4, 8, 12]),
        ([60.0] * 12, {"every_n_train_steps": 6, "every_minutes": 5.0}, [5, 6, 11, 12]),
        ([60.0] * 12, {"every_n_train_steps": 0, "every_minutes": 0.0}, []),
        # Steps that are longer than the interval: each is saved but the first one.
        ([1000.0] * 4, {"every_n_train_steps": 0, "every_minutes": 15.0}, [2, 3, 4]),
        # After a step of unusual length the next one is saved.
        ([60.0, 60.0, 900.0, 60.0, 60.0], {"every_n_train_steps": 0, "every_minutes": 5.0}, [4]),
    ],
)
def test_steps_that_are_saved(
    clock: Clock, step_s: list[float], params: dict[str, Any], expected: list[int]
) -> None:
    assert saves_of(clock, step_s, **params) == expected


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_callback_params\.every_minutes=-1.*at least 0"):
        CheckpointCallbackParams(every_minutes=-1.0)


def by_clock(folder: Path, clock: Clock, **config: Any) -> Run:
    """A run with steps of one minute and a checkpoint every three minutes. The stopwatch does not see these minutes, so
    the schedule announces the step after the third one."""
    run = Run(folder, async_save=False, **config)
    run.config.exp_manager.checkpoint_callback_params.every_minutes = 3.0
    clock.follow(run)
    return run


def test_the_trainer_saves_by_the_clock(tmp_path: Path, clock: Clock) -> None:
    run = by_clock(tmp_path, clock, num_steps=10)
    assert run.fit() == "steps"
    assert run.saved_steps == [4, 8, 10]
    assert run.events.count("save") == 3, "nothing is saved twice"


def test_the_main_rank_decides_for_all(tmp_path: Path, clock: Clock) -> None:
    """A save is collective: a rank whose own clock would never save takes part."""

    def fit(ranks: Any) -> int:
        run = by_clock(tmp_path, clock, num_steps=5)
        if not ranks.layout.is_main:
            run.config.exp_manager.checkpoint_callback_params.every_minutes = 0.0
            run.on_phase = lambda phase: None
        run.fit(ranks)
        return run.events.count("save")

    assert run_as_ranks(fit, 2, 2, 1) == [2, 2]
    assert Run(tmp_path).saved_steps == [4, 5]


def test_nothing_is_sampled_ahead_across_a_checkpoint_of_the_clock(tmp_path: Path, clock: Clock) -> None:
    run = by_clock(tmp_path, clock, num_steps=7, held_out=0, ahead=True)
    run.fit()
    assert run.saved_steps == [4, 7]
    behind = [record["sampler/updates_behind"] for record in run.records if record["step"]]
    assert behind == [0, 2, 2, 2, 0, 2, 2], "the step after a save is sampled after it"


def ask_in_updates(run: Run, *steps: int) -> None:
    """Lets a user ask for a checkpoint in the updates of these steps."""
    request = save_request(run.folder)
    request.parent.mkdir()

    def on_phase(phase: str) -> None:
        if phase == "updates" and run.state.step + 1 in steps:
            request.write_text("")

    run.on_phase = on_phase


@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_user_asks_for_is_saved_after_the_step_once_and_kept(
    tmp_path: Path, ahead: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, num_steps=9, every=2, keep=1, ahead=ahead)
    ask_in_updates(run, 3, 6)
    waiting: list[int] = []
    ask = run.on_phase

    def look(phase: str) -> None:
        ask(phase)
        if phase == "old_logprobs" and save_request(tmp_path).exists():
            waiting.append(run.state.step)

    run.on_phase = look
    assert run.fit() == "steps"
    assert (run.saved_steps, waiting) == ([3, 6, 9], []), "step 6 is due anyway"
    assert run.events.count("save") == 6
    assert "the checkpoint of step 3 was asked for: the run keeps it" in capsys.readouterr().err


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_request_is_neither_lost_nor_doubled_by_a_kill(
    tmp_path: Path, is_saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, request = Run(tmp_path, num_steps=4, async_save=False), save_request(tmp_path)
    ask_in_updates(run, 2)
    name = "_delete_requests" if is_saved else "_save"
    method = getattr(ProRLTrainer, name)

    def die(trainer: ProRLTrainer) -> None:
        if trainer.state.step == 2:
            raise Killed
        method(trainer)

    monkeypatch.setattr(ProRLTrainer, name, die)
    with pytest.raises(Killed):
        run.fit()
    monkeypatch.undo()
    assert (run.saved_steps, request.exists()) == ([2] if is_saved else [], True)
    resumed = run.resume()
    resumed.on_phase = lambda phase: None
    assert resumed.fit() == "steps"
    assert ([one.state.step for one in find_checkpoints(tmp_path) if one.is_requested], request.exists()) == (
        [2] if is_saved else [1],
        False,
    )


@pytest.mark.parametrize("asks", [True, False])
def test_a_request_that_cannot_be_deleted_or_looked_for_ends_no_run(tmp_path: Path, asks: bool) -> None:
    run, request = Run(tmp_path, num_steps=3), save_request(tmp_path)
    if asks:
        request.mkdir(parents=True)
    else:
        request.parent.touch()
    assert run.fit() == "steps"
    assert run.resume(num_steps=4).fit() == "steps"
    assert [one.state.step for one in find_checkpoints(tmp_path) if one.is_requested] == [1] * asks


def test_all_ranks_save_what_the_main_rank_sees_asked_for(tmp_path: Path) -> None:
    def fit(ranks: Any) -> int:
        run = Run(tmp_path, num_steps=3, async_save=False)
        if ranks.layout.is_main:
            ask_in_updates(run, 2)
        run.fit(ranks)
        return run.events.count("save")

    assert run_as_ranks(fit, 2, 2, 1) == [2, 2]
    assert Run(tmp_path).saved_steps == [2, 3]
