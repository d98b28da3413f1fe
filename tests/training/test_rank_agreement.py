"""The whole loop on several ranks, which are threads: a decision that only one rank can make reaches all, and no rank
waits for another for ever (which would break their barrier, and the test)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.run_folder.markers import ask_for_reset, reset_request
from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.training.sampling.grading import RewardServiceFailing
from nemo_prorl.training.sampling.rounds import NothingToLearn
from tests.training.conftest import FAILED, MIXED, RIGHT, WRONG, make_prompt
from tests.training.scripted_run import Due, Run, nearly_exhausted
from tests.training.thread_ranks import ThreadRanks, run_as_ranks

NUM_RANKS = 3


def on_every_rank(
    folder: Path,
    prepare: Callable[[Run, int], Any] = lambda run, rank: None,
    fails: tuple[type[Exception], ...] = (),
    **options: Any,
) -> list[Any]:
    """Returns outcome, or the sentence of an error among `fails`, and state of each rank's run. Calls
    `prepare(run, rank)` first."""

    def fit(ranks: ThreadRanks) -> tuple[str, dict[str, Any]]:
        rank = ranks.layout.rank
        run = Run(folder, **options)
        prepare(run, rank)
        try:
            outcome = run.fit(ranks)
        except fails as error:
            outcome = str(error)
        return outcome, asdict(run.state)

    return run_as_ranks(fit, NUM_RANKS, 1, 1)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_signal_to_one_rank_pauses_all_at_the_same_step(tmp_path: Path, ahead: bool) -> None:
    def signal_last(run: Run, rank: int) -> None:
        if rank == NUM_RANKS - 1:
            run.deadline = Due(2)  # type: ignore[assignment]

    results = on_every_rank(tmp_path, signal_last, num_steps=9, every=3, ahead=ahead)
    assert results == [results[0]] * NUM_RANKS
    assert (results[0][0], results[0][1]["step"]) == ("paused", 2)
    dropped = {"taken": 12, "again": ["p8", "p9", "p10", "p11"]}
    assert find_checkpoints(tmp_path)[-1].state.prompts == (dropped if ahead else {"taken": 8})


@pytest.mark.parametrize("ahead", [False, True])
def test_a_stage_saturates_on_all_ranks(tmp_path: Path, ahead: bool) -> None:
    def nearly(run: Run, rank: int) -> None:
        run.state = nearly_exhausted()

    prompts = [make_prompt(f"p{index}", MIXED if index < 2 else RIGHT) for index in range(400)]
    results = on_every_rank(tmp_path, nearly, prompts=prompts, num_steps=99, max_rounds=2, ahead=ahead)
    assert results == [results[0]] * NUM_RANKS
    assert (results[0][0], results[0][1]["step"]) == ("saturated", 6)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_reward_that_breaks_stops_all_ranks_with_one_sentence_and_a_checkpoint(
    tmp_path: Path, ahead: bool
) -> None:
    prompts = [make_prompt(f"p{index}", MIXED if index < 8 else WRONG) for index in range(100)]
    results = on_every_rank(tmp_path, fails=(NothingToLearn,), prompts=prompts, num_steps=9, ahead=ahead)
    assert results == [results[0]] * NUM_RANKS
    assert results[0][0].startswith("stage main stopped after step 2")
    (checkpoint,) = find_checkpoints(tmp_path)
    again = checkpoint.state.prompts["again"]
    assert (checkpoint.state.step, sorted(again, key=lambda uid: int(uid[1:]))) == (
        2,
        [f"p{index}" for index in range(8, checkpoint.state.prompts["taken"])],
    )


def test_a_request_is_obeyed_by_all_ranks_whichever_sees_it_first(tmp_path: Path) -> None:
    def ask_from_last(run: Run, rank: int) -> None:
        def ask(phase: str) -> None:
            if rank == NUM_RANKS - 1 and phase == "updates" and run.state.step == 1:
                ask_for_reset(tmp_path)

        run.on_phase = ask

    results = on_every_rank(tmp_path, ask_from_last, num_steps=4)
    assert results == [results[0]] * NUM_RANKS
    assert results[0][1]["num_resets"] == 1
    assert not reset_request(tmp_path).exists()


def test_a_failing_service_stops_all_ranks_though_a_save_and_a_round_are_under_way(tmp_path: Path) -> None:
    prompts = [make_prompt(f"p{index}", MIXED if index < 8 else FAILED) for index in range(100)]
    options = {"prompts": prompts, "num_steps": 9, "every": 2, "ahead": True}
    results = on_every_rank(tmp_path, fails=(RewardServiceFailing,), **options)
    assert all("grading failed on" in sentence for sentence, _ in results)
    assert all("a run with a checkpoint goes on from it" in sentence for sentence, _ in results)
    assert [checkpoint.state.step for checkpoint in find_checkpoints(tmp_path)] == [2]
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
