"""Grading in the background: failures are never rewards, and the metrics say how much of it overlapped with other
work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.config import KlIn, ShapingConfig
from nemo_prorl.data.mix import render
from nemo_prorl.reward_sources.service import ServiceGrader
from nemo_prorl.training.evaluation import drain
from nemo_prorl.training.sampling.grading import (
    GradingInFlight,
    RewardServiceFailing,
    check_failures,
    was_graded,
)
from nemo_prorl.training.sampling.rounds import Collection
from nemo_prorl.training.step_metrics import collection_metrics
from nemo_prorl.training.timing import Stopwatch, union_s
from reward.client import RewardClient
from reward.protocol import GradeStatus, ScoreResult
from reward.requests import request_of
from tests import chat_templates
from tests.chat_templates import tokenizer_with
from tests.data.conftest import make_row
from tests.training.conftest import (
    FAILED,
    MIXED,
    RIGHT,
    Clock,
    ScriptedGrader,
    ScriptedPolicy,
    ScriptedSampler,
    make_collector,
    make_config,
    make_prompt,
    make_prompts,
    make_rollout,
    new_state,
    uids,
    verdict,
)

# Verdicts that never come


def test_a_missing_verdict_drops_its_rollout_and_nothing_else() -> None:
    prompts = make_prompts([None, 1.0, 0.0, 1.0], [0.0, None, None, 1.0])
    config = make_config(prompts_per_step=2, max_failed_share=0.5)
    collection = make_collector(config, prompts).collect(new_state())
    first, second = collection.groups
    assert (first.rewards, first.num_failed) == ((1.0, 0.0, 1.0), 1)
    assert [member.rollout.sibling for member in first.members] == [1, 2, 3]
    assert (second.rewards, second.num_failed) == ((0.0, 1.0), 2)
    assert sorted(collection.prepared) == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 3)]


@pytest.mark.parametrize(
    "scores", [FAILED, [1.0, None, None, None], [None, 1.0, None, 1.0], [None, 1.0, 1.0, 1.0]]
)
def test_a_missing_verdict_is_never_a_reward_of_0(scores: list[float | None]) -> None:
    """As a 0 it would make each of these prompts informative. Instead the next prompts are taken."""
    config = make_config(prompts_per_step=1, max_failed_share=1.0)
    collection = make_collector(config, make_prompts(scores, MIXED, MIXED)).collect(new_state())
    assert uids(collection.groups) == ["p1"]
    rewards = [reward for group in collection.sampled for reward in group.rewards]
    assert sorted(rewards) == sorted([score for score in scores if score is not None] + 2 * MIXED)
    assert sum(group.num_failed for group in collection.sampled) == scores.count(None)


@pytest.mark.parametrize(
    ("num_failed", "num_verdicts", "max_failed_share", "stops"),
    [
        (0, 100, 0.0, False),
        (1, 100, 0.0, True),
        (1, 100, 0.01, False),
        (2, 100, 0.01, True),
        (100, 100, 1.0, False),
    ],
)
def test_the_run_stops_above_the_share_that_it_bears(
    num_failed: int, num_verdicts: int, max_failed_share: float, stops: bool
) -> None:
    verdicts = [verdict("r", None if index < num_failed else 0.0) for index in range(num_verdicts)]
    if stops:
        with pytest.raises(RewardServiceFailing, match=f"failed on {num_failed} of {num_verdicts}"):
            check_failures(verdicts, max_failed_share)
    else:
        check_failures(verdicts, max_failed_share)


def test_the_stop_says_what_the_service_said() -> None:
    verdicts = [verdict("r", None, reason) for reason in ["timed out"] * 3 + ["gone"] * 2 + ["a", "b"]]
    verdicts.append(
        ScoreResult(request_id="r", status=GradeStatus.invalid_request, score=None, verdict="no such domain")
    )
    with pytest.raises(RewardServiceFailing) as caught:
        check_failures(verdicts, 0.1)
    assert "3 x infra_error: timed out; 2 x infra_error: gone" in str(caught.value)
    assert "reward.max_failed_share=0.1" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", list(GradeStatus))
def test_only_a_graded_verdict_is_a_verdict(status: GradeStatus) -> None:
    score = 0.0 if status is GradeStatus.graded else None
    result = ScoreResult(request_id="r", status=status, score=score, verdict="")
    assert was_graded(result) == (status is GradeStatus.graded)


def test_the_share_is_of_the_whole_step_not_of_a_small_last_round() -> None:
    """40 prompts in the first round and two in the second, with one missing verdict: the share is 1 of 168, not 1 of
    8."""
    prompts = make_prompts(RIGHT, *[MIXED] * 40, [None, 1.0, 0.0, 1.0])
    config = make_config(prompts_per_step=40, max_failed_share=0.01)
    collection = make_collector(config, prompts).collect(new_state())
    assert len(collection.rounds) == 2
    assert collection.sampled[-1].num_failed == 1


# The clock


def _collect(clock: Clock, grader: ScriptedGrader, **engines: object) -> Collection:
    prompts = make_prompts(*[MIXED] * 4)
    state, config = new_state(num_updates=1), make_config()
    config.algorithm.kl_in = KlIn.reward  # so that no pass is left to an update
    config.trainer.micro_batch_tokens = 1  # so that every group is a chunk
    return make_collector(config, prompts, grader=grader, **engines).collect(state)  # type: ignore[arg-type]


def overlap_share(collection: Collection) -> float:
    return collection_metrics(collection, ShapingConfig(), num_updates=1, sources={})["grading/overlap_share"]


def test_grading_that_ends_with_sampling_costs_nothing(clock: Clock) -> None:
    """The grader is slow, but only while sampling goes on anyway."""
    grader = ScriptedGrader()

    def sampling_goes_on() -> None:
        clock.sleep(60.0)
        grader.release_all()

    collection = _collect(clock, grader, sampler=ScriptedSampler(after_sampling=sampling_goes_on))
    assert (collection.grading_busy_s, collection.grading_exposed_s) == (60.0, 0.0)
    assert overlap_share(collection) == 1.0


def test_grading_behind_nothing_is_exposed(clock: Clock) -> None:
    collection = _collect(clock, ScriptedGrader(seconds_each=2.0))
    assert collection.grading_busy_s == collection.grading_exposed_s == 4 * 4 * 2.0
    assert overlap_share(collection) == 0.0


def test_log_probabilities_hide_the_grading_of_other_groups(clock: Clock) -> None:
    """Each group takes 4 s to grade. Preparing it takes 3 s, in which four verdicts of the next one arrive."""
    grader = ScriptedGrader(seconds_each=1.0)

    def prepare() -> None:
        clock.sleep(1.5)
        for _ in range(min(2, len(grader.waiting))):
            grader.release()

    collection = _collect(clock, grader, policy=ScriptedPolicy(on_logprobs=prepare))
    assert collection.grading_exposed_s == 4.0, "only the first group"
    assert collection.grading_exposed_s < collection.grading_busy_s
    assert 0.0 < overlap_share(collection) < 1.0


def test_somebody_who_watches_hears_what_a_run_waits_for(clock: Clock) -> None:
    """The log has a line every 30 s while no verdict arrives, and none afterwards."""
    said: list[str] = []
    grader = ScriptedGrader(seconds_each=12.0)
    in_flight = GradingInFlight(grader, say=said.append)
    prompt = make_prompt("p", MIXED)
    in_flight.submit((0, 0), make_rollout(prompt, 0))
    in_flight.submit((0, 1), make_rollout(prompt, 1))
    held, grader.release = grader.release, lambda: None  # type: ignore[method-assign]
    heard = []
    for _ in range(8):  # 96 s
        in_flight.wait(0.02)
        heard.append(len(said))
    assert heard == [0, 0, 1, 1, 1, 2, 2, 3]
    assert said[0] == "waiting for verdicts: none arrived for 36 s, 2 are missing"
    held()
    assert in_flight.take_finished().keys() == {(0, 0)}
    in_flight.wait(0.02)
    assert len(said) == 3


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_time_at_the_graders_is_counted_once(spans: list[tuple[int, int]]) -> None:
    intervals = [(float(min(span)), float(max(span))) for span in spans]
    seconds = {second for start, end in intervals for second in range(int(start), int(end))}
    assert union_s(intervals) == len(seconds)


def test_what_has_arrived_is_taken_once(clock: Clock) -> None:
    grader = ScriptedGrader()
    in_flight = GradingInFlight(grader)
    prompt = make_prompt("p", MIXED)
    for sibling in range(3):
        in_flight.submit((5, sibling), make_rollout(prompt, sibling, version=9))
    assert in_flight.take_finished() == {}
    grader.choose = lambda num_waiting: num_waiting - 1
    in_flight.wait(1.0)
    assert {key: result.score for key, result in in_flight.take_finished().items()} == {(5, 2): 0.0}
    assert in_flight.take_finished() == {}
    grader.release_all()
    assert set(in_flight.take_finished()) == {(5, 0), (5, 1)}
    assert in_flight.busy_s == 1.0


@pytest.mark.parametrize("length", [1, 400, 485, 494, 5000])
def test_requests_carry_all_that_the_service_needs_and_it_takes_their_ids(clock: Clock, length: int) -> None:
    """A check of the tasks before the run sends shorter ids than training does, so only one of them may be refused."""
    grader = ScriptedGrader(at_once=True)
    prompts = [make_prompt("u" * length, domain="logic"), make_prompt("v" * length, domain="code")]
    prompts[0] = replace(prompts[0], opens_thought=True)
    make_collector(make_config(prompts_per_step=2), prompts, grader=grader).collect(new_state())
    taken = [request_of(request.to_json()) for request in grader.requests]
    assert len({request.request_id for request in taken}) == len(taken) == 8
    assert {(request.domain, request.in_thought) for request in taken} == {("logic", True), ("code", False)}
    assert sorted(request.response for request in taken) == sorted("0123" * 2)
    assert all(request.task == {"scores": MIXED} for request in taken)


@pytest.mark.parametrize(("template", "score"), [("R1_DISTILL", 0.0), ("QWEN3", 1.0)])
def test_a_response_cut_off_inside_the_thought_that_its_prompt_opened_has_no_answer(
    service: str, template: str, score: float
) -> None:
    """From the chat template to the verdict. Without a thought in the prompt, a response without tags is all answer."""
    row = make_row("uid", "?", task={"answer": "4"})
    prompt = render(row, tokenizer_with(getattr(chat_templates, template)))
    cut_off = replace(make_rollout(make_prompt("p"), 0), prompt=prompt, text="\\boxed{4}\nor not")
    verdicts: dict[tuple[int, int], ScoreResult] = {}
    with RewardClient(urls=[service]) as client:
        client.wait_until_ready(60)
        in_flight = GradingInFlight(ServiceGrader(client, None))
        in_flight.submit((0, 0), cut_off)
        in_flight.submit((0, 1), replace(cut_off, sibling=1, text=f"so</think>\n\n{cut_off.text}"))
        drain(in_flight, verdicts.__setitem__)
    assert [verdicts[0, sibling].score for sibling in range(2)] == [score, 1.0]


def test_phases_add_up() -> None:
    stopwatch = Stopwatch()
    for _ in range(2):
        with stopwatch.measure("a"):
            pass
    first = stopwatch.seconds["a"]
    with pytest.raises(KeyError), stopwatch.measure("a"):
        raise KeyError
    assert stopwatch.seconds["a"] >= first
    assert stopwatch.metrics().keys() == {"time/a"}, "and none of memory where it is not measured"


def test_every_phase_has_the_most_memory_that_was_held_while_it_ran() -> None:
    held = iter(
        [9.0, 2.0, 4.0, 5.0, 7.0, 1.0]
    )  # before outer, in it before inner, in inner, in outer behind it, ...
    stopwatch = Stopwatch(peak_gib=lambda: next(held))
    with stopwatch.measure("outer_s"), stopwatch.measure("inner_s"):
        pass
    with stopwatch.measure("inner_s"):
        pass
    metrics = stopwatch.metrics()
    assert metrics.keys() == {"time/outer_s", "time/inner_s", "memory/outer_gib", "memory/inner_gib"}
    assert (metrics["memory/outer_gib"], metrics["memory/inner_gib"]) == (5.0, 4.0)
    stopwatch.restart()
    assert stopwatch.metrics() == {}


def test_nothing_more_is_sampled_for_graders_that_are_gone_for_good() -> None:
    """Otherwise a whole validation might be sampled before anybody waits for a verdict."""

    class Gone(ScriptedGrader):
        def check(self) -> None:
            raise RewardServiceFailing("gone")

    in_flight = GradingInFlight(Gone())
    with pytest.raises(RewardServiceFailing, match="gone"):
        in_flight.submit((0, 0), make_rollout(make_prompt("p", MIXED), 0))
