"""Tests of `make bench`: TRL's events become our records, and ratios and times to a reward agree with the records."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    from benchmarks import bench_peer

    return bench_peer


@pytest.fixture(scope="module")
def work(peer: ModuleType) -> Any:
    return peer.WORKS["laptop"]


def events(work: Any, *, num_rollouts: int) -> list[dict[str, Any]]:
    """Yields the events of TRL's callbacks in a run of two steps: evaluation before the first step, logs after the
    clock."""
    updates = work.updates_per_step
    return [
        {"update": 0, "logs": {"eval_reward": 0.2, "eval_runtime": 9.0}},
        {"update": updates, "step_s": 4.0, "num_rollouts": num_rollouts},
        {"update": updates, "logs": {"completions/mean_length": 10.0, "loss": 0.1}},
        {"update": 2 * updates, "step_s": 3.0, "num_rollouts": num_rollouts},
        {"update": 2 * updates, "logs": {"completions/mean_length": 12.5}},
        {"update": 2 * updates, "logs": {"eval_reward": 0.6}},
        {"update": 2 * updates, "logs": {"train_runtime": 30.0}},
    ]


def test_events_of_trl_become_a_record_a_step(peer: ModuleType, work: Any) -> None:
    rollouts = work.prompts_per_step * work.num_rollouts
    assert peer.steps_of_trl(events(work, num_rollouts=rollouts), work) == [
        {"step": 0, "validation/score": 0.2},
        {"step": 1, "time/step_s": 4.0, "throughput/num_tokens": 10.0 * rollouts},
        {
            "step": 2,
            "time/step_s": 3.0,
            "throughput/num_tokens": 12.5 * rollouts,
            "validation/score": 0.6,
        },
    ]


def test_a_run_of_other_work_is_not_compared(peer: ModuleType, work: Any) -> None:
    half = work.prompts_per_step * work.num_rollouts // 2
    with pytest.raises(ValueError, match=f"sampled {half} rollouts in step 1"):
        peer.steps_of_trl(events(work, num_rollouts=half), work)
    with pytest.raises(ValueError, match="middle of a step"):
        peer.steps_of_trl([{"update": work.updates_per_step + 1, "logs": {}}], work)


def curve(peer: ModuleType, rewards: list[float | None], step_s: float = 2.0) -> Any:
    """Returns records of steps of `step_s` seconds with the given validation rewards; None: no validation."""
    records: list[dict[str, Any]] = []
    for step, reward in enumerate(rewards):
        records.append(
            {"step": step} | ({"time/step_s": step_s, "throughput/num_tokens": 100} if step else {})
        )
        if reward is not None:
            records[-1]["validation/score"] = reward
    return peer.with_seconds(records)


@pytest.mark.parametrize(
    ("rewards", "target", "seconds"),
    [
        ([0.1, 0.3, 0.7], 0.5, 3.0),  # halfway between the validations at 2 s and at 4 s
        ([0.1, None, 0.9], 0.5, 2.0),  # not every step needs a validation
        ([0.1, 0.6, 0.2, 0.8], 0.5, 1.6),  # the first time counts, not the last
        ([0.6, 0.7], 0.5, 0.0),
        ([0.1, 0.4], 0.5, None),
        ([], 0.5, None),
    ],
)
def test_seconds_to_a_reward(
    peer: ModuleType, rewards: list[float | None], target: float, seconds: float | None
) -> None:
    assert peer.seconds_to(curve(peer, rewards), target) == pytest.approx(seconds)


def test_ratios_pair_seeds_and_are_above_1_where_ours_is_better(peer: ModuleType) -> None:
    rewards = [0.1, 0.6, 0.8, 0.95, 0.95]
    runs = {
        "ours": [curve(peer, rewards, 2.0), curve(peer, rewards, 4.0)],
        "trl_vllm": [curve(peer, rewards, 5.0), curve(peer, [0.1, 0.2, 0.2, 0.2, 0.2], 6.0)],
    }
    found = peer.compare(runs, {"ours": [100.0, 100.0], "trl_vllm": [50.0, 200.0]})["ratios"]
    assert set(found) == {"trl_vllm"}
    assert found["trl_vllm"]["step_s"] == pytest.approx([1.5, 2.0, 2.5])
    assert found["trl_vllm"]["tokens_per_s"] == pytest.approx([1.5, 2.0, 2.5])
    assert found["trl_vllm"]["peak_mib"] == pytest.approx([0.5, 1.25, 2.0])
    assert found["trl_vllm"]["s_to_0.5"] is None  # one of the runs never gets there


@pytest.mark.parametrize("name", ["laptop", "smollm2", "smollm2_tail"])
def test_both_sides_are_told_the_same(peer: ModuleType, name: str) -> None:
    """Options with the same meaning on both sides have the same value. `configured` fails for an option that it does
    not read."""
    from benchmarks.peer.work import configured, our_options, trl_options
    from nemo_prorl.commands.parsing import composed

    work = peer.WORKS[name]
    config = composed(work.config_name, [f"{key}={value}" for key, value in our_options(work).items()])
    theirs = trl_options(work, 1, use_vllm=True)
    trainer, algorithm = config.trainer, config.algorithm
    rollouts = trainer.prompts_per_step * config.sampler.num_rollouts
    per_pass = theirs["per_device_train_batch_size"] * work.num_processes
    assert per_pass * theirs["steps_per_generation"] == rollouts
    assert theirs["steps_per_generation"] == trainer.updates_per_step * theirs["gradient_accumulation_steps"]
    assert theirs["max_steps"] == trainer.num_steps * trainer.updates_per_step
    assert (config.data.train, config.data.validation) == (work.train, [work.held_out_file])
    assert (config.model.path, config.model.precision.value) == (work.policy, "fp32")
    assert theirs["model_init_kwargs"] == {"dtype": "float32"}
    assert theirs["max_completion_length"] == config.sampler.max_response_tokens
    assert theirs["temperature"] == config.sampler.temperature
    assert theirs["learning_rate"] == trainer.learning_rate
    assert (theirs["adam_beta1"], theirs["adam_beta2"]) == (trainer.adam_beta1, trainer.adam_beta2)
    assert (theirs["weight_decay"], theirs["max_grad_norm"]) == (trainer.weight_decay, trainer.clip_grad)
    assert (theirs["epsilon"], theirs["epsilon_high"]) == (algorithm.clip_low, algorithm.clip_high)
    assert theirs["delta"] == algorithm.dual_clip
    assert theirs["beta"] == algorithm.kl_beta > 0
    assert theirs["eval_steps"] == config.validation.interval * trainer.updates_per_step
    assert "max_completion_length=" in configured(work, ())


@pytest.mark.parametrize("size", [{}, {"prompts_per_step": 8, "held_out": 8}])
@pytest.mark.parametrize("num_processes", [1, 2, 4])
@pytest.mark.parametrize("name", ["laptop", "smollm2", "smollm2_tail"])
def test_passes_of_trl_hold_all_rollouts(
    peer: ModuleType, name: str, num_processes: int, size: dict[str, int]
) -> None:
    """Whatever the number of processes, and with --quick, no rollout is left over and no pass is larger than it may
    be. Held-out groups are not split between batches."""
    from benchmarks.peer.work import trl_options

    work = replace(peer.WORKS[name], num_processes=num_processes, **size)
    theirs = trl_options(work, 1, use_vllm=True)
    of_pass, of_evaluation = theirs["per_device_train_batch_size"], theirs["per_device_eval_batch_size"]
    rollouts = work.prompts_per_step * work.num_rollouts
    assert of_pass * theirs["gradient_accumulation_steps"] * work.updates_per_step * num_processes == rollouts
    assert not work.trl_pass_rollouts or of_pass <= work.trl_pass_rollouts
    assert of_evaluation * num_processes % work.held_out_rollouts == 0
    assert work.held_out * work.held_out_rollouts % (of_evaluation * num_processes) == 0


def test_every_step_of_the_tail_has_one_long_text(
    peer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lengths, and so the seconds, would differ from step to step."""
    from benchmarks.peer.long_texts import write_long_texts
    from nemo_prorl.commands.parsing import composed
    from nemo_prorl.demo import build, language

    monkeypatch.chdir(tmp_path)
    language.write_prompts(language.BASE / "data")
    write_long_texts()
    work = replace(peer.WORKS["smollm2_tail"], policy=str(build.BASE_POLICY), max_prompt_tokens=10_000)
    found, held_out = peer.prompts(work, 1)
    assert len(found) == work.num_steps * work.prompts_per_step
    for step in range(0, len(found), work.prompts_per_step):
        sources = [row["uid"].split("/")[0] for row in found[step : step + work.prompts_per_step]]
        assert sources.count("long") == 1
    assert len(held_out) == work.held_out
    config = composed(work.config_name, [])
    assert {row["unfinished_factor"] for row in found} == {config.shaping.termination_factor} == {0.0}
    assert {row["unfinished_factor"] for row in held_out} == {1.0}


def test_trl_is_rewarded_as_our_side_is() -> None:
    """A response without its last token earns the factor's share, as in `shape_reward`; a failed grading no reward."""
    from benchmarks.peer.trl_side import reward_function

    scores = iter([1.0, 1.0, 0.5, None])

    class Client:
        def submit(self, request: Any) -> Future[Any]:
            result: Future[Any] = Future()
            result.set_result(SimpleNamespace(score=next(scores)))
            return result

    clock = SimpleNamespace(num_rollouts=0)
    found = reward_function(Client(), clock, end_token=2)(
        completions=["a"] * 4,
        completion_ids=[[5, 2], [5, 6], [2, 7], [5, 6]],
        in_thought=[False] * 4,
        domain=["math"] * 4,
        task=["{}"] * 4,
        uid=["a"] * 4,
        unfinished_factor=[0.0, 0.0, 0.5, 0.0],
    )
    assert found == [1.0, 0.0, 0.25, None]
    assert clock.num_rollouts == 4


def test_memory_counts_what_was_started_but_for_the_service(peer: ModuleType) -> None:
    from benchmarks.peer.processes import held_mib

    hold = "import sys; block = b'x' * (64 << 20); print('ready', flush=True); sys.stdin.read()"
    children = [
        subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        both, one = held_mib(os.getpid()), held_mib(os.getpid(), [children[1].pid])
    finally:
        for child in children:
            child.communicate(b"")
    assert both - one >= 64
    assert one >= 64
