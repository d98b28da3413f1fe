"""Tests of the process of a function: what it inherits, and what can happen to it and its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.engines.environment import ALWAYS, CPU_ONLY
from nemo_prorl.reward_sources.functions.check import digest
from nemo_prorl.reward_sources.functions.grader import ATTEMPTS, FunctionGrader, RewardFunctionFailing
from nemo_prorl.reward_sources.functions.process import environment_of_functions
from tests.reward_sources.functions.asking import WAIT_S, a_prompt, a_request, grade, reason, scores


class Opened:
    """Graders of functions `score`, which are closed at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.graders = folder, list[FunctionGrader]()

    def grader(self, source: str, log: Path | None = None, **options: object) -> FunctionGrader:
        file = self.folder / "my_reward.py"
        file.write_text(source)
        text, config = f"{file}:score", RewardConfig(**options)  # type: ignore[arg-type]
        self.graders.append(FunctionGrader(text, config, log or self.folder / "log.txt", digest(text)))
        return self.graders[-1]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    for grader in made.graders:
        grader.close()


CONSTANT = "def score(responses):\n    return [1.0 for _ in responses]\n"


def test_verdicts_come_as_soon_as_they_are_known(opened: Opened) -> None:
    """Other responses of a failed call must not wait for every slow one behind them, or the run would seem to hang."""
    grader = opened.grader(
        "import os, time\ndef score(responses):\n    if 'die' in responses: os._exit(1)\n"
        "    while 'wait' in responses and not os.path.exists(responses[0] and 'go' and __file__ + '.go'):\n"
        "        time.sleep(0.01)\n    return [1.0 for _ in responses]\n"
    )
    texts = ["die", "a", "wait", "b"]
    prompt = a_prompt()
    with grader._changed:  # all of them in one batch
        futures = [grader.submit(a_request(prompt, text), prompt) for text in texts]
    assert [future.result(WAIT_S).score for future in futures[:2]] == [None, 1.0]
    assert not futures[2].done()
    (opened.folder / "my_reward.py.go").touch()
    assert [future.result(WAIT_S).score for future in futures[2:]] == [1.0, 1.0]


def test_a_log_that_is_removed_costs_nothing(opened: Opened) -> None:
    grader = opened.grader(CONSTANT)
    assert scores(grade(grader, ["a"])) == [1]
    (opened.folder / "log.txt").unlink()
    assert scores(grade(grader, ["a"])) == [1]


def test_a_log_that_cannot_be_written_is_named(opened: Opened) -> None:
    (opened.folder / "file").touch()
    grader = opened.grader(CONSTANT, log=opened.folder / "file" / "log.txt")
    text = reason(grade(grader, ["a"])[0])
    assert "cannot be used: its log" in text
    assert "cannot be written" in text


def test_columns_that_cannot_be_sent_are_no_exception(opened: Opened) -> None:
    grader = opened.grader("def score(responses, odd):\n    return [1.0 for _ in responses]\n")
    assert "cannot be given the columns" in reason(grade(grader, ["a"], [a_prompt(odd=lambda: 0)])[0])


def test_a_class_that_the_other_interpreter_lacks_is_named(opened: Opened) -> None:
    bare = opened.folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    grader = opened.grader(
        "def score(responses, odd):\n    return [1.0 for _ in responses]\n", function_python=str(bare)
    )
    text = reason(grade(grader, ["a"], [a_prompt(odd=numpy.float32(1))])[0])
    assert "lacks the package numpy" in text


def test_after_the_end_nobody_waits(opened: Opened) -> None:
    grader = opened.grader(CONSTANT)
    grader.close()
    assert "the run has ended" in reason(grade(grader, ["a"])[0])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def score(responses):\n    return 1.0\n", "score returned a value of type float, not a list"),
        ("def score(responses):\n    raise KeyError('x')\n", "score raised KeyError: 'x'"),
    ],
)
def test_a_function_that_grades_nothing_is_known_before_a_validation_ends(
    opened: Opened, source: str, said: str
) -> None:
    grader = opened.grader(source)
    grader.check()
    prompt = a_prompt()
    with grader._changed:
        futures = [grader.submit(a_request(prompt, "x"), prompt) for _ in range(2 * ATTEMPTS)]
    assert all(said in reason(future.result(WAIT_S)) for future in futures)
    grader.close()  # waits for its thread
    with pytest.raises(
        RewardFunctionFailing, match=r"^the reward function score .*: fix it, and start again\.$"
    ):
        grader.check()


def test_an_odd_response_does_not_stop_a_function_that_has_graded(opened: Opened) -> None:
    grader = opened.grader("def score(responses):\n    return [1 / len(r) for r in responses]\n")
    grade(grader, ["a"])
    prompt = a_prompt()
    with grader._changed:
        futures = [grader.submit(a_request(prompt, ""), prompt) for _ in range(2 * ATTEMPTS)]
    assert all("ZeroDivisionError" in reason(future.result(WAIT_S)) for future in futures)
    grader.check()
    assert scores(grade(grader, ["ab"])) == [0.5]


def test_a_function_does_not_take_itself_for_a_rank_of_the_job() -> None:
    job = dict.fromkeys(
        ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SLURM_PROCID"], "1"
    )
    users = {
        "PATH": "/bin",
        "VLLM_CACHE_ROOT": "/x",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RANKING": "1",
    }
    kept = environment_of_functions({**ALWAYS, **CPU_ONLY, **job, **users})
    assert users.items() <= kept.items()
    assert not job.keys() & kept.keys()
    assert not [name for name in kept if name.startswith("TORCH")]
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in kept
