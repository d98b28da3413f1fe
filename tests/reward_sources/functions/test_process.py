"""Tests of a reward function in its process: what it may return, and every way in which it can fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import RewardConfig
from nemo_prorl.engines.environment import ALWAYS, CPU_ONLY
from nemo_prorl.reward_sources.functions import process
from nemo_prorl.reward_sources.functions.check import digest
from nemo_prorl.reward_sources.functions.process import FunctionProcess, hidden_variables
from nemo_prorl.reward_sources.functions.worker import CallFailed, FunctionUnusable
from tests.conftest import ROOT
from tests.reward.serving import alive, wait_until
from tests.reward_sources.functions.asking import WAIT_S

DOES_AS_TOLD = """
import asyncio, numpy, os, sys, time
def hang():
    while True: pass
async def later(values):
    await asyncio.sleep(0)
    return values
def score(responses, code):
    return eval(compile(code[0], "told", "eval"))
def statement(text):
    exec(text)
"""


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FunctionProcess, Path]]:
    """A process whose function returns the value of an expression, and its log."""
    folder = tmp_path_factory.mktemp("telling")
    (folder / "told.py").write_text(DOES_AS_TOLD)
    config = RewardConfig(function_timeout_s=1.0)
    function = FunctionProcess(f"{folder}/told.py:score", config, folder / "log.txt")
    yield function, folder / "log.txt"
    function.end()


@pytest.fixture
def function_of(tmp_path: Path) -> Iterator[Callable[..., FunctionProcess]]:
    """Returns a function that makes the process of a function `score`, of which the source is given."""
    opened: list[FunctionProcess] = []

    def make(source: str, **options: Any) -> FunctionProcess:
        file = tmp_path / "my_reward.py"
        file.write_text(source)
        text = f"{file}:score"
        opened.append(FunctionProcess(text, RewardConfig(**options), tmp_path / "log.txt", digest(text)))
        return opened[-1]

    yield make
    for function in opened:
        function.end()


def tell(function: FunctionProcess, code: str, responses: list[str] | None = None) -> list[float | str]:
    responses = responses or ["a", "bb"]
    return function.call({"responses": responses, "code": [code] * len(responses)}, len(responses))


@pytest.mark.parametrize(
    "code",
    [
        "[1.0, 0.0]",
        "(1, 0)",
        "[True, False]",
        "numpy.array([1, 0], dtype=numpy.float32)",
        "[numpy.float32(1), numpy.array([0])]",
        "[responses.pop() and 1.0, responses.pop() and 0.0]",
        "later([1.0, 0.0])",
    ],
)
def test_lists_of_numbers_are_taken(telling: tuple[FunctionProcess, Path], code: str) -> None:
    assert tell(telling[0], code) == [1.0, 0.0]


NO_NUMBER = {
    "None": "returned None for a response",
    "float('nan')": "returned nan for a response, not a finite number",
    "float('inf')": "returned inf for a response",
    "-float('inf')": "returned -inf for a response",
    "10 ** 400": "returned inf for a response",
    "numpy.float64('nan')": "returned nan for a response",
    "'1.0'": "returned a value of type str for a response",
    "[1.0]": "returned a value of type list for a response",
    "{'score': 1.0}": "returned a value of type dict for a response",
    "1j": "returned a value of type complex for a response",
    "numpy.zeros(2)": "returned a value of type ndarray for a response",
}


@pytest.mark.parametrize(("value", "said"), NO_NUMBER.items())
def test_what_is_no_number_costs_one_response_its_value(
    telling: tuple[FunctionProcess, Path], value: str, said: str
) -> None:
    first, second = tell(telling[0], f"[0.5, {value}]")
    assert first == 0.5
    assert said in str(second)


NO_RESULT = {
    "[1.0]": "returned 1 numbers for 2 responses",
    "[1.0] * 3": "returned 3 numbers for 2 responses",
    "[]": "returned 0 numbers for 2 responses",
    "1.0": "returned a value of type float, not a list of numbers",
    "None": "returned a value of type NoneType, not a list",
    "'10'": "returned a value of type str, not a list",
    "(1.0 for _ in responses)": "returned a value of type generator, not a list",
    "{r: 1.0 for r in responses}": "returned a value of type dict, not a list",
    "responses[7]": r"raised IndexError: list index out of range \(told.py, line 9\)",
    "sys.exit(3)": "raised SystemExit: 3",
    "statement('raise KeyboardInterrupt')": "raised KeyboardInterrupt",
    "bytearray(1 << 60)": "raised MemoryError",
    "os._exit(3)": "ended by itself, with exit code 3",
    "os.kill(os.getpid(), 11)": "died of signal 11",
    "os.kill(os.getpid(), 9)": "was killed, as the kernel does when memory runs out",
    "hang()": "took longer than 1 s",
    "time.sleep(600)": "took longer than 1 s",
}


@pytest.mark.parametrize(("code", "said"), NO_RESULT.items())
def test_a_call_without_a_result_is_named_and_the_next_one_answers(
    telling: tuple[FunctionProcess, Path], code: str, said: str
) -> None:
    with pytest.raises(CallFailed, match=said) as caught:
        tell(telling[0], code)
    assert "\n" not in str(caught.value)
    assert caught.value.again == (not str(caught.value).startswith("returned")), (
        "a wrong form is so in every call"
    )
    assert tell(telling[0], "[1.0, 0.0]") == [1.0, 0.0]


def test_the_log_has_output_tracebacks_and_the_stack_of_a_call_that_took_too_long(
    telling: tuple[FunctionProcess, Path],
) -> None:
    tell(telling[0], "[1.0, 0.0]")
    before = len(telling[1].read_text())
    assert tell(telling[0], "print('I was here') or [1.0, 0.0]") == [1.0, 0.0]
    for code in ("responses[8]", "hang()"):
        with pytest.raises(CallFailed):
            tell(telling[0], code)
    raised, _, stack = telling[1].read_text()[before:].partition("Timeout")
    assert raised.startswith("I was here")
    assert 'eval(compile(code[0], "told", "eval"))' in raised
    assert "worker.py" not in raised, "our own frames say nothing to the user"
    assert "in hang" in stack


def test_a_process_that_cannot_end_itself_is_killed(
    telling: tuple[FunctionProcess, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FUNCTION_END_S", 0.5)
    with pytest.raises(CallFailed, match="took longer than 1 s"):
        tell(telling[0], "os.kill(os.getpid(), 19)")
    assert tell(telling[0], "[1.0, 0.0]") == [1.0, 0.0]


def test_what_a_function_has_started_ends_with_it(telling: tuple[FunctionProcess, Path]) -> None:
    code = "[__import__('subprocess').Popen(['sleep', '600']).pid, 0]"
    pid = int(tell(telling[0], code)[0])
    telling[0].end()
    assert wait_until(lambda: not alive([pid]), WAIT_S)


def test_dates_bytes_and_neighbours_reach_the_function(function_of: Any, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 3.0\n")
    function = function_of(
        "import neighbour\n"
        "def score(day, raw):\n    return [d.year + len(b) + neighbour.VALUE for d, b in zip(day, raw)]\n"
    )
    assert function.start().names == ["day", "raw"]
    assert function.call({"day": [date(2020, 1, 1)], "raw": [b"abc"]}, 1) == [2026]


def test_columns_that_cannot_be_sent_are_named(function_of: Any) -> None:
    function = function_of("def score(odd):\n    return [1.0 for _ in odd]\n")
    with pytest.raises(CallFailed, match="cannot be given the columns"):
        function.call({"odd": [lambda: 0]}, 1)


def test_a_file_that_changes_under_a_run_is_not_used(function_of: Any, tmp_path: Path) -> None:
    source = "import os\ndef score(r):\n    return [os._exit(1) if one == 'die' else 1.0 for one in r]\n"
    function = function_of(source)
    assert function.call({"r": ["a"]}, 1) == [1]
    (tmp_path / "my_reward.py").write_text(source.replace("1.0", "2.0"))
    assert function.call({"r": ["a"]}, 1) == [1], "the process goes on as it began"
    with pytest.raises(CallFailed):
        function.call({"r": ["die"]}, 1)
    with pytest.raises(FunctionUnusable, match="has changed since the run began"):
        function.call({"r": ["a"]}, 1)


def test_a_log_is_kept_small_and_may_go(
    function_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_MAX_LOG_BYTES", 10_000)
    function = function_of("def score(r):\n    print('x' * 8_000)\n    return [1.0]\n")
    for _ in range(10):
        assert function.call({"r": ["a"]}, 1) == [1]
    assert (tmp_path / "log.txt").stat().st_size < 30_000
    (tmp_path / "log.txt").unlink()
    assert function.call({"r": ["a"]}, 1) == [1]


def test_the_process_ends_with_the_trainer(tmp_path: Path) -> None:
    """Also if the trainer is killed."""
    (tmp_path / "my_reward.py").write_text("import os\ndef score(r):\n    return [float(os.getpid())]\n")
    trainer = subprocess.Popen(
        [sys.executable, "-c", "import time\nfrom nemo_prorl.config import RewardConfig\n"
         "from nemo_prorl.reward_sources.functions.process import FunctionProcess\n"
         f"f = FunctionProcess({str(tmp_path / 'my_reward.py:score')!r}, RewardConfig(), None)\n"
         "print(int(f.call({'r': ['a']}, 1)[0]), flush=True)\ntime.sleep(600)"],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert trainer.stdout is not None
    pid = int(trainer.stdout.readline())
    assert alive([pid])
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    assert wait_until(lambda: not alive([pid]), WAIT_S)


def test_a_function_does_not_take_itself_for_a_rank_of_the_job(
    function_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("RANKING", "1")
    function = function_of(
        "import os\ndef score(names):\n    return [name in os.environ for name in names]\n"
    )
    assert function.call({"names": ["RANK", "RANKING"]}, 2) == [0, 1]
    job = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SLURM_PROCID"]
    users = {"PATH", "VLLM_CACHE_ROOT", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "RANKING"}
    hidden = hidden_variables({**ALWAYS, **CPU_ONLY, **dict.fromkeys([*job, *users], "1")})
    assert set(job) <= set(hidden)
    assert not users & set(hidden)
    assert {name for name in {**ALWAYS, **CPU_ONLY} if re.match("TORCH|VLLM", name)} <= set(hidden)
