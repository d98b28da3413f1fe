"""A step that is computed again is equal in every phase, and one changed bit is named in the phase that it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.config import AlgorithmConfig, ControllerConfig, ControllerMode, ShapingConfig
from nemo_prorl.engines.interface import LossFunction, SamplingSettings
from nemo_prorl.questions.rerun import RerunPlan, steps_again
from nemo_prorl.run_folder.records import DIGESTS, read_digests
from nemo_prorl.training.context import StepContext
from nemo_prorl.training.digest import Phase, differences, digest_of
from nemo_prorl.training.stages import StartingPoint
from nemo_prorl.training.step import Stepper, StepResult
from nemo_prorl.types import Finish, Prompt, Rollout, TrainBatch, UpdateReport
from tests.training.conftest import (
    MIXED,
    SINGLE,
    ListedPrompts,
    ScriptedGrader,
    ScriptedPolicy,
    ScriptedSampler,
    make_prompts,
    new_state,
)
from tests.training.scripted_run import Run
from tests.training.tiny import timeless

OPTIONS: dict[str, Any] = {"num_steps": 3, "algorithm": AlgorithmConfig(kl_beta=0.1)}


@dataclass
class Sampler(ScriptedSampler):
    """Its tokens depend on the seed; a test may change its rollouts."""

    change: Callable[[Rollout], Rollout] = lambda rollout: rollout

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        def changed(rollout: Rollout) -> Rollout:
            token_ids = rollout.token_ids + settings.seed % 3
            # Some answers have no end, so that a penalty for it changes rewards.
            finish = Finish.length if rollout.sibling == 0 else rollout.finish
            return self.change(replace(rollout, token_ids=token_ids, finish=finish))

        groups = super().sample(prompts, settings, lambda rollout: on_finish(changed(rollout)), siblings)
        return [[changed(rollout) for rollout in group] for group in groups]


@dataclass
class Policy(ScriptedPolicy):
    """A test may do something after each of its updates, as a wrong moment of the optimizer would."""

    after: Callable[[Policy], None] = lambda policy: None

    def update(self, batch: TrainBatch, loss_function: LossFunction) -> UpdateReport:
        report = super().update(batch, loss_function)
        self.after(self)
        return report


@dataclass
class Again:
    """A recorded run, and the engines with which its steps are computed again."""

    plan: RerunPlan
    stepper: Stepper
    results: list[StepResult] = field(default_factory=list)

    @property
    def engines(self) -> Any:
        return self.stepper.context

    def step(self, number: int, plant: Callable[[Again], None] = lambda again: None) -> dict[Phase, str]:
        """Returns how the step differs if something is changed before it."""
        made = steps_again(replace(self.plan, last=number), self.stepper, new_state())
        for _ in range(number - 1):
            self.results.append(next(made))
        plant(self)
        self.results.append(next(made))
        return differences(self.plan.lines[number], digest_of(self.results[-1], SINGLE))


def recorded(folder: Path, **options: Any) -> Run:
    run = Run(folder, **(OPTIONS | options))
    run.sampler = Sampler(events=run.events)
    run.fit()
    return run


def again(run: Run, prompts: Any = None) -> Again:
    """prompts: the mix as it was before the run, if it is not a list."""
    lines = read_digests(run.folder).steps
    plan = RerunPlan(
        run_dir=run.folder,
        first=1,
        last=max(lines),
        config=run.config,
        start=StartingPoint(checkpoint=None, is_resume=False),
        lines=lines,
        metrics={record["step"]: record for record in run.records if "reward/mean" in record},
        inputs=[],
    )
    context = StepContext(
        config=run.config,
        ranks=SINGLE,
        policy=Policy(),
        sampler=Sampler(),
        grader=ScriptedGrader(at_once=True),  # type: ignore[arg-type]
        prompts=prompts or ListedPrompts(run.prompts.all),  # type: ignore[arg-type]
    )
    return Again(plan, Stepper(context, canary=None))


def next_float(value: float) -> float:
    return float(np.nextafter(np.float32(value), np.float32(np.inf)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_steps": 4, "controller": ControllerConfig(mode=ControllerMode.interval, interval=2)},
        {"algorithm": AlgorithmConfig(kl_beta=0.1, entropy_bonus="adaptive", entropy_target=4.0)},
    ],
    ids=["plain", "a reset on the way", "a bonus that learns"],
)
def test_every_step_is_equal_again_with_every_metric(tmp_path: Path, options: dict[str, Any]) -> None:
    run = recorded(tmp_path, **options)
    for number in read_digests(tmp_path).steps:
        repeated = again(run)
        assert repeated.step(number) == {}
        record = timeless(repeated.plan.metrics[number])
        assert {name: record.get(name) for name in timeless(repeated.results[-1].metrics)} == timeless(
            repeated.results[-1].metrics
        )


def test_rounds_that_were_drawn_ahead_and_then_dropped_are_drawn_again(tmp_path: Path) -> None:
    """Step 2 needs a second round, which comes after the third step's first one in the order of the prompts; the reset
    that follows drops that one."""
    scripts = [MIXED] * 4 + [[1.0] * 4, MIXED, MIXED, MIXED] + [MIXED] * 40
    options = {"num_steps": 4, "prompts": make_prompts(*scripts)}
    run = Run(
        tmp_path, **OPTIONS | options, controller=ControllerConfig(mode=ControllerMode.interval, interval=2)
    )
    run.sampler = Sampler(events=run.events)
    run.config.sampler.ahead = True
    run.fit()
    lines = read_digests(tmp_path).steps.values()
    assert [line["was_ahead"] for line in lines] == [False, True, False, True]
    assert [line["ahead"] for line in lines] == [True, True, True, False]
    assert [record["dynamic_sampling/num_rounds"] for record in run.records[1:]] == [1, 2, 1, 1]
    for number in range(1, 5):
        assert again(run).step(number) == {}


def weight(again: Again) -> None:
    again.engines.policy.weight = 1e-30


def moment(again: Again) -> None:
    again.engines.policy.after = lambda policy: setattr(policy, "weight", next_float(policy.weight))


def reference(again: Again) -> None:
    again.engines.policy.reference_weight = 2**-20


def token(again: Again) -> None:
    again.engines.sampler.change = lambda r: replace(
        r, token_ids=np.append(r.token_ids[:-1], r.token_ids[-1] ^ 1)
    )


def logprob(again: Again) -> None:
    def change(rollout: Rollout) -> Rollout:
        logprobs = rollout.sampler_logprobs.copy()
        logprobs[0] = next_float(logprobs[0])
        return replace(rollout, sampler_logprobs=logprobs)

    again.engines.sampler.change = change


def verdict(again: Again) -> None:
    """Gives the step's first rollout a score that is one bit larger."""
    scores = again.engines.prompts.all[again.engines.prompts.num_taken].task["scores"]
    scores[0] = float(np.nextafter(scores[0], 2.0))


def order(again: Again) -> None:
    prompts = again.engines.prompts
    taken = prompts.num_taken
    prompts.all[taken], prompts.all[taken + 1] = prompts.all[taken + 1], prompts.all[taken]


def shaping_option(again: Again) -> None:
    again.engines.config.shaping = ShapingConfig(termination_factor=0.5)


def loss_option(again: Again) -> None:
    again.engines.config.algorithm = replace(again.engines.config.algorithm, kl_beta=0.1001)


def dropped_update(again: Again) -> None:
    again.engines.config.trainer.updates_per_step = 1


@pytest.mark.parametrize(
    ("plant", "number", "phase", "text"),
    [
        (weight, 1, Phase.start, "1 of 1 tensors (weight)"),
        (order, 2, Phase.prompts, "2 of 4 prompts (p5, p4)"),
        (token, 2, Phase.rollouts, "4 of 4 prompts (p4, p5, p6, ...)"),
        (logprob, 2, Phase.sampler_logprobs, "4 of 4 prompts (p4, p5, p6, ...)"),
        (verdict, 2, Phase.verdicts, "1 of 4 prompts (p4)"),
        (shaping_option, 2, Phase.selection, ""),
        (reference, 2, Phase.reference_logprobs, "4 of 4 prompts (p4, p5, p6, ...)"),
        (loss_option, 2, Phase.updates, "2 of 2 updates (update 1, update 2): loss "),
        (moment, 2, Phase.updates, "1 of 2 updates (update 2)"),
        (dropped_update, 2, Phase.advantages, ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_bit_is_named_in_its_phase(
    tmp_path: Path, plant: Callable[[Again], None], number: int, phase: Phase, text: str
) -> None:
    run = recorded(tmp_path)
    (first, said), *_ = again(run).step(number, plant).items()
    assert first is phase
    assert said.startswith(text)


def test_another_weight_at_the_end_is_named(tmp_path: Path) -> None:
    repeated = again(recorded(tmp_path))
    whole, of_items = repeated.plan.lines[2]["phases"]["weights"]
    repeated.plan.lines[2]["phases"]["weights"] = ["0" * len(whole), "0" * len(of_items)]
    assert repeated.step(2) == {Phase.weights: "1 of 1 tensors (weight)"}


def test_a_digest_line_that_is_not_what_was_written_is_told_from_a_step_that_differs(tmp_path: Path) -> None:
    recorded(tmp_path)
    path = tmp_path / DIGESTS
    text = path.read_text()
    place = text.index('"weights"') + 15
    path.write_text(text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :])
    found = read_digests(tmp_path)
    assert (sorted(found.steps), found.damaged) == ([2, 3], {1})


def test_a_line_is_small(tmp_path: Path) -> None:
    """An item costs four hexadecimal digits, a step as many bytes as a few of its numbers."""
    recorded(tmp_path)
    assert all(len(line) < 2000 for line in (tmp_path / DIGESTS).read_text().splitlines())
