"""A sampler with other weights than the policy is corrected, or it stops the run with the cause named, before anything
is trained on its rollouts. The faults are in the stream of weights, in the sampler's loader, or in the sampler
itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.boundary.tiny_policy import build_tokenizer
from nemo_prorl.algorithm.fingerprint import bit_sum, read
from nemo_prorl.config import (
    ControllerAction,
    ControllerConfig,
    ControllerMode,
)
from nemo_prorl.engines.interface import LoadedWeights
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.sampling.refit import TEXT, Canary, Refit, canary_prompt
from nemo_prorl.training.trainer import StoppedByController
from tests.training.conftest import (
    ScriptedPolicy,
    ScriptedSampler,
    make_collector,
    make_config,
    make_prompt,
)
from tests.training.sampling.test_ahead import WatchedSampler
from tests.training.scripted_run import Run
from tests.training.thread_ranks import ThreadRanks, run_as_ranks
from tests.training.tiny import timeless
from tests.waits import Waits

Weights = Iterable[tuple[str, torch.Tensor]]
NORM, LAYER = "model.norm.weight", "model.layers.1."


class LayeredPolicy(ScriptedPolicy):
    """A policy with named tensors, which all change with the scripted weight."""

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "weight", torch.tensor(self.weight)
        for layer in range(3):
            for part in ("self_attn.q_proj", "mlp.up_proj"):
                yield f"model.layers.{layer}.{part}.weight", torch.full((4, 4), self.weight + layer)
        yield NORM, torch.full((4,), 1 + self.weight)


Change = Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], dict[str, torch.Tensor]]
"""(what is sent, what was sent the time before) -> what arrives."""


def doubled_norm(sent: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return sent | {NORM: 2 * sent[NORM]}


def one_late(sent: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return before


def frozen_layer(sent: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A layer stays as it was at the start of the run, with a scripted weight of 0."""
    return sent | {name: torch.full((4, 4), 1.0) for name in sent if name.startswith(LAYER)}


def spoil(sampler: ScriptedSampler, change: Change, *, first: int = 1, count: int = 10**6) -> None:
    """Changes the weights on their way to the sampler, in `count` loads from number `first` on."""
    load, before, numbers = sampler.load_weights, dict[str, torch.Tensor](), itertools.count()

    def load_changed(weights: Weights, version: int) -> LoadedWeights:
        sent, is_wrong = dict(weights), first <= next(numbers) < first + count
        arrives = change(sent, dict(before)) if is_wrong else sent
        before.update(sent)
        return load(arrives.items(), version=version)

    sampler.load_weights = load_changed  # type: ignore[method-assign]


def make_run(folder: Path, *, canary: bool = True, **config: Any) -> Run:
    run = Run(folder, **({"num_steps": 6, "held_out": 0} | config))
    run.policy = LayeredPolicy(events=run.events)
    run.canary = make_prompt("canary") if canary else None
    return run


def watch_samples(run: Run) -> list[bool]:
    """Records for each call of the sampler whether it had the policy's weights."""
    right: list[bool] = []
    run.sampler.after_sampling = lambda: right.append(run.sampler.weight == np.float32(run.policy.weight))
    return right


def log_of(run: Run) -> str:
    return (run.folder / "run.log").read_text()


# The ladder


@pytest.mark.parametrize("mode", ControllerMode)
@pytest.mark.parametrize(
    ("fault", "named", "last_step"),
    [
        (doubled_norm, f"1 of 8 tensors ({NORM}) arrived with other values than were sent", 1),
        (frozen_layer, "2 of 8 tensors, all in model.layers.1 (model.layers.1.mlp.up_proj.weight", 1),
        (one_late, "All 8 tensors arrived with other values than were sent", 2),
    ],
)
def test_wrong_weights_stop_the_run_within_two_steps(
    tmp_path: Path, mode: ControllerMode, fault: Change, named: str, last_step: int
) -> None:
    """In every mode of the controller. The second load corrects weights that are one load late, but a run in which
    every load is late must stop as well."""
    run = make_run(tmp_path, controller=ControllerConfig(mode=mode, interval=300))
    spoil(run.sampler, fault)
    right = watch_samples(run)
    with pytest.raises(StoppedByController) as stopped:
        run.fit()
    assert named in str(stopped.value)
    assert "look for" in str(stopped.value)
    assert run.state.step == last_step
    assert all(right), "not a single rollout was drawn from wrong weights"
    assert run.saved_steps == [last_step]
    saved = LayeredPolicy()
    saved.load(find_checkpoints(tmp_path)[-1].policy)
    assert saved.weight == run.policy.weight != 0.0
    assert run.records[-1]["controller"]["signal"] == "sampler_mismatch"
    assert named in run.records[-1]["controller"]["reason"]


@pytest.mark.medium
@pytest.mark.parametrize("fault", [doubled_norm, frozen_layer, one_late])
def test_a_single_accident_is_mended_before_anything_is_drawn(tmp_path: Path, fault: Change) -> None:
    run = make_run(tmp_path)
    spoil(run.sampler, fault, first=3, count=1)
    right = watch_samples(run)
    assert run.fit() == "steps"
    assert all(right)
    steps = {record["step"]: record for record in run.records if record["step"]}
    assert [step for step, record in steps.items() if record["sampler/num_wrong_tensors"]] == [3]
    assert not any(record["sampler/num_still_wrong_tensors"] for record in steps.values())
    assert "everything is loaded again: now" in log_of(run)


def test_what_the_loader_leaves_out_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    load = run.sampler.load_weights
    run.sampler.load_weights = lambda weights, version: replace(  # type: ignore[method-assign]
        load(weights, version), not_held=(NORM,) if version else ()
    )
    with pytest.raises(StoppedByController, match=r"norm.weight\) arrived, but the engine's loader did not"):
        run.fit()
    assert run.state.step == 1


def test_a_tensor_that_never_arrives_is_wrong(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    spoil(run.sampler, lambda sent, before: {name: sent[name] for name in sent if name != NORM})
    with pytest.raises(
        StoppedByController, match=r"norm.weight\) arrived with other values .* or not at all"
    ):
        run.fit()
    assert run.state.step == 1


def test_a_canary_that_is_not_a_number_is_repeated_and_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, num_steps=1)
    run.sampler = ColderSampler(events=run.events, version=3)
    run.sampler.shift = np.nan
    context = replace(make_collector(run.config, [], sampler=run.sampler).context, policy=run.policy)
    said: list[str] = []
    refitted = Refit(replace(context, say=said.append), run.canary)(3, canary_limit=0.15)
    assert refitted.canary is not None
    assert np.isnan(refitted.canary.mean)
    assert "differ by nan nats" in said[0]
    seeds = [settings.seed for settings in run.sampler.settings]
    assert len(set(seeds)) == len(seeds) == 2, "the repetition draws other random numbers"


def test_a_process_that_begins_with_wrong_weights_draws_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, held_out=2)
    spoil(run.sampler, doubled_norm, first=0)
    with pytest.raises(StoppedByController, match="stopped before step 1: 1 of 8 tensors"):
        run.fit()
    assert "sample" not in run.events


def test_wrong_weights_that_the_user_ignores_are_told_at_every_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, controller=ControllerConfig(sampler_mismatch=ControllerAction.ignore))
    spoil(run.sampler, doubled_norm)
    assert run.fit() == "steps"
    assert log_of(run).count("refit after update") == 6


class ColderSampler(ScriptedSampler):
    """A sampler with the right weights but another distribution, from the second step on."""

    shift = 0.3

    def sample(self, *arguments: Any, **keywords: Any) -> Any:
        groups = super().sample(*arguments, **keywords)
        for rollout in (rollout for group in groups for rollout in group):
            if self.version > 2:
                rollout.sampler_logprobs[:] += self.shift
        return groups


def test_what_is_not_in_the_weights_is_seen_by_the_canary(tmp_path: Path) -> None:
    """The canary fails in two steps in a row, and so do the rollouts of the second one."""
    run = make_run(tmp_path)
    run.sampler = ColderSampler(events=run.events)
    with pytest.raises(StoppedByController, match="bit for bit as the policy sent it"):
        run.fit()
    assert run.state.step == 3
    assert [record.get("sampler/canary_abs_diff_mean") for record in run.records] == [
        None, 0.0, pytest.approx(0.3, abs=1e-5), pytest.approx(0.3, abs=1e-5),
    ]  # fmt: skip
    assert "sampler and trainer differ by 0.3 nats per token on the canary prompt (engine 0;" in log_of(run)


@pytest.mark.parametrize(("max_prompt_tokens", "expected"), [(1024, len(TEXT)), (24, 24)])
def test_the_canary_fits_the_context(max_prompt_tokens: int, expected: int) -> None:
    config = make_config()
    config.sampler.max_prompt_tokens = max_prompt_tokens
    prompt = canary_prompt(build_tokenizer(), config.sampler)
    assert len(prompt.token_ids) == expected, "one token a character"
    assert all(token is not None for token in prompt.token_ids)


# Resets, several ranks, sampling ahead, resume


@pytest.mark.medium
@pytest.mark.parametrize("ahead", [False, True])
def test_one_rank_that_has_wrong_weights_stops_all(tmp_path: Path, ahead: bool) -> None:
    def fit(ranks: ThreadRanks) -> tuple[str, int]:
        run = make_run(tmp_path, ahead=ahead)
        if ranks.layout.rank == 2:
            spoil(run.sampler, one_late)
        with pytest.raises(StoppedByController) as stopped:
            run.fit(ranks)
        return str(stopped.value), run.state.step

    results = run_as_ranks(fit, 3, 1, 1)
    assert results == [results[0]] * 3
    assert "All 8 tensors" in results[0][0]
    assert results[0][1] == 2


@pytest.mark.parametrize(
    ("engine_ranks", "tensor_parallel", "wrong_rank", "wrong_engine"),
    [(1, 1, 3, 3), (2, 1, 2, 1), (1, 2, 2, 2), (4, 1, 0, 0)],
)
def test_every_engine_is_asked(
    engine_ranks: int, tensor_parallel: int, wrong_rank: int, wrong_engine: int
) -> None:
    """On four ranks, with one, two or four per engine, and one or two per replica."""

    def ask(ranks: ThreadRanks) -> Any:
        sampler = ColderSampler(version=3 if ranks.layout.rank == wrong_rank else 0)
        policy, config = ScriptedPolicy(), make_config()
        config.sampler.tensor_parallel = engine_ranks
        context = make_collector(config, [], sampler=sampler, policy=policy, ranks=ranks).context
        return Canary(context, make_prompt("canary")).difference(), policy.num_prepared

    results = run_as_ranks(ask, 4, tensor_parallel, 1)
    assert len({difference for difference, _ in results}) == 1, "the same on every rank"
    assert results[0][0].engine == wrong_engine
    assert results[0][0].mean == pytest.approx(0.3, abs=1e-5)
    replicas = {
        rank // tensor_parallel % (4 // tensor_parallel): count for rank, (_, count) in enumerate(results)
    }
    assert sum(replicas.values()) == 4 * (4 // engine_ranks), (
        "each engine's rollouts are scored by one replica"
    )


def test_the_canary_never_meets_a_round_that_is_sampled_ahead(tmp_path: Path) -> None:
    run = make_run(tmp_path, ahead=True)
    sampler = run.sampler = WatchedSampler(run.events)  # fails where two use it at one time
    sampler.updated.wait = lambda timeout=None: True  # type: ignore[method-assign, assignment]
    run.fit()
    assert [record["sampler/canary_abs_diff_mean"] for record in run.records if record["step"]] == [0.0] * 6
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sampling-ahead")]


@pytest.mark.medium
@pytest.mark.parametrize("ahead", [False, True])
def test_the_canary_changes_nothing_else(tmp_path: Path, ahead: bool) -> None:
    records, weights = [], []
    for canary in (False, True):
        run = make_run(tmp_path / str(canary), canary=canary, ahead=ahead, held_out=1, interval=2)
        run.fit()
        records.append([{k: v for k, v in timeless(r).items() if "canary" not in k} for r in run.records])
        weights.append(run.policy.weight)
    assert records[0] == records[1]
    assert weights[0] == weights[1]


def test_all_that_leaves_the_policy_is_read_at_once(tmp_path: Path) -> None:
    """On a GPU each number that the host reads waits for all work that was launched before."""
    run = make_run(tmp_path, canary=False)
    context = replace(make_collector(run.config, [], sampler=run.sampler).context, policy=run.policy)
    run.sampler.load_weights = lambda weights, version: LoadedWeights(  # type: ignore[method-assign]
        received=read({name: bit_sum(tensor) for name, tensor in weights})[0]
    )
    with Waits() as waits:
        refitted = Refit(context, None)(1, canary_limit=1.0)
    assert refitted.num_wrong == 0
    assert waits.count == 2, "one is the sampler's"
