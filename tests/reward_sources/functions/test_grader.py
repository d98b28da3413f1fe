"""Tests of graders of reward functions: what a call is given, what a failing call costs, and one reward of several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_sources.functions import grader as module
from nemo_prorl.reward_sources.functions.grader import (
    ATTEMPTS,
    FunctionGrader,
    Item,
    MixedGrader,
    RewardFunctionFailing,
    arguments,
    ungraded,
)
from nemo_prorl.reward_sources.functions.worker import CallFailed, Description, FunctionUnusable
from nemo_prorl.types import PARTS, Prompt
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from tests.conftest import ROOT
from tests.reward_sources.functions import asking
from tests.reward_sources.functions.asking import WAIT_S, a_prompt, a_request, grade, reason, scores


@dataclass
class Called:
    """Takes the place of the process. A call tells that it has begun, and waits until `gate` is open."""

    function: Callable[..., Any]
    name: str = "score"
    sizes: list[int] = field(default_factory=list)
    has_begun: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Description:
        return Description(names=["responses"], required=[], takes_any=True)

    def call(self, given: Mapping[str, list[Any]], count: int) -> list[float | str]:
        self.has_begun.set()
        self.gate.wait(WAIT_S)
        self.sizes.append(count)
        return list(self.function(**given))

    def interrupt(self) -> None:
        self.gate.set()

    def end(self) -> None: ...


@pytest.fixture
def made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[FunctionGrader, Called]]]:
    """Returns a function that makes a grader which calls another function in the test's own process."""
    opened: list[FunctionGrader] = []
    (tmp_path / "f.py").touch()

    def make(
        function: Callable[..., Any], name: str = "score", **options: Any
    ) -> tuple[FunctionGrader, Called]:
        called = Called(function, name)
        monkeypatch.setattr(module, "FunctionProcess", lambda *_: called)
        opened.append(asking.grader(f"{tmp_path}/f.py:{name}", tmp_path, **options))
        return opened[-1], called

    yield make
    for grader in opened:
        grader.close()


def at_once(made: tuple[FunctionGrader, Called], texts: list[str]) -> list[Future[ScoreResult]]:
    """Submits the responses while a call with a first one, "gate", is held up."""
    grader, called = made
    called.gate.clear()
    called.has_begun.clear()
    first = grader.submit(a_request(a_prompt(), "gate"), a_prompt())
    assert first.done() or called.has_begun.wait(WAIT_S)
    futures = [grader.submit(a_request(a_prompt(), text), a_prompt()) for text in texts]
    called.gate.set()
    return futures


def results(made: tuple[FunctionGrader, Called], texts: list[str]) -> list[ScoreResult]:
    return [future.result(WAIT_S) for future in at_once(made, texts)]


def lengths(responses: list[str], **columns: Any) -> list[float]:
    """Fails for a response that is bad."""
    if "bad" in responses:
        raise CallFailed("raised KeyError: 'bad'")
    return [float(len(response)) for response in responses]


# What a call is given


def test_a_call_has_what_the_function_has_parameters_for() -> None:
    prompts = [a_prompt(index, difficulty=0.5 * index) for index in range(2)]
    batch = [Item(a_request(prompt, "a</think>b"), prompt) for prompt in prompts]
    some = Description(names=["responses", "difficulty"], required=[], takes_any=False)
    assert arguments(some, batch) == {"responses": ["a</think>b"] * 2, "difficulty": [0.0, 0.5]}
    of_trl = Description(names=["completions"], required=[], takes_any=True)
    columns = {"uid", "domain", "task", "difficulty"}
    assert arguments(of_trl, batch).keys() == {"prompts", "responses", "completions", "final_texts", *columns}
    assert "completions" not in arguments(Description(names=[], required=[], takes_any=True), batch)


@pytest.mark.parametrize(
    ("response", "in_thought", "answer"),
    [
        ("R", False, "R"),
        ("T</think>\n\nR", False, "R"),
        ("T</think>\n\nR", True, "R"),
        ("T", True, None),
        ("<think>T", False, None),
    ],
)
def test_answers_are_what_follows_the_thought(response: str, in_thought: bool, answer: str | None) -> None:
    item = Item(a_request(a_prompt(), response, in_thought=in_thought), a_prompt())
    only = Description(names=["final_texts"], required=[], takes_any=False)
    assert arguments(only, [item]) == {"final_texts": [answer]}


def test_rows_of_different_columns_are_never_in_one_call_and_none_is_too_large(made: Any) -> None:
    grader, called = made(
        lambda responses, weight=(0.0,), **_: [weight[0]] * len(responses), function_batch=3
    )
    called.gate.set()
    prompts = [a_prompt(0), a_prompt(1, weight=2.0), a_prompt(2, weight=2.0), a_prompt(3)]
    assert scores(grade(grader, list("abcd"), prompts)) == [0, 2, 2, 0]
    results((grader, called), ["x"] * 30)
    assert max(called.sizes) == 3


def test_the_documented_example(tmp_path: Path) -> None:
    file = ROOT / "examples/my_reward.py"
    config = RewardConfig(function=[f"{file}:right", f"{file}:brief"], weights={"brief": 0.5})
    functions = [asking.grader(text, tmp_path) for text in config.function]
    puzzle = {"task": "basic_arithmetic", "entry": {"answer": "10"}}
    sorting = {"task": "number_sorting", "entry": {"answer": "['1.0', '3.0']"}}
    tasks = [{"answer": "7"}, puzzle, {"answer": "7"}, sorting, sorting]
    prompts = [a_prompt(number, task=task) for number, task in enumerate(tasks)]
    responses = ["3+4=7", "10", "<think>7", "['1','3']", "['3','1']"]
    try:
        graded = grade(MixedGrader(functions, None, config), responses, prompts)
    finally:
        for function in functions:
            function.close()
    assert [result.details[PARTS] for result in graded] == [
        {"right": 1.0, "brief": -0.05},
        {"right": 1.0, "brief": -0.02},
        {"right": 0.0, "brief": -0.08},
        {"right": 1.0, "brief": -0.09},
        {"right": 0.0, "brief": -0.09},
    ]
    assert scores(graded) == pytest.approx([0.975, 0.99, -0.04, 0.955, -0.045])


# What a failing call costs


def test_one_response_that_breaks_a_call_costs_only_its_own_value(made: Any, tmp_path: Path) -> None:
    grader = made(lengths)
    found = results(grader, ["a", "bb", "bad", "cccc", "ddddd"])
    assert scores(found) == [1, 2, None, 4, 5]
    assert reason(found[2]).startswith("the reward function score raised KeyError: 'bad'")
    assert str(tmp_path / "log.txt") in reason(found[2])
    for _ in range(ATTEMPTS):
        results(grader, ["bad"] * (2 * ATTEMPTS))
    grader[0].check()
    assert scores(results(grader, ["ab"])) == [2], "a function that has graded is asked again"
    found = results(made(lengths, function_batch=4), ["a", *["bad"] * ATTEMPTS, "bb"])
    assert scores(found) == [1, *[None] * ATTEMPTS, 2], "a batch that graded starts the count anew"


def test_a_value_that_is_a_text_is_no_score(made: Any) -> None:
    found = results(
        made(lambda responses, **_: [1.0, "returned None for a response"][: len(responses)]), ["a", "b"]
    )
    assert scores(found) == [1.0, None]
    assert "score returned None for a response" in reason(found[1])


def test_verdicts_come_as_soon_as_they_are_known(made: Any) -> None:
    """Other responses of a failed call must not wait for every slow one behind them, or the run would seem to hang."""
    wait = threading.Event()

    def slow(responses: list[str], **columns: Any) -> list[float]:
        if responses == ["wait"]:
            wait.wait(WAIT_S)
        return lengths(responses)

    futures = at_once(made(slow), ["bad", "a", "wait", "b"])
    assert [future.result(WAIT_S).score for future in futures[:2]] == [None, 1.0]
    assert not futures[2].done()
    wait.set()
    assert [future.result(WAIT_S).score for future in futures[2:]] == [4.0, 1.0]


@pytest.mark.parametrize("function_batch", [1, 2, 8])
def test_a_function_that_fails_always_takes_what_waits_along(made: Any, function_batch: int) -> None:
    """Otherwise a step of 512 rollouts would take 512 time limits to fail."""

    def hang(responses: list[str], **columns: Any) -> list[float]:
        raise CallFailed("took longer than 0.3 s")

    grader, called = made(hang, function_batch=function_batch)
    grader.check()
    assert all("took longer" in reason(result) for result in results((grader, called), ["x"] * 100))
    assert len(called.sizes) <= 2 * ATTEMPTS
    with pytest.raises(RewardFunctionFailing, match=r"score took longer .*: fix it, and start again\.$"):
        grader.check()


@pytest.mark.parametrize(
    "error", [CallFailed("returned 1 numbers for 2", again=False), FunctionUnusable("is gone")]
)
def test_a_function_that_cannot_grade_is_asked_once(made: Any, error: Exception) -> None:
    def fail(responses: list[str], **columns: Any) -> list[float]:
        raise error

    grader, called = made(fail)
    assert all(str(error) in reason(result) for result in results((grader, called), ["x"] * 9))
    assert len(called.sizes) == 1
    with pytest.raises(RewardFunctionFailing, match=str(error)):
        grader.check()


def test_our_own_defect_leaves_nobody_waiting(made: Any) -> None:
    found = results(made(lambda responses, **_: 1 / 0), ["a", "b"])
    assert all("was not asked: ZeroDivisionError" in reason(result) for result in found)


def test_after_the_end_nobody_waits(made: Any) -> None:
    grader, called = made(lengths)
    futures = [grader.submit(a_request(a_prompt(), "x"), a_prompt()) for _ in range(3)]
    grader.close()
    assert len(called.sizes) <= 1
    assert all("the run has ended" in reason(future.result(0)) for future in futures[1:])
    assert "the run has ended" in reason(grade(grader, ["a"])[0])


def test_closing_ends_a_process_that_is_only_now_started(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("import time\ndef score(responses):\n    time.sleep(600)\n")
    grader = asking.grader(f"{tmp_path}/f.py:score", tmp_path, function_timeout_s=2.0 * WAIT_S)
    future = grader.submit(a_request(a_prompt(), "x"), a_prompt())
    thread = threading.Thread(target=grader.close)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "closing waits for the call"
    assert future.result(0).score is None


# Several functions, and the reward service


class Service:
    """A stand-in for the reward service; the test lists the right answers."""

    version = "1"

    def __init__(self, verdicts: Mapping[str, float | None]) -> None:
        self.verdicts = verdicts
        self.asked: list[str] = []

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        self.asked.append(request.response)
        future: Future[ScoreResult] = Future()
        score = self.verdicts[request.response]
        if score is None:
            future.set_result(ungraded(request.request_id, "the service is on fire"))
            return future
        result = ScoreResult(
            request_id=request.request_id, status=GradeStatus.graded, score=score, verdict="correct",
            details={"extracted": "4"},
        )  # fmt: skip
        future.set_result(result)
        return future

    def grades(self, domain: str) -> bool:
        return domain == "math"

    def check(self) -> None: ...


@pytest.fixture
def mixed(made: Callable[..., tuple[FunctionGrader, Called]]) -> Callable[..., MixedGrader]:
    """Returns a function that makes a grader of two functions: `size`, the length, and `picky`, -1 or no value."""

    def picky(responses: list[str], **columns: Any) -> list[float | str]:
        if "broken" in responses:
            raise CallFailed("returned a value of type float", again=False)
        return ["returned None for a response" if text == "none" else -1.0 for text in responses]

    def make(weights: Mapping[str, float], service: Service | None = None, **options: Any) -> MixedGrader:
        functions = []
        for function, name in ((lengths, "size"), (picky, "picky")):
            grader, called = made(function, name)
            called.gate.set()
            functions.append(grader)
        config = RewardConfig(function=[function.text for function in functions], weights=dict(weights))
        return MixedGrader(functions, service, config, **options)

    return make


def test_the_reward_is_the_weighted_sum_and_its_parts_have_names(mixed: Any) -> None:
    service = Service({"a": 1.0, "bb": 0.0})
    found = grade(mixed({"size": 0.5, "service": 10.0}, service), ["a", "bb"])
    assert scores(found) == [0.5 - 1 + 10, 1 - 1 + 0]
    assert [result.details[PARTS] for result in found] == [
        {"size": 1.0, "picky": -1.0, "service": 1.0},
        {"size": 2.0, "picky": -1.0, "service": 0.0},
    ]
    assert (found[0].verdict, found[0].details["extracted"]) == ("correct", "4")


def test_what_a_part_with_a_weight_does_not_grade_is_not_graded(mixed: Any) -> None:
    service = Service({"a": 1.0, "none": 1.0, "fire": None})
    found = grade(mixed({"service": 1.0}, service), ["a", "none", "fire"])
    assert scores(found) == [1.0, None, None]
    assert "picky returned None" in reason(found[1])
    assert "on fire" in reason(found[2])


def test_a_weight_of_0_records_and_does_not_count_nor_is_it_missed(mixed: Any) -> None:
    service = Service({"a": 1.0, "none": 1.0, "fire": None})
    found = grade(mixed({"service": 0.0, "picky": 0.0}, service), ["a", "none", "fire"])
    assert scores(found) == [1, 4, 4], "the lengths"
    assert [result.details[PARTS] for result in found] == [
        {"size": 1.0, "picky": -1.0, "service": 1.0},
        {"size": 4.0, "service": 1.0},
        {"size": 4.0, "picky": -1.0},
    ]
    assert [result.verdict for result in found] == ["correct", "correct", "function"]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_function_that_fails_for_good_stops_the_run_unless_it_only_records(
    mixed: Any, weight: float
) -> None:
    said: list[str] = []
    grader = mixed({"picky": weight}, say=said.append)
    grade(grader, ["broken"])
    if weight:
        with pytest.raises(
            RewardFunctionFailing, match="reward function picky returned a value of type float"
        ):
            grader.check()
        return
    grader.check()
    grader.check()
    assert [text.count("It has weight 0") for text in said] == [1], "it is said once"


def test_rows_that_the_service_does_not_know_are_graded_by_functions_alone(mixed: Any) -> None:
    said: list[str] = []
    service = Service({"a": 1.0})
    prompts = [a_prompt(0), a_prompt(1, domain="haiku"), a_prompt(2, task={}), a_prompt(3, domain="haiku")]
    found = grade(mixed({"service": 1.0}, service, say=said.append), ["a", "b", "c", "d"], prompts)
    assert scores(found) == [1, 0, 0, 0]
    assert service.asked == ["a"]
    assert [text.count("haiku") for text in said] == [1], "it is said once"
    only_recording = mixed({"service": 1.0, "size": 0.0, "picky": 0.0}, Service({"a": None}))
    assert scores(grade(only_recording, ["a"], [a_prompt(domain="haiku")])) == [None], "and not a made-up 0"


def test_a_sum_that_is_too_large_is_no_score(mixed: Any) -> None:
    (result,) = grade(mixed({"size": 1e308, "picky": -1e308}), ["abc"])
    assert "not a finite number" in reason(result)


def test_versions_tell_functions_and_weights_apart(mixed: Any) -> None:
    first, again, other = mixed({}), mixed({}), mixed({"size": 2.0})
    assert first.version == again.version != other.version
