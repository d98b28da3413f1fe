"""Tests of each schema with small files in the publisher's format."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.source import NoRow, Record
from nemo_prorl.data.sources import llama_nemotron_if
from nemo_prorl.evaluation import prompts
from nemo_prorl.evaluation.catalogue import BENCHMARKS, CATEGORIES, TABLES, get
from nemo_prorl.evaluation.schemas import answers, human_eval, instructions, programs, puzzles


def record(**values: Any) -> Record:
    return Record(values=values, split="test", origin="file:0")


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({"problem": "q", "answer": "204"}, "204"),
        ({"question": "q", "answer": 27.0}, "27"),
        ({"problem": "q", "answer": 7}, "7"),
        ({"problem": "q", "solution": "so \\boxed{1} or \\boxed{\\frac{1}{2}}."}, "\\frac{1}{2}"),
        ({"question": "q", "final_answer": ["$2$", "$-1$"], "solution": ["..."]}, "2, -1"),
        ({"question": "q", "final_answer": "['$2$', '$-1$']"}, "2, -1"),
        ({"question": "q", "final_answer": "['$2$' '$-1$']"}, "2, -1"),
        ({"question": "q", "final_answer": r"""["$\\frac{1}{2}$", '$it\'s$']"""}, r"\frac{1}{2}, it's"),
        ({"question": "q", "answer": "[1, 2]"}, "[1, 2]"),
        ({"question": "q", "answer": "['"}, "['"),
    ],
)
def test_questions_with_answers(values: dict[str, Any], answer: str) -> None:
    assert answers.convert(record(**values)).task == {"answer": answer}


def test_a_context_comes_before_the_question() -> None:
    assert answers.convert(record(question="q", final_answer=["1"], context="c")).question == "c\n\nq"


def test_an_unknown_schema_is_a_sentence_and_a_missing_answer_a_dropped_row() -> None:
    with pytest.raises(ConfigError, match="has no question"):
        answers.convert(record(text="q"))
    with pytest.raises(ConfigError, match="has no answer"):
        answers.convert(record(problem="q"))
    with pytest.raises(NoRow):
        answers.convert(record(problem="q", solution="no box"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "no_answer"),
        (float("nan"), "no_answer"),
        (float("inf"), "no_answer"),
        ("nan", "no_answer"),
        (["1", float("nan")], "no_answer"),
        ([], "no_answer"),
        (True, "answer_not_text"),
        ({"value": 1}, "answer_not_text"),
    ],
)
def test_what_is_no_answer_is_a_dropped_row(answer: Any, why: str) -> None:
    with pytest.raises(NoRow, match=why):
        answers.convert(record(problem="q", answer=answer))


def gpqa(**changes: Any) -> Record:
    wrong = {f"Incorrect Answer {n}": f"w{n}" for n in (1, 2, 3)}
    return record(**{"Question": "why?", "Correct Answer": "right", **wrong, **changes})


def test_options_stand_in_an_order_that_does_not_give_the_answer_away() -> None:
    letters = {answers.choices(gpqa(Question=f"why {n}?")).task["answer"] for n in range(40)}
    assert letters == set("ABCD")
    problem = answers.choices(gpqa())
    assert f"{problem.task['answer']}. right" in problem.question
    assert problem == answers.choices(gpqa()), "the order is a function of the question"
    with pytest.raises(NoRow, match="no_option"):
        answers.choices(gpqa(**{"Incorrect Answer 2": None}))


OPTIONS = ["left", "right", "up"]


@pytest.mark.parametrize(
    ("question", "answer"), [("Which?", 2), ("Which?", "B"), ("Which? A. left B. right C. up", 1)]
)
def test_options_that_would_not_be_asked_are_refused(question: str, answer: Any) -> None:
    with pytest.raises(ConfigError, match=r"^file:0 has its options in choices, which are not asked"):
        answers.choices(record(question=question, choices=OPTIONS, answer=answer))


def test_options_that_the_question_lists_are_asked() -> None:
    given = record(question="Which? A. left B. right C. up", choices=OPTIONS, answer="B")
    assert answers.choices(given).task == {"answer": "B"}
    assert answers.choices(record(question="Which?", options=None, answer="B")).task == {"answer": "B"}


TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}


PAIRS = [{"input": "1\n", "output": "2\n"}]


@pytest.mark.parametrize("given", [TESTS, json.dumps(TESTS), PAIRS, json.dumps(PAIRS)])
def test_tests_in_every_form(given: Any) -> None:
    assert programs.tests(given) == TESTS
    function = {"fn_name": "f", "inputs": [[[1, [2]], "a"]], "outputs": [[3]]}
    assert programs.tests(function) == function, "arguments may be of any kind"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{", "tests_not_json"),
        ("[" * 100_000, "tests_not_json"),
        ("[]", "no_tests"),
        ({}, "no_tests"),
        ({"inputs": [], "outputs": []}, "no_tests"),
        (3, "no_tests"),
        ([{"input": "1", "output": "2"}, {"input": "3"}], "tests_without_input_or_output"),
        (["1", "2"], "tests_without_input_or_output"),
        ({"inputs": "12", "outputs": "34"}, "tests_not_in_pairs"),
        ({"inputs": ["1", "2"], "outputs": ["3"]}, "tests_not_in_pairs"),
        ({**TESTS, "fn_name": ["f"]}, "no_function_name"),
    ],
)
def test_no_tests(given: Any, why: str) -> None:
    with pytest.raises(NoRow, match=why):
        programs.tests(given)


def livecodebench(private: Any, **changes: Any) -> Record:
    values = {
        "question_content": "add",
        "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
        "private_test_cases": private,
        "starter_code": "",
        "metadata": '{"func_name": "add"}',
        **changes,
    }
    return record(**values)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('a pickle of a benchmark was run')",))


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


STDIN = [{"input": "1", "output": "2", "testtype": "stdin"}]
FUNCTIONAL = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
PRIVATE = [{"input": "3", "output": "4", "testtype": "stdin"}]
BOTH = {"inputs": ["1", "3"], "outputs": ["2", "4"]}
PUBLIC = {"inputs": ["1"], "outputs": ["2"]}


@pytest.mark.parametrize(
    ("private", "changes", "task"),
    [
        (json.dumps(PRIVATE), {}, BOTH),
        (packed(json.dumps(PRIVATE)), {}, BOTH),
        (PRIVATE, {}, BOTH),
        ("[]", {"public_test_cases": STDIN}, PUBLIC),
        (STDIN, {"public_test_cases": []}, PUBLIC),
        (STDIN, {"public_test_cases": None}, PUBLIC),
        *(
            (
                "[]",
                {"public_test_cases": FUNCTIONAL, "metadata": metadata},
                {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"},
            )
            for metadata in ('{"func_name": "add"}', {"func_name": "add"})
        ),
    ],
)
def test_livecodebench_in_every_form(private: Any, changes: dict[str, Any], task: dict[str, Any]) -> None:
    assert programs.convert(livecodebench(private, **changes)).task == task


@pytest.mark.parametrize("metadata", [None, "", "{}", {}, {"func_name": None}, {"func_name": 3}])
def test_a_function_without_a_name_cannot_be_called(metadata: Any) -> None:
    with pytest.raises(NoRow, match="no_function_name"):
        programs.convert(livecodebench("[]", public_test_cases=FUNCTIONAL, metadata=metadata))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"public_test_cases": '[{"input": "1"'}, "file:0: the column public_test_cases is not JSON"),
        ({"public_test_cases": '{"input": "1"}'}, "file:0: the column public_test_cases is no list"),
        ({"public_test_cases": 3}, "file:0: the column public_test_cases is no list"),
        ({"public_test_cases": FUNCTIONAL, "metadata": "add"}, "file:0: the column metadata is not JSON"),
        ({"public_test_cases": FUNCTIONAL, "metadata": [1]}, "file:0: the column metadata is no object"),
    ],
)
def test_a_damaged_record_names_file_row_and_column(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        programs.convert(livecodebench("[]", **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "private", ["{", '{"a": 1}', "12", "QUJD", packed(3), packed('{"a": 1}'), packed(Bomb()), {"a": 1}, 3]
)
def test_private_tests_that_cannot_be_read_are_a_dropped_row(private: Any) -> None:
    """A pickle that would run something is not run."""
    with pytest.raises(NoRow, match="private_tests_not_readable"):
        programs.convert(livecodebench(private))


def test_one_file_of_prime_holds_all_four_sets(tmp_path: Path) -> None:
    lines = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"{source} problem"}],
            "ability": "code",
            "reward_model": {"ground_truth": json.dumps(TESTS)},
        }
        for source in ("apps", "codecontests", "codeforces", "taco", "numina")
    ]
    folder = tmp_path / "Eurus-2-RL-Data"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(lines), folder / "validation.parquet")
    names = ["apps", "codecontests", "codeforces", "taco"]
    loaded, missing = prompts.load([get(name) for name in names], tmp_path)
    assert missing == []
    assert [len(one.rows) for one in loaded] == [1, 1, 1, 1]
    assert all(one.benchmark.name in one.rows[0].messages[0]["content"] for one in loaded)
    assert all(one.notes == () for one in loaded), "records of other sets are no loss"


PLUS = """
import numpy as np

def assertion(out, exp, atol): ...

def check(candidate):
    inputs = {inputs}
    results = {results}
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, {tolerance})
"""


def checked(*statements: str) -> Record:
    """Returns a problem of HumanEval whose test has these statements."""
    body = "\n".join(f"    {statement}" for statement in ("assert True, 'a note'", *statements, "print"))
    test = f"METADATA = {{}}\n\n\ndef check(candidate):\n{body}\n"
    return record(prompt="def f(n):\n", entry_point="f", test=test, canonical_solution="    return n\n")


def test_human_eval_asks_for_the_function() -> None:
    problem = human_eval.convert(checked("assert candidate(1) == 2"))
    assert problem.question == "Complete this Python function:\n```python\ndef f(n):\n```"
    assert problem.gold == "```python\ndef f(n):\n    return n\n\n```"
    assert problem.task == {"inputs": ["1"], "outputs": ["2"], "fn_name": "f"}


@pytest.mark.parametrize(
    ("statement", "given", "result"),
    [
        ("assert candidate([1, 2], 'a\\n', None) == (1, 2.5), 'a note'", '[1, 2]\n"a\\n"\nnull', "[1, 2.5]"),
        ("assert candidate() == {'a': [True]}", "", '{"a": [true]}'),
        ("assert candidate(-1) is False", "-1", "false"),
        ("assert candidate('x')", '"x"', "true"),
        ("assert not candidate('x')", '"x"', "false"),
        ("assert abs(candidate(3.5) - 1.0 / 2.0) < 1e-6", "3.5", "0.5"),
        ("assert candidate(3 * 19 * 3, 'a' + 'b', 0 ** 0) == [2 - 1]", '171\n"ab"\n1', "[1]"),
    ],
)
def test_a_literal_assertion_is_arguments_and_a_result(statement: str, given: str, result: str) -> None:
    task = human_eval.convert(checked(statement)).task
    assert (task["inputs"], task["outputs"]) == ([given], [result])


def test_human_eval_plus_has_lists_of_arguments_and_results() -> None:
    test = PLUS.format(inputs=[[1, "a"], [(2,), "b"]], results=[None, (0.5,)], tolerance="1e-06")
    task = human_eval.convert(record(prompt="", entry_point="f", test=test)).task
    assert (task["inputs"], task["outputs"]) == (['1\n"a"', '[2]\n"b"'], ["null", "[0.5]"])


@pytest.mark.parametrize(
    "statement",
    [
        "assert candidate(n) == 2",
        "assert candidate(*[1]) == 2",
        "assert candidate(n=1) == 2",
        "assert candidate(1) != 2",
        "assert candidate(1) == other(1)",
        "assert candidate(candidate(1)) == 1",
        "assert 1 < candidate(1) == 2",
        "assert sorted(candidate(1)) == [2]",
        "assert abs(candidate(1) - 2.0) < 0.5",
        "assert other(1)",
        "for x in range(3): assert candidate(x) == x",
        "candidate(1)",
        "import random",
        "assert candidate({1, 2}) == 1",
        "assert candidate({5: 1}) == 1",
        "assert candidate({'5': 1}) == 1",
        "assert candidate(1e999) == 1",
        "assert candidate(9 ** 9 ** 9) == 1",
        "assert candidate(1 / 0) == 1",
        "assert candidate(1 + 'a') == 1",
        "assert candidate(" + "-" * 5_000 + "1) == 1",
    ],
)
def test_one_check_that_is_not_literal_drops_the_problem_and_is_counted(statement: str) -> None:
    """The literal one alone would pass wrong programs."""
    whole = checked("assert candidate(1) == 2")
    found = get("humaneval").problems([whole, checked("assert candidate(1) == 2", statement)])
    assert found.notes == ("1 make no problem (tests_not_literal, such as file:0)",)
    (row,) = found.rows
    assert row.task == {"inputs": ["1"], "outputs": ["2"], "fn_name": "f", "cpu_s": 3.0}, "with OpenAI's time"


@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):",
        "assert f(1) == 2",
        "def check(candidate):\n    pass",
        PLUS.format(inputs=[[1]], results=[1, 2], tolerance=0),
        PLUS.format(inputs=[1], results=[1], tolerance=0),
        PLUS.format(inputs="[[1]]", results="[{1}]", tolerance=0),
        PLUS.replace("exp, {tol", "ref_func(*inp), {tol").format(inputs=[[1]], results=[1], tolerance=0),
    ],
)
def test_other_test_programs_are_dropped(test: str) -> None:
    with pytest.raises(NoRow, match=r"tests_not_literal|no_tests"):
        human_eval.convert(record(prompt="", entry_point="f", test=test))


@pytest.mark.parametrize(
    ("convert", "values"),
    [
        (human_eval.convert, {"prompt": None, "entry_point": "f", "test": "def check(candidate): ..."}),
        (instructions.convert, {"prompt": "p", "instruction_id_list": ["a"], "kwargs": None}),
        (puzzles.row, {"messages": [{"role": "user", "content": "p"}], "task": {}}),
        (programs.convert, {"ability": "code", "data_source": "a", "prompt": [None], "reward_model": "{}"}),
    ],
)
def test_values_of_another_type_are_dropped_rows(
    convert: Callable[[Record], object], values: dict[str, Any]
) -> None:
    with pytest.raises(NoRow):
        convert(record(**values))


@pytest.mark.parametrize(
    ("convert", "values"),
    [
        (instructions.convert, {"prompt": "p", "instruction_id_list": "{", "kwargs": []}),
        (puzzles.row, {"messages": "[", "task": "{}"}),
        (puzzles.row, {"messages": [], "task": "{"}),
        (programs.convert, {"ability": "code", "data_source": "a", "prompt": "p", "reward_model": "{"}),
        (programs.convert, {"reward_model": {}}),
        (
            llama_nemotron_if.convert,
            {"input": "p", "args": '{"instruction_id_list": ["a"], "instruction_kwargs": [{}'},
        ),
    ],
)
def test_damaged_json_names_file_and_row(convert: Callable[[Record], object], values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^file:0"):
        convert(record(**values))


def test_ifeval_drops_nulls_only() -> None:
    kwargs = [{"num_words": 0, "relation": None}, None]
    problem = instructions.convert(record(prompt="p", instruction_id_list=["a", "b"], kwargs=kwargs))
    assert problem.task["kwargs"] == [{"num_words": 0}, {}]
    assert problem.question + problem.suffix == "p", "nothing about format is added"


@pytest.mark.medium
def test_graphs_grow_and_are_the_same_every_time() -> None:
    first, again = (
        get("graph_color_sizes").problems(puzzles.graphs()).rows,
        get("graph_color_sizes").problems(puzzles.graphs()).rows,
    )
    assert first == again
    assert len(first) == get("graph_color_sizes").num_problems
    assert {row.task["credit"] for row in first} == {"corrected"}
    sizes = {row.source: len(row.task["entry"]["metadata"]["puzzle"]["vertices"]) for row in first}
    assert sizes == {f"graph_color_sizes/{size}_vertices": size for size in puzzles.GRAPH_SIZES}


def test_every_puzzle_of_the_paper_has_a_category_of_its_table() -> None:
    from nemo_prorl.data.sources.reasoning_gym import tasks

    assert {puzzles.category(task) for task in tasks()} == set(CATEGORIES)


def test_missing_files_are_named_and_the_rest_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "aime24.jsonl").write_text('{"problem": "q", "answer": "1"}\n')
    loaded, missing = prompts.load([get("aime24"), get("ifeval")], tmp_path)
    assert [(one.benchmark.name, len(one.rows)) for one in loaded] == [("aime2024", 1)]
    assert [benchmark.name for benchmark in missing] == ["ifeval"]


def test_the_catalogue_is_complete() -> None:
    for benchmark in BENCHMARKS.values():
        assert benchmark.files or benchmark.generate, benchmark.name
        assert benchmark.where
        assert benchmark.licence
        assert bool(benchmark.num_problems) == bool(benchmark.counted_by), benchmark.name
    for _, benchmarks in TABLES:
        assert all(len(benchmark.published) >= 3 for benchmark in benchmarks)
    with pytest.raises(ConfigError, match="did you mean ifeval"):
        get("ifevl")


def test_the_papers_averages_come_out_of_the_papers_numbers() -> None:
    """Compares with the Avg columns of the paper's tables 1 and 2, whose rows were typed by hand."""
    expected = {"Math": (44.45, 63.19, 60.14), "Code": (23.08, 41.39, 37.49)}
    for title, benchmarks in TABLES[:2]:
        for model, average in zip(
            (
                "DeepSeek-R1-Distill-Qwen-1.5B",
                "DeepSeek-R1-Distill-Qwen-7B",
                "Nemotron-Research-Reasoning-Qwen-1.5B",
            ),
            expected[title],
            strict=True,
        ):
            numbers = [benchmark.published[model] for benchmark in benchmarks]
            assert sum(numbers) / len(numbers) == pytest.approx(average, abs=0.011)
