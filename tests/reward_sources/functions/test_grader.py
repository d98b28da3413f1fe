"""Tests of a user's functions in their processes: what they are called with, and every way to fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.reward_sources.functions import process
from nemo_prorl.reward_sources.functions.check import digest
from nemo_prorl.reward_sources.functions.grader import (
    ATTEMPTS,
    FunctionGrader,
    MixedGrader,
    RewardFunctionFailing,
)
from nemo_prorl.reward_sources.functions.process import FunctionProcess
from nemo_prorl.types import PARTS
from tests.conftest import ROOT
from tests.reward_sources.functions.asking import WAIT_S, a_prompt, a_request, grade, reason, scores


@pytest.fixture
def grader_of(tmp_path: Path) -> Iterator[Callable[..., FunctionGrader]]:
    """Returns a function that makes a grader from the source of a function `score`."""
    opened: list[FunctionGrader] = []

    def make(source: str, **options: Any) -> FunctionGrader:
        file = tmp_path / "my_reward.py"
        file.write_text(source)
        config = RewardConfig(**{"function_timeout_s": 60.0, **options})
        text = f"{file}:score"
        opened.append(FunctionGrader(text, config, tmp_path / "log.txt", digest(text)))
        return opened[-1]

    yield make
    for grader in opened:
        grader.close()


# What it is called with


def test_a_function_gets_prompts_responses_and_columns(grader_of: Any) -> None:
    grader = grader_of(
        "def score(prompts, responses, task, difficulty):\n"
        "    assert all(p.startswith('question') for p in prompts)\n"
        "    return [len(r) + int(t['answer']) + d for r, t, d in zip(responses, task, difficulty)]\n"
    )
    prompts = [a_prompt(index, difficulty=0.5 * index) for index in range(5)]
    assert scores(grade(grader, ["x" * index for index in range(5)], prompts)) == [0, 2.5, 5, 7.5, 10]


def test_functions_of_trl_run_as_they_are(grader_of: Any) -> None:
    grader = grader_of(
        "def score(completions, ground_truth, **kwargs):\n"
        "    assert 'prompts' in kwargs and 'uid' in kwargs\n"
        "    return [1.0 if c == g else 0.0 for c, g in zip(completions, ground_truth)]\n"
    )
    prompts = [a_prompt(index, ground_truth=str(index)) for index in range(3)]
    assert scores(grade(grader, ["0", "x", "2"], prompts)) == [1, 0, 1]


def test_async_functions_are_awaited(grader_of: Any) -> None:
    grader = grader_of(
        "import asyncio\n"
        "async def score(responses, **columns):\n"
        "    async def one(response):\n"
        "        await asyncio.sleep(0)\n"
        "        return len(response)\n"
        "    return await asyncio.gather(*map(one, responses))\n"
    )
    assert scores(grade(grader, ["", "a", "bb"])) == [0, 1, 2]


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
def test_answers_are_what_follows_the_thought(
    grader_of: Any, response: str, in_thought: bool, answer: str | None
) -> None:
    grader = grader_of(
        "def score(final_texts, responses, expected):\n"
        "    return [float(a == e and len(r) > 0) for a, r, e in zip(final_texts, responses, expected)]\n"
    )
    prompt = a_prompt(expected=answer)
    request = a_request(prompt, response, in_thought=in_thought)
    assert grader.submit(request, prompt).result(WAIT_S).score == 1


def test_rows_of_different_columns_are_never_in_one_call(grader_of: Any) -> None:
    grader = grader_of(
        "def score(responses, weight=None):\n"
        "    return [0.0] * len(responses) if weight is None else weight\n"
    )
    prompts = [a_prompt(0), a_prompt(1, weight=2.0), a_prompt(2, weight=3.0), a_prompt(3)]
    assert scores(grade(grader, list("abcd"), prompts)) == [0, 2, 3, 0]


def test_a_call_has_no_more_responses_than_asked_for(grader_of: Any) -> None:
    grader = grader_of(
        "def score(responses, **columns):\n    return [len(responses)] * len(responses)\n", function_batch=3
    )
    sizes = scores(grade(grader, ["x"] * 30))
    assert max(size for size in sizes if size is not None) <= 3


def test_arrays_and_booleans_are_numbers(grader_of: Any) -> None:
    grader = grader_of(
        "import numpy\n"
        "def score(responses):\n"
        "    return numpy.array([len(r) for r in responses], dtype=numpy.float32)\n"
    )
    assert scores(grade(grader, ["", "ab"])) == [0, 2]
    grader = grader_of(
        "import numpy\n"
        "def score(responses):\n"
        "    return [len(r) > 0 if len(r) < 2 else numpy.float32(len(r)) for r in responses]\n"
    )
    assert scores(grade(grader, ["", "a", "bb"])) == [0, 1, 2]


def test_dates_and_bytes_reach_the_function(grader_of: Any) -> None:
    from datetime import date

    grader = grader_of(
        "def score(responses, day, raw):\n    return [d.year + len(b) for d, b in zip(day, raw)]\n"
    )
    assert scores(grade(grader, ["x"], [a_prompt(day=date(2020, 1, 1), raw=b"abc")])) == [2023]


def test_a_file_may_import_its_neighbour(grader_of: Any, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 3.0\n")
    grader = grader_of(
        "import neighbour\ndef score(responses):\n    return [neighbour.VALUE for _ in responses]\n"
    )
    assert scores(grade(grader, ["x"])) == [3]


def test_the_documented_example(tmp_path: Path) -> None:
    file = ROOT / "examples/my_reward.py"
    config = RewardConfig(function=[f"{file}:right", f"{file}:brief"], weights={"brief": 0.5})
    functions = [FunctionGrader(text, config, tmp_path / "log.txt", digest(text)) for text in config.function]
    puzzle = {"task": "basic_arithmetic", "entry": {"answer": "10"}}
    sorting = {"task": "number_sorting", "entry": {"answer": "['1.0', '3.0']"}}
    tasks = [{"answer": "7"}, puzzle, {"answer": "7"}, sorting, sorting]
    prompts = [a_prompt(number, task=task) for number, task in enumerate(tasks)]
    try:
        results = grade(
            MixedGrader(functions, None, config),
            ["3+4=7", "10", "<think>7", "['1','3']", "['3','1']"],
            prompts,
        )
    finally:
        for function in functions:
            function.close()
    assert [result.details[PARTS] for result in results] == [
        {"right": 1.0, "brief": -0.05},
        {"right": 1.0, "brief": -0.02},
        {"right": 0.0, "brief": -0.08},
        {"right": 1.0, "brief": -0.09},
        {"right": 0.0, "brief": -0.09},
    ]
    assert scores(results) == pytest.approx([0.975, 0.99, -0.04, 0.955, -0.045])


# Every way to fail. A response that is "bad" costs no other response its value.


@pytest.mark.parametrize(
    ("misbehave", "said"),
    [
        ("raise KeyError('gold')", r"raised KeyError: 'gold' \(my_reward.py, line 5\)"),
        ("import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("import os; os._exit(3)", "ended by itself, with exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "died of signal 11"),
        ("import os; os.kill(os.getpid(), 9)", "was killed, as the kernel does when memory runs out"),
        ("x = bytearray(1 << 60)", "raised MemoryError"),
    ],
)
def test_one_response_that_breaks_a_call_costs_only_its_own_value(
    grader_of: Any, tmp_path: Path, misbehave: str, said: str
) -> None:
    grader = grader_of(
        f"def score(responses, **columns):\n    print('noise ' * 1000)\n    if 'bad' in responses:\n"
        f"        pass\n        {misbehave}\n    return [float(len(r)) for r in responses]\n"
    )
    results = grade(grader, ["a", "bb", "bad", "cccc", "ddddd"])
    assert [s for i, s in enumerate(scores(results)) if i != 2] == [1, 2, 4, 5]
    text = reason(results[2])
    assert text.startswith("the reward function score ")
    assert str(tmp_path / "log.txt") in text
    assert re.search(said, text), text


def test_what_never_ends_is_ended(grader_of: Any, tmp_path: Path) -> None:
    grader = grader_of(
        "def forever():\n    while True:\n        pass\n"
        "def score(responses):\n    if 'bad' in responses:\n        forever()\n    return [1.0 for _ in responses]\n",
        function_timeout_s=0.5,
    )
    results = grade(grader, ["a", "bad", "c"])
    assert scores(results) == [1, None, 1]
    assert "took longer than 0.5 s" in reason(results[1])
    assert "in forever" in (tmp_path / "log.txt").read_text(), "the stack tells where it was"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("None", "returned None for a response"),
        ("float('nan')", "returned nan for a response, not a finite number"),
        ("float('inf')", "returned inf for a response"),
        ("10 ** 400", "returned inf for a response"),
        ("'1.0'", "returned a value of type str for a response"),
        ("[1.0]", "returned a value of type list for a response"),
        ("{'score': 1.0}", "returned a value of type dict for a response"),
        ("1j", "returned a value of type complex for a response"),
    ],
)
def test_what_is_no_number_is_no_score(grader_of: Any, value: str, said: str) -> None:
    grader = grader_of(
        f"def score(responses):\n    return [{value} if r == 'bad' else 1.0 for r in responses]\n"
    )
    results = grade(grader, ["a", "bad", "c"])
    assert scores(results) == [1, None, 1]
    assert said in reason(results[1])


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("[1.0] * (len(responses) + 1)", "returned 2 numbers for 1 responses"),
        ("[]", "returned 0 numbers for 1 responses"),
        ("1.0", "returned a value of type float, not a list of numbers"),
        ("None", "returned a value of type NoneType, not a list"),
        ("(1.0 for _ in responses)", "returned a value of type generator, not a list"),
        ("{r: 1.0 for r in responses}", "returned a value of type dict, not a list"),
    ],
)
def test_a_result_of_another_form_grades_nothing(grader_of: Any, result: str, said: str) -> None:
    grader = grader_of(f"def score(responses):\n    return {result}\n")
    assert said in reason(grade(grader, ["a"])[0])


def test_the_traceback_is_in_the_log(grader_of: Any, tmp_path: Path) -> None:
    grader = grader_of("def score(responses):\n    print('I was here')\n    return responses[7]\n")
    grade(grader, ["a"])
    log = (tmp_path / "log.txt").read_text()
    assert "I was here" in log
    assert "Traceback" in log
    assert "return responses[7]" in log
    assert "child.py" not in log, "our own frames say nothing to the user"


def test_a_function_that_prints_all_the_time_does_not_fill_the_disk(
    grader_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_MAX_LOG_BYTES", 10_000)
    grader = grader_of("def score(responses):\n    print('x' * 8_000)\n    return [1.0 for _ in responses]\n")
    for _ in range(10):
        assert scores(grade(grader, ["a"])) == [1]
    assert (tmp_path / "log.txt").stat().st_size < 30_000


@pytest.mark.parametrize("function_batch", [1, 2, 8])
def test_a_function_that_hangs_on_everything_takes_what_waits_along(
    grader_of: Any, tmp_path: Path, function_batch: int
) -> None:
    """Otherwise a step of 512 rollouts would take 512 time limits to fail."""
    grader = grader_of(
        "import time\ndef score(responses):\n    print('called', flush=True)\n    time.sleep(600)\n",
        function_timeout_s=0.3,
        function_batch=function_batch,
    )
    results = grade(grader, ["x"] * 100)
    assert all("took longer than 0.3 s" in reason(result) for result in results)
    num_calls = (tmp_path / "log.txt").read_text().count("called")
    assert num_calls <= 2 * ATTEMPTS, "a batch may be taken before all responses are there"
    with pytest.raises(RewardFunctionFailing, match=r"took longer than 0\.3 s"):
        grader.check()


def test_a_file_that_changes_under_a_run_is_not_used(grader_of: Any, tmp_path: Path) -> None:
    source = "import os\ndef score(responses):\n    return [os._exit(1) if r == 'die' else 1.0 for r in responses]\n"
    grader = grader_of(source)
    assert scores(grade(grader, ["a"])) == [1]
    (tmp_path / "my_reward.py").write_text(source.replace("1.0", "2.0"))
    assert scores(grade(grader, ["a"])) == [1], "the process goes on as it began"
    grade(grader, ["die"])
    assert "has changed since the run began" in reason(grade(grader, ["a"])[0])


def test_closing_ends_a_call_and_leaves_nobody_waiting(grader_of: Any) -> None:
    grader = grader_of("import time\ndef score(responses):\n    time.sleep(600)\n")
    futures = [grader.submit(a_request(a_prompt(), "x"), a_prompt()) for _ in range(3)]
    grader.close()
    assert all(future.result(WAIT_S).score is None for future in futures)


def test_closing_ends_a_process_that_is_only_now_started(
    grader_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, closing = FunctionProcess._launch, threading.Event()

    def after_closing(self: FunctionProcess, *arguments: Any) -> Any:
        assert closing.wait(WAIT_S)
        return launch(self, *arguments)

    monkeypatch.setattr(FunctionProcess, "_launch", after_closing)
    grader = grader_of(
        "import time\ndef score(responses):\n    time.sleep(600)\n", function_timeout_s=2 * WAIT_S
    )
    future = grader.submit(a_request(a_prompt(), "x"), a_prompt())
    interrupt = grader._process.interrupt
    monkeypatch.setattr(grader._process, "interrupt", lambda: (interrupt(), closing.set()))
    thread = threading.Thread(target=grader.close)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "closing waits for the call"
    assert future.result(0).score is None


def test_the_process_ends_with_the_trainer(grader_of: Any, tmp_path: Path) -> None:
    """The end of the trainer closes its socket."""
    (tmp_path / "my_reward.py").write_text("def score(responses):\n    return [1.0]\n")
    function = FunctionProcess(f"{tmp_path}/my_reward.py:score", RewardConfig(), None)
    function.start()
    assert function._process is not None
    assert function._channel is not None
    function._channel.close()
    assert function._process.wait(WAIT_S) == 0
