"""Tests of the checks before a run: options, files, functions and their parameters, and that all ranks have the same
functions."""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemo_prorl.commands import parsing
from nemo_prorl.config import (
    ConfigError,
    DataBuildConfig,
    DataConfig,
    ExpManagerConfig,
    RewardConfig,
    RunConfig,
    TrainerConfig,
)
from nemo_prorl.config.compose import compose
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.distributed import Layout, Ranks
from nemo_prorl.reward_sources.functions.check import (
    agreed_digests,
    check_functions,
    columns_of,
    digest,
    try_functions,
    what_changed,
)
from nemo_prorl.types import Prompt
from tests.conftest import ROOT
from tests.reward_sources.functions.asking import a_prompt

ROW = Row(
    uid="a",
    domain="haiku",
    source="here",
    split="train",
    messages=({"role": "user", "content": "Write one."},),
    task={},
)


def checked(tmp_path: Path, source: str, name: str = "score", **options: object) -> None:
    file, data = tmp_path / "my_reward.py", tmp_path / "train.parquet"
    file.write_text(source)
    write_rows(data, [ROW])
    reward = RewardConfig(function=[f"{file}:{name}"], **options)  # type: ignore[arg-type]
    check_functions(reward, columns_of([str(data)]))


@pytest.mark.parametrize(
    "source",
    [
        "def score(responses): ...",
        "def score(prompts, completions, **kwargs): ...",
        "def score(*, final_texts, uid, task, messages, difficulty=None): ...",
        "async def score(responses, **columns): ...",
        "score = lambda responses: [0.0 for _ in responses]",
        "class Judge:\n    def __call__(self, responses): ...\nscore = Judge()",
        "import functools\ndef f(weight, responses): ...\nscore = functools.partial(f, 2.0)",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef score(responses): ...",
    ],
)
def test_what_can_be_called_is_accepted(tmp_path: Path, source: str) -> None:
    checked(tmp_path, source)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def other(responses): ...", "the file has no score; its functions are other"),
        ("", "the file has no score; its functions are none"),
        ("score = 3", "score is of type int, and not a function"),
        ("class score: ...", "score is of type type, and not a function"),
        ("def score(responses:\n    pass", "cannot be imported: SyntaxError: .*line 1"),
        ("import nowhere", "cannot be imported: ModuleNotFoundError: No module named 'nowhere' .my_reward.py, line 1"),
        ("X = 1\nraise SystemExit(0)", "cannot be imported: SystemExit: 0 .my_reward.py, line 2"),
        ("import os\nos._exit(0)", "the process that imports it ended by itself, with exit code 0"),
        ("import os\nos.kill(os.getpid(), 11)", "the process that imports it died of signal 11"),
        ("def score(prompts): ...", "no parameter for what it is to grade: give it one that is named responses"),
        ("def score(): ...", "no parameter for what it is to grade"),
        ("def score(responses, gold): ...", "has a parameter gold, and .*train.parquet has no such column"),
        ("def score(responses, /): ...", "no parameter for what it is to grade"),
        ("score = print", "no parameter for what it is to grade"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_one_sentence(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path, source)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith(f"reward.function={tmp_path}/my_reward.py:score ")
    assert re.search(said, sentence), sentence


@pytest.mark.medium
def test_an_import_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"took longer than 0.5 s"):
        checked(tmp_path, "while True: pass", ready_timeout_s=0.5)


def tried(tmp_path: Path, source: str, *prompts: Prompt, **options: object) -> str:
    file = tmp_path / "my_reward.py"
    file.write_text(source)
    reward = RewardConfig(function=[f"{file}:score"], **options)  # type: ignore[arg-type]
    (sentence,) = try_functions(reward, prompts or [a_prompt(number) for number in range(9)])
    assert "\n" not in sentence
    return sentence


RIGHT = """
def score(final_texts, task, **columns):
    print(f"called with {len(final_texts)}", flush=True)
    return [float(answer == "\\\\boxed{%s}" % row["answer"]) for answer, row in zip(final_texts, task)]
"""


@pytest.mark.medium
def test_a_function_is_called_once_with_right_answers_in_three_forms(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that knows a single form, such as boxes, can be told from one that knows none."""
    said = tried(tmp_path, RIGHT)
    assert (
        "my_reward.py:score, called with made-up responses to 4 prompt(s), returned 0, 0, 0, 0 for responses such as "
        "'0', and 1, 1, 1, 1 for responses such as '\\\\boxed{0}', and 0, 0, 0, 0 for responses such as "
        "'<answer>0</answer>' after " in said
    )
    assert said.endswith(" s."), "no hint"
    assert capfd.readouterr().err.count("called with 12") == 1
    exact = "def score(responses, task): return [r == t['answer'] for r, t in zip(responses, task)]"
    assert "returned 1, 1, 1, 1 for responses such as '0', and 0, 0, 0, 0 for" in tried(tmp_path, exact)
    thinking = [
        dataclasses.replace(a_prompt(number), opens_thought=True, begun="So. ") for number in range(2)
    ]
    found = tried(tmp_path, RIGHT, *thinking)
    assert r"and 1, 1 for responses such as 'So. Easy.\n</think>\n\n\\boxed{0}', and 0, 0 for" in found
    others = [a_prompt(0), a_prompt(1, level=3)]
    assert "1 prompt(s), returned 0 for" in tried(tmp_path, RIGHT, *others), "a call has rows of one kind"


@pytest.mark.medium
def test_answers_that_are_numbers_of_puzzles_or_unknown_are_tried_too(tmp_path: Path) -> None:
    source = "def score(final_texts):\n    return [len(answer) for answer in final_texts]"
    prompts = [a_prompt(task={}), a_prompt(task={"answer": 7.5}), a_prompt(task={"entry": {"answer": "up"}})]
    said = tried(tmp_path, source, *prompts)
    assert "3 prompt(s), returned 14, 3, 2 for responses such as 'I do not know.', and 11, 19 for" in said
    pays = "def score(responses): return [1] * len(responses)"
    assert tried(tmp_path, pays, a_prompt(task={})).endswith(
        "These answer nothing: look why it pays for them."
    )


@pytest.mark.medium
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def score(responses): return [0] * len(responses)",
         "returned 0, 0, 0, 0 for .* and 0, 0, 0, 0 for .* the right answers: look"),
        ("def score(responses): return [None, *range(1, 12)]",
         r"returned nothing \(returned None for a response\), 1, 2, 3 for .* and 4, 5, 6, 7 for"),
        ("import socket\ndef score(responses): socket.create_connection(('127.0.0.1', 1), 1)",
         "raised ConnectionRefusedError: .* a server that it asks does not answer from here"),
        ("def score(responses):\n    try: open_socket = 1 / 0\n"
         "    except ZeroDivisionError as error: raise RuntimeError('no judge') from TimeoutError()",
         "raised RuntimeError: no judge .* does not answer from here"),
    ],
)  # fmt: skip
def test_what_a_call_returned_is_said(tmp_path: Path, source: str, said: str) -> None:
    assert re.search(said, tried(tmp_path, source))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def score(responses, task): return [row['gold'] for row in task]",
         r"raised KeyError: 'gold' \(my_reward.py, line 1\): correct it"),
        ("def score(responses): open('/no/such/file')", "raised FileNotFoundError"),
        ("import time\ndef score(responses): time.sleep(60)", "took longer than 0.5 s: .*reward.function_timeout_s"),
    ],
)  # fmt: skip
def test_a_call_that_fails_is_a_mistake(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tried(tmp_path, source, function_timeout_s=0.5)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.py:score cannot be used: there is no such file"):
        check_functions(RewardConfig(function=[f"{tmp_path}/nowhere.py:score"]), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"function": ["my_reward.py"]}, "my_reward.py is not of the form FILE.py:NAME"),
        ({"function": ["my_reward:score"]}, "is not of the form FILE.py:NAME"),
        ({"function": ["my_reward.py:1st"]}, "is not of the form"),
        ({"function": [":score"]}, "is not of the form"),
        ({"function": ["a.py:score", "b.py:score"]}, "names two functions score"),
        ({"function": ["a.py:service"]}, "names a function service"),
        ({"weights": {"score": 1.0}}, "reward.weights.score names no function; reward.function is empty"),
        (
            {"function": ["a.py:score"], "weights": {"scroe": 1.0}},
            "reward.weights.scroe names no function; the names are score and service.",
        ),
        ({"function": ["a.py:score"], "weights": {"score": 0.0}}, "every weight in reward.weights is 0"),
        ({"function": ["a.py:score"], "weights": {"score": 0.0, "service": 0.0}}, "every weight"),
        ({"function_batch": 0}, "reward.function_batch"),
        ({"function_timeout_s": 0.0}, "reward.function_timeout_s"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        RewardConfig(**options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_service_is_asked_where_there_is_no_function_or_it_has_a_weight() -> None:
    function = ["a.py:score"]
    assert RewardConfig().asks_service
    assert not RewardConfig(function=function).asks_service
    assert RewardConfig(function=function, weights={"service": 0.0}).asks_service


@pytest.mark.parametrize("option", ["function_timeout_s", "ready_timeout_s"])
def test_a_slow_function_is_no_hang(option: str) -> None:
    """A call that takes too long ends the process, which must be started again before anything else is known."""
    reward = RewardConfig(function=["a.py:score"], **{option: 900.0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"hang_timeout_s=1800 .*\(ready_timeout_s, function_timeout_s\)"):
        RunConfig(reward=reward)
    RunConfig(reward=reward, trainer=TrainerConfig(hang_timeout_s=0))


def test_only_what_is_graded_must_have_the_columns(tmp_path: Path) -> None:
    """`evaluate data=FILE` never reads data.train, and a benchmark has no columns but the documented ones."""
    file, train, given = tmp_path / "my_reward.py", tmp_path / "train.parquet", tmp_path / "given.parquet"
    file.write_text("def score(responses, gold): ...\n")
    write_rows(train, [ROW])
    write_rows(given, [ROW])
    table = pq.read_table(given)
    pq.write_table(table.append_column("gold", [["4"]]), given)
    reward = RewardConfig(function=[f"{file}:score"])
    parsing.check_functions(RunConfig(reward=reward, data=DataConfig(validation=[str(given)])))
    both = RunConfig(reward=reward, data=DataConfig(train={str(train): 1.0}, validation=[str(given)]))
    with pytest.raises(ConfigError, match=r"parameter gold, and .*train\.parquet has no such column"):
        parsing.check_functions(both)
    with pytest.raises(ConfigError, match=r"parameter gold, and a benchmark has no such column"):
        parsing.check_functions(both, of_benchmarks=True)


def test_a_function_gets_the_columns_of_a_file_in_another_layout(tmp_path: Path) -> None:
    """The file is converted first, and keeps its own columns."""
    file, problems = tmp_path / "my_reward.py", tmp_path / "problems.jsonl"
    file.write_text("def score(responses, gold, prompt): ...\n")
    problems.write_text('{"prompt": "1 + 1?", "gold": [2, "two"]}\n')
    config = RunConfig(
        reward=RewardConfig(function=[f"{file}:score"]),
        data=DataConfig(train={str(problems): 1.0}),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )
    parsing.check_functions(config)


def test_data_build_has_no_use_for_functions() -> None:
    with pytest.raises(ConfigError, match="leave it out"):
        DataBuildConfig(reward=RewardConfig(function=["a.py:score"]))


@pytest.mark.parametrize("given", ["a.py:score", "[a.py:score]"])
def test_one_function_needs_no_brackets(given: str) -> None:
    config = compose(
        "train", [f"reward.function={given}", "reward.weights.score=0.5"], conf_dir=ROOT / "conf"
    )
    assert config.reward.function == ["a.py:score"]
    assert config.reward.weight("score") == 0.5


def test_the_command_says_it_before_anything_heavy(tmp_path: Path) -> None:
    """Exit code 2, with the user's traceback and one sentence after it."""
    file = tmp_path / "my_reward.py"
    file.write_text("GOLD = {}['gold']\n")
    command = [sys.executable, "-c", "from nemo_prorl.commands.parsing import check_functions as c\n"
               "from nemo_prorl.config import *\nimport sys\n"
               f"try: c(RunConfig(reward=RewardConfig(function=['{file}:score'])))\n"
               "except ConfigError as error: print(error)\n"
               "assert 'torch' not in sys.modules"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "GOLD = {}['gold']" in done.stderr
    assert "cannot be imported: KeyError: 'gold' (my_reward.py, line 1)" in done.stdout
    assert "AssertionError" not in done.stderr


def two_ranks(other: Callable[[Any], Any]) -> Ranks:
    """Returns rank 0 of two ranks; `other` makes what the other one sends of what this one does."""

    class Scripted(Ranks):
        def gather(self, value: Any) -> list[Any]:
            return [value, other(value)]

    return Scripted(layout=Layout(rank=0, world_size=2, tensor_parallel=1, pipeline_parallel=1))


def test_every_machine_has_the_same_file_or_is_named_on_every_rank(tmp_path: Path) -> None:
    text = f"{tmp_path}/f.py:score"
    (tmp_path / "f.py").write_text("def score(responses): ...\n")
    config = RewardConfig(function=[text])
    assert agreed_digests(config, two_ranks(lambda mine: mine)) == {text: digest(text)}
    ranks = two_ranks(lambda mine: mine and ("node7", dict.fromkeys(mine[1], "0" * 64)))
    with pytest.raises(ConfigError, match=r"f\.py:score is another file on node7 than on"):
        agreed_digests(config, ranks)
    with pytest.raises(ConfigError, match=f"cannot be read on {re.escape(platform.node())}"):
        agreed_digests(RewardConfig(function=[f"{tmp_path}/nowhere.py:score"]), two_ranks(lambda mine: mine))
    lacking = two_ranks(lambda mine: ConfigError("f.py:score cannot be read on node7"))
    with pytest.raises(ConfigError, match="cannot be read on node7"):
        agreed_digests(config, lacking)


def test_a_change_is_one_sentence_and_nothing_known_is_none() -> None:
    before, now = {"a.py:f": "weight 1, file 12"}, {"a.py:f": "weight 1, file 34", "service": "weight 2"}
    assert what_changed(before, before) == what_changed({}, now) == ""
    assert what_changed(before, now) == (
        "the reward has changed since the last checkpoint: it was a.py:f (weight 1, file 12), and is now "
        "a.py:f (weight 1, file 34) + service (weight 2)"
    )


def test_the_rewards_of_the_pages_pay_the_right_answer_alone() -> None:
    """README.md's, and that of docs/custom_rewards.md, which is examples/my_reward.py."""
    pages = {"score": "README.md", "right": "docs/custom_rewards.md"}
    blocks = {name: (ROOT / page).read_text().split("```python\n") for name, page in pages.items()}
    space: dict[str, Any] = {}
    for name, texts in blocks.items():
        exec(next(text for text in texts if f"def {name}(" in text).split("```")[0], space)
    responses = [
        r"It is \boxed{400000}",
        r"\boxed{4000}",
        r"\boxed{4000} or \boxed{4001}",
        "4000",
        r"\boxed{4000}",
        "",
    ]
    answers = ["4000", "4000", "4000", "4001", 4000, "4000"]
    assert space["score"](responses=responses, answer=answers, uid=[]) == [0, 1, 0, 0, 1, 0]
    tasks = [{"answer": answer} for answer in answers]
    assert space["right"](final_texts=responses, task=tasks, uid=[]) == [0, 1, 0, 0, 1, 0]
    entries = [{"entry": {"answer": "3 4"}}, {"answer": 0}, {"answer": "none"}, {"answer": "4"}]
    assert space["right"](final_texts=["1, 3, 4", "0", "no", None], task=entries) == [1, 1, 0, 0]
