import json
from typing import Any

import pytest

from reward.graders.code.code_tests import limits_of, same_output, same_result
from reward.graders.code.code_tests import tests_of as read_tests
from reward.graders.grade import InvalidTask
from reward.sandbox.limits import CPU_S, MAX_CPU_S, ProgramLimits
from tests.reward.serving import rows


@pytest.mark.parametrize(
    "row", rows("code_results.jsonl"), ids=lambda row: f"{row['form']}-{row['expected']}"[:40]
)
def test_what_is_the_same_output_or_result(row: dict[str, Any]) -> None:
    """Standard output is compared as text, and what a function returned as a value."""
    compare = {"output": same_output, "result": same_result}[row["form"]]
    assert compare(row["given"], row["expected"]) is row["same"]


@pytest.mark.medium
def test_deep_results_do_not_break_the_judge() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert not same_result(deep, [1])


def test_bytes_that_are_no_text_or_no_json_are_wrong() -> None:
    stdin = read_tests({"inputs": ["1"], "outputs": ["1"]})
    assert not stdin.passes(0, b"\xff\xfe")
    function = read_tests({"inputs": ["1"], "outputs": ["1"], "fn_name": "f"})
    assert function.passes(0, b"1")
    for output in (b"NaN", b"Infinity", b"", b"1 1", b"[" * 200_000, b"9" * 10_000):
        assert not function.passes(0, output)


def test_forms_of_inputs_and_outputs() -> None:
    tests = read_tests({"inputs": [["1", "2"], "3\n"], "outputs": [["4"], 5]})
    assert tests.inputs == ("1\n2", "3\n")
    assert tests.expected == ("4", "5")
    tests = read_tests({"inputs": [[1, [2]], '"a"\n{"1": 2}'], "outputs": ["[3]", {"4": 5}], "fn_name": "f"})
    assert tests.inputs == ("1\n[2]", '"a"\n{"1": 2}')
    assert tests.expected == ([3], {"4": 5})
    for text in ("{[]: 1}", "(" * 1000, "yes"):  # neither JSON nor Python data
        assert read_tests({"inputs": ["1"], "outputs": [text], "fn_name": "f"}).expected == (text,)


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"inputs": [], "outputs": []},
        {"inputs": ["1"], "outputs": []},
        {"inputs": "1", "outputs": "1"},
        {"inputs": [None], "outputs": ["1"]},
        {"inputs": ["1"], "outputs": ["1"], "fn_name": "f; import os"},
        {"inputs": ["1"], "outputs": ["1"], "fn_name": "class"},
        {"inputs": ["not json"], "outputs": ["1"], "fn_name": "f"},
        {"inputs": [5], "outputs": ["1"], "fn_name": "f"},
        {"inputs": ["1"] * 2001, "outputs": ["1"] * 2001},
    ],
)
def test_broken_tasks_are_invalid(task: dict[str, object]) -> None:
    with pytest.raises(InvalidTask):
        read_tests(json.loads(json.dumps(task)))


def test_a_task_of_the_old_form_is_told_what_to_write() -> None:
    with pytest.raises(InvalidTask, match=r'a "test_program" is not run: write the arguments and results'):
        read_tests({"test_program": "def check(candidate): ...", "entry_point": "f"})


@pytest.mark.parametrize("name", ["cpu_s", "test_cpu_s"])
@pytest.mark.parametrize("value", [0, -1, MAX_CPU_S + 0.1, float("nan"), float("inf"), True, "6", None])
def test_a_time_that_is_none_or_beyond_the_servers_bound_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidTask, match=f'"{name}" must be a number of seconds above 0 and up to 30'):
        limits_of({name: value})


def test_times_are_the_papers_unless_the_task_says_otherwise() -> None:
    assert limits_of({}) == ProgramLimits(cpu_s=CPU_S, test_cpu_s=MAX_CPU_S)
    assert CPU_S == 5.0
    assert limits_of({"cpu_s": 30, "test_cpu_s": 6}) == ProgramLimits(cpu_s=30, test_cpu_s=6)
