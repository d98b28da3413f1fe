"""Runs of the trainer on scripted engines: one thread, milliseconds, real checkpoints and metrics files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import (
    AlgorithmConfig,
    CheckpointCallbackParams,
    ControllerConfig,
    CorrectionLevel,
    ExpManagerConfig,
    ValidationConfig,
)
from nemo_prorl.config.compose import to_dict
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.run_folder.telemetry import RunLog, Telemetry
from nemo_prorl.training.checkpoint import CheckpointWriter
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.control.health import Alarms
from nemo_prorl.training.deadline import Deadline
from nemo_prorl.training.evaluation import begin_measuring, measurement
from nemo_prorl.training.stages import StartingPoint
from nemo_prorl.training.timing import Stopwatch
from nemo_prorl.training.trainer import ProRLTrainer
from nemo_prorl.training.watchdog import Watchdog
from nemo_prorl.types import Prompt, RunState
from tests.training.conftest import (
    MIXED,
    RIGHT,
    SINGLE,
    ListedPrompts,
    ScriptedGrader,
    ScriptedPolicy,
    ScriptedSampler,
    make_config,
    make_prompt,
    new_state,
)
from tests.training.tiny import timeless


class Killed(BaseException):
    """A kill of the process: nothing catches it or cleans up."""


class Due:
    """A replacement for Deadline: a signal comes after some steps."""

    def __init__(self, num_steps: int) -> None:
        self.left = num_steps

    def note(self, what: str, seconds: float) -> None:
        self.left -= what == "step"

    def reason(self) -> str:
        return "" if self.left > 0 else "SIGUSR1 came"


class NothingToSave:
    """A pending save without files, for a rank whose weights another rank saves."""

    def write(self) -> list[Path]:
        return []

    def finish(self) -> None: ...


class ToldWatchdog(Watchdog):
    """A watchdog that also tells the test which phase begins."""

    def __init__(self, folder: Path, on_phase: Callable[[str], None], *, rank: int) -> None:
        super().__init__(folder, rank=rank, timeout_s=0)
        self._told = on_phase

    def enter(self, phase: str) -> None:
        super().enter(phase)
        self._told(phase)


class Run:
    """A run in `folder`. `events` lists all calls of its engines."""

    def __init__(
        self,
        folder: Path,
        *,
        prompts: list[Prompt] | None = None,
        held_out: int = 1,
        state: RunState | None = None,
        every: int = 0,
        keep: int = 9,
        interval: int = 0,
        algorithm: AlgorithmConfig | None = None,
        controller: ControllerConfig | None = None,
        async_save: bool = True,
        ahead: bool = False,
        **options: Any,
    ) -> None:
        self.folder = folder
        (folder / "model").mkdir(parents=True, exist_ok=True)
        config = self.config = make_config(**({"prompts_per_step": 4, "updates_per_step": 2} | options))
        params = CheckpointCallbackParams(every_n_train_steps=every, save_last_k=keep, async_save=async_save)
        config.exp_manager = ExpManagerConfig(explicit_log_dir=str(folder), checkpoint_callback_params=params)
        config.validation = ValidationConfig(interval=interval, num_rollouts=4)
        corrected = AlgorithmConfig(correction_level=CorrectionLevel.token)
        config.algorithm = algorithm or (corrected if ahead else AlgorithmConfig())
        config.sampler.ahead = ahead
        config.controller = controller or ControllerConfig()
        self.events: list[str] = []
        self.sampler = ScriptedSampler(events=self.events)
        self.policy = ScriptedPolicy(events=self.events)
        self.grader = ScriptedGrader(at_once=True)
        self.state = state or new_state()
        self.deadline = Deadline({})
        self.start = StartingPoint(checkpoint=None, is_resume=False)
        self.prompts = ListedPrompts(prompts or [make_prompt(f"p{index}", MIXED) for index in range(200)])
        self.new_prompts: Callable[[], Any] = lambda: ListedPrompts(self.prompts.all)
        self.on_phase: Callable[[str], None] = lambda phase: None
        self.canary: Prompt | None = None
        self.sources: dict[str, str] = {}
        self.graders = "1.0"
        self.held_out = [make_prompt(f"v{index}", MIXED, domain="logic") for index in range(held_out)]

    def fit(self, ranks: Any = SINGLE) -> str:
        """Trains as `run.run_stage` does. On several ranks each has a Run of its own in the same folder."""
        is_main, rank = ranks.layout.is_main, ranks.layout.rank
        if ranks.layout.world_size > 1:  # the policies of the ranks are copies: one saves
            self.policy.reference_hash = lambda: "the same"  # type: ignore[method-assign]
        if rank:
            self.policy.begin_save = lambda directory: (self.events.append("save"), NothingToSave())[1]  # type: ignore[assignment, func-returns-value, method-assign]
        log = RunLog(self.folder, speaks=is_main)
        # A script may change while a run goes on.
        asked = [replace(prompt, task={}) for prompt in self.held_out]
        if change := begin_measuring(self.state, measurement(self.config, asked, self.graders)):
            log.say(change)
        telemetry = None
        if is_main:
            folder = Path(self.config.exp_manager.explicit_log_dir)
            alarms = Alarms(self.config.stage.name, dict(flatten(to_dict(self.config))), folder)
            telemetry = Telemetry(self.config, log=log, state=self.state, watch=alarms.observe)
        writer = CheckpointWriter(
            self.folder,
            model_dir=self.folder / "model",
            params=self.config.exp_manager.checkpoint_callback_params,
            ranks=ranks,
            provenance={},
        )
        watchdog = ToldWatchdog(self.folder, self.on_phase, rank=rank)
        return ProRLTrainer(
            context=StepContext(
                config=self.config,
                ranks=ranks,
                policy=self.policy,
                sampler=self.sampler,
                grader=self.grader,
                prompts=self.prompts,  # type: ignore[arg-type]
                sources=self.sources,
                stopwatch=Stopwatch(watchdog.enter),
                say=log.say,
                on_progress=watchdog.beat,
            ),
            held_out=self.held_out,
            canary=self.canary,
            checkpoints=writer,
            telemetry=telemetry,
            log=log,
            watchdog=watchdog,
            deadline=self.deadline,
            state=self.state,
        ).fit()

    def resume(self, *, num_steps: int = 0) -> Run:
        """Returns a run in a new process, which resumes from the newest checkpoint or begins anew without one.
        num_steps: its number of steps; 0: the same as before."""
        run = Run.__new__(Run)
        run.__dict__ |= self.__dict__ | {"events": [], "state": new_state()}
        if num_steps:
            run.config = replace(self.config, trainer=replace(self.config.trainer, num_steps=num_steps))
        run.sampler, run.policy = ScriptedSampler(events=run.events), ScriptedPolicy(events=run.events)
        run.policy.entropy = self.policy.entropy
        run.prompts = self.new_prompts()
        if checkpoints := find_checkpoints(self.folder):
            run.start = StartingPoint(checkpoint=checkpoints[-1], is_resume=True)
            run.state = run.start.state()
            run.policy.load(checkpoints[-1].policy)
            run.prompts.restore(run.state.prompts)
        return run

    @property
    def records(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder / "metrics.jsonl")

    @property
    def saved_steps(self) -> list[int]:
        return [checkpoint.state.step for checkpoint in find_checkpoints(self.folder)]


def nearly_exhausted(**values: Any) -> RunState:
    """Returns the state of a stage whose share of informative prompts has fallen in five steps."""
    share = values.get("sampling_yield", 0.04)
    recent = {"recent_prompts": 200.0, "recent_informative": 200.0 * share}
    return new_state(**({"step": 5, "stage_step": 5, "sampling_yield": share} | recent | values))


def running_out(num_steps: int) -> list[Prompt]:
    """Returns prompts of which so many steps of 4 find two informative ones in two rounds, and later steps none."""
    return [
        make_prompt(f"p{index}", MIXED if index < 24 * num_steps and index % 24 < 2 else RIGHT)
        for index in range(24 * num_steps + 300)
    ]


def killed_in_updates(run: Run, step: int) -> Run:
    """Kills the run in the updates of the step after `step`. Returns the run that a new process resumes."""

    def die(phase: str) -> None:
        if phase == "updates" and run.state.step == step:
            raise Killed

    run.on_phase = die
    with pytest.raises(Killed):
        run.fit()
    resumed = run.resume()
    resumed.on_phase = lambda phase: None
    return resumed


def assert_resumes_exactly_from_any_phase(
    make: Callable[[Path], Run],
    folder: Path,
    *,
    first_step: int = 0,
    resume: Callable[[Run], Run] = Run.resume,
) -> None:
    """Kills runs at the beginning of every phase from step `first_step` on, so before and after each save, reset and
    validation, and compares each resumed run with a whole one. Runs save synchronously: the thread of a process that
    is only said to be dead would go on."""

    def follow(run: Run, note: Callable[[int], Any]) -> None:
        tell = run.on_phase

        def on_phase(phase: str) -> None:
            tell(phase)
            note(run.state.step)

        run.on_phase = on_phase

    whole, steps = make(folder / "whole"), list[int]()
    follow(whole, steps.append)
    whole.fit()
    for moment in range(steps.index(first_step), len(steps)):
        run, left = make(folder / f"killed-{moment}"), iter(range(moment))

        def die(step: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Killed

        tell = run.on_phase
        follow(run, die)
        with pytest.raises(Killed):
            run.fit()
        run.on_phase = tell
        resumed = resume(run)
        assert resumed.fit() == "steps"
        assert_same(resumed, whole)


def assert_same(resumed: Run, whole: Run) -> None:
    assert [timeless(record) for record in resumed.records] == [timeless(record) for record in whole.records]
    ends = [find_checkpoints(run.folder)[-1] for run in (resumed, whole)]
    assert asdict(ends[0].state) == asdict(ends[1].state)
    assert (ends[0].score, ends[0].reference_hash) == (ends[1].score, ends[1].reference_hash)
    files = [(end.policy / "weights.json").read_text() for end in ends]
    assert files[0] == files[1]
