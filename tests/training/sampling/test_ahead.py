"""Sampling ahead: what it trains on, that nobody disturbs the sampler, and that no checkpoint contains anything of
it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, ControllerConfig, ControllerMode
from nemo_prorl.config.compose import compose
from nemo_prorl.engines.interface import LoadedWeights, SamplingSettings
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training import splitting
from nemo_prorl.training.sampling.grading import GradingInFlight, Round
from nemo_prorl.training.sampling.rounds import RoundAhead
from nemo_prorl.training.splitting import split_over_ranks
from nemo_prorl.types import Prompt, Rollout, Share
from tests.conftest import ROOT
from tests.training.conftest import (
    MIXED,
    RIGHT,
    ScriptedGrader,
    ScriptedSampler,
    make_prompt,
    make_rollout,
    uids,
)
from tests.training.scripted_run import Run, killed_in_updates, nearly_exhausted
from tests.training.tiny import Case, saved_tensors, steps, timeless

UPDATES = 2


class WatchedSampler(ScriptedSampler):
    """A sampler that finishes a round sampled ahead only after the policy has been updated. It fails if somebody else
    uses it meanwhile."""

    def __init__(self, events: list[str]) -> None:
        super().__init__(events=events)
        self.busy = threading.Lock()
        self.updated = threading.Event()

    def load_weights(self, *arguments: Any, **keywords: Any) -> LoadedWeights:
        assert self.busy.acquire(blocking=False), "weights are loaded into a sampler that samples"
        loaded = super().load_weights(*arguments, **keywords)
        self.busy.release()
        return loaded

    def sample(self, *arguments: Any, **keywords: Any) -> Any:
        assert self.busy.acquire(blocking=False), "two rounds at one time"
        if threading.current_thread() is not threading.main_thread():
            self.events.append("ahead")
            self.updated.clear()
            assert self.updated.wait(30), "the policy waited for the round, and not the other way round"
        try:
            return super().sample(*arguments, **keywords)
        finally:
            self.busy.release()


def make_run(folder: Path, *, num_steps: int = 4, **config: Any) -> Run:
    return Run(folder, num_steps=num_steps, ahead=True, held_out=0, **config)


def updates_behind(run: Run) -> list[float]:
    return [record["sampler/updates_behind"] for record in run.records if record["step"]]


def ages(record: dict[str, Any]) -> set[int]:
    """Returns by how many updates the step's rollouts were older than the weights that they trained."""
    prefix = "objective/effective_sample_share_age_"
    return {int(key.removeprefix(prefix)) for key in record if key.startswith(prefix)}


def test_rollouts_come_while_the_policy_trains_and_are_one_step_old(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    sampler = run.sampler = WatchedSampler(run.events)
    run.policy.events = run.events
    update = run.policy.update
    run.policy.update = lambda *arguments: (sampler.updated.set(), update(*arguments))[1]  # type: ignore[method-assign]
    run.fit()
    assert updates_behind(run) == [0, UPDATES, UPDATES, UPDATES]
    assert [ages(record) for record in run.records if record["step"]] == [
        set(range(UPDATES)), *[set(range(UPDATES, 2 * UPDATES))] * 3
    ]  # fmt: skip
    per_step = " ".join(run.events).split("prepare")
    assert ["ahead" in part for part in per_step] == [True, True, True, False, False]
    assert [settings.seed for settings in run.sampler.settings] == [1_000_003 + step for step in range(4)]
    prompts = [request.request_id.split("/")[1] for request in run.grader.requests]
    assert list(dict.fromkeys(prompts)) == [f"p{index}" for index in range(16)], "each once, in their order"


def test_a_step_that_needs_more_waits_for_the_round_that_has_the_sampler(tmp_path: Path) -> None:
    """Every second prompt is uninformative, so the first round is too small, and the next step's round has begun by
    then."""
    prompts = [make_prompt(f"p{index}", MIXED if index % 2 else RIGHT) for index in range(200)]
    run = make_run(tmp_path, prompts=prompts)
    sampler = run.sampler = WatchedSampler(run.events)
    sampler.updated.wait = lambda timeout: True  # type: ignore[method-assign]
    run.fit()
    records = [record for record in run.records if record["step"]]
    assert max(record["dynamic_sampling/num_rounds"] for record in records) > 1
    assert [record["dynamic_sampling/num_kept"] for record in records] == [4.0] * 4
    sampled = [request.request_id.split("/")[1] for request in run.grader.requests]
    assert len(set(sampled)) * 4 == len(sampled), "no prompt came twice"


def test_no_checkpoint_has_a_round_under_way(tmp_path: Path) -> None:
    """So the step after a checkpoint is on-policy, and the prompts' cursor is behind the last prompt trained on."""
    run = make_run(tmp_path, num_steps=6, every=2)
    run.fit()
    assert updates_behind(run) == [0, UPDATES, 0, UPDATES, 0, UPDATES]
    assert len(run.sampler.num_sampled) == 6, "and none was sampled for nothing"
    taken = {c.state.step: c.state.prompts["taken"] for c in find_checkpoints(tmp_path)}
    assert taken == {2: 8, 4: 16, 6: 24}


@pytest.mark.medium
@pytest.mark.parametrize("killed_in", range(1, 7))
def test_a_resumed_run_goes_on_exactly(tmp_path: Path, killed_in: int) -> None:
    """Across planned checkpoints, and those after resets, which were not known when the round began."""
    controller = ControllerConfig(mode=ControllerMode.interval, interval=3)
    prompts = [make_prompt(f"p{index}", MIXED if index % 3 else RIGHT) for index in range(200)]
    whole = make_run(tmp_path / "whole", num_steps=7, every=2, controller=controller, prompts=prompts)
    whole.fit()
    run = make_run(tmp_path / "killed", num_steps=7, every=2, controller=controller, prompts=prompts)
    resumed = killed_in_updates(run, killed_in)
    sampling = [thread for thread in threading.enumerate() if thread.name.startswith("sampling-ahead")]
    assert not sampling, "nothing samples any more"
    resumed.fit()
    assert list(map(timeless, resumed.records)) == list(map(timeless, whole.records))
    assert resumed.policy.weight == whole.policy.weight


@pytest.mark.parametrize("interval", [3, 10])
def test_no_prompt_is_trained_on_twice_though_a_reset_drops_a_round(
    tmp_path: Path, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the prompts are uninformative, so steps take further rounds after the round ahead has its prompts."""
    trained: list[str] = []
    monkeypatch.setattr(
        splitting,
        "split_over_ranks",
        lambda c, *rest: (trained.extend(uids(c.groups)), split_over_ranks(c, *rest))[1],
    )
    stream = Random(3)
    prompts = [make_prompt(f"p{index}", stream.choice([MIXED, RIGHT])) for index in range(400)]
    controller = ControllerConfig(mode=ControllerMode.interval, interval=interval)
    run = make_run(tmp_path, num_steps=20, prompts=prompts, controller=controller)
    run.fit()
    assert run.state.num_resets == 20 // interval
    assert len(set(trained)) == len(trained) == 20 * 4
    last = max(int(uid[1:]) for uid in trained)
    asked = {request.request_id.split("/")[1].removeprefix("p") for request in run.grader.requests}
    assert asked >= {str(index) for index in range(last)}, "and none is left out"


def test_what_fails_in_the_other_thread_ends_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    def fail() -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the engine has died")

    run.sampler.after_sampling = fail
    with pytest.raises(RuntimeError, match="the engine has died"):
        run.fit()
    assert [record["step"] for record in run.records] == [0], "the step that it came from is not on record"


def test_a_round_that_nobody_wants_ends_with_its_next_rollout() -> None:
    prompts, begun = [make_prompt("p")], threading.Event()

    def sample_for_ever(_: Any, __: Any, on_finish: Callable[[int, Rollout], None]) -> Share:
        while True:
            on_finish(0, make_rollout(prompts[0], 0))
            begun.set()

    in_flight = GradingInFlight(ScriptedGrader(at_once=True))
    settings = SamplingSettings(num_rollouts=4, temperature=1.0, top_p=1.0, max_response_tokens=8, seed=1)
    ahead = RoundAhead(Round(prompts=prompts, settings=settings, in_flight=in_flight), sample_for_ever)
    begun.wait(30)
    ahead.cancel()
    with pytest.raises(CancelledError):
        ahead.share()


def found_in(*indices: int) -> list[Prompt]:
    """Returns prompts of which these are informative, and the others solved."""
    return [make_prompt(f"p{index}", MIXED if index in indices else RIGHT) for index in range(1000)]


def test_a_stage_that_saturates_while_the_next_round_is_sampled_is_validated_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one round per step, large enough to know that the data is exhausted, nothing else has waited for it."""
    sizes = {"prompts_per_step": 68, "max_rounds": 1, "min_fill": 0.0}
    run = make_run(tmp_path, num_steps=99, prompts=found_in(0, 1), state=nearly_exhausted(), **sizes)
    run.held_out = [make_prompt("v0")]
    sampler = run.sampler = WatchedSampler(run.events)
    over = threading.Event()
    sampler.updated.wait = lambda timeout: over.wait(timeout) if run.state.step == 6 else True  # type: ignore[method-assign]
    run.on_phase = lambda phase: over.set() if phase == "validation" else None
    cancel = RoundAhead.cancel
    monkeypatch.setattr(RoundAhead, "cancel", lambda ahead: (over.set(), cancel(ahead)))
    assert run.fit() == "saturated"
    assert run.state.validation[-1]["step"] == 6


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["sampler.ahead=true"], r"correction_level=token .* and algorithm\.kl_weighted=true as well"),
        (
            ["sampler.ahead=true", "algorithm.correction_level=token"],
            r"write algorithm\.kl_weighted=true as well",
        ),
        (["sampler.ahead=true", "algorithm.kl_beta=0"], r"or geometric\) as well"),
        (["sampler.ahead=true", "sampler.release_memory=true"], "sampler.release_memory=false"),
        (["sampler.ahead=true", "sampler.tensor_parallel=2"], "sampler.tensor_parallel=1"),
    ],
)
def test_options_that_sampling_ahead_needs_are_named_at_once(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose("laptop", overrides, conf_dir=ROOT / "conf")


@pytest.mark.slow
def test_the_real_engines_repeat_themselves_and_resume_exactly(case: Case, tmp_path: Path) -> None:
    """The result does not depend on the timing of threads: on two replicas, which exchange gradients meanwhile."""
    overrides = [
        "sampler.ahead=true",
        "algorithm.correction_level=token",
        "algorithm.kl_weighted=true",
        "trainer.num_steps=4",
        "trainer.prompts_per_step=4",
        "validation.max_prompts=1",
        "exp_manager.checkpoint_callback_params.every_n_train_steps=2",
    ]
    case.train_forked("ahead", *overrides, num_ranks=2)
    folder = case.run_dir("ahead")
    before, tensors = steps(folder), saved_tensors(find_checkpoints(folder)[-1].policy, tmp_path)
    assert [record["sampler/updates_behind"] for record in before] == [0, UPDATES, 0, UPDATES]
    for newest in (find_checkpoints(folder)[-1].path, folder / "stages" / "main.done"):
        shutil.rmtree(newest) if newest.is_dir() else newest.unlink()
    case.train_forked("ahead", *overrides, num_ranks=2)
    assert list(map(timeless, steps(folder))) == list(map(timeless, before))
    again = saved_tensors(find_checkpoints(folder)[-1].policy, tmp_path)
    assert all(tensor.equal(again[key]) for key, tensor in tensors.items())
