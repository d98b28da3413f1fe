import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.graders.code.code_tests import limits_of, same_output
from reward.graders.code.code_tests import tests_of as read_tests
from reward.graders.grade import InvalidTask
from reward.sandbox.limits import CPU_S, MAX_CPU_S, ProgramLimits
from tests.reward.serving import rows

DATA = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text("ab1", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=2),
    max_leaves=5,
)


@pytest.mark.parametrize(
    "row", rows("code_results.jsonl"), ids=lambda row: f"{row['form']}-{row['expected']}"[:40]
)
def test_what_is_the_same_output_or_result(row: dict[str, Any]) -> None:
    """Standard output is compared as text, and what a function returned as a value."""
    if row["form"] == "output":
        assert same_output(row["given"], row["expected"]) is row["same"]
    else:
        function = read_tests({"inputs": ["1"], "outputs": [row["expected"]], "fn_name": "f"})
        assert function.passes(0, json.dumps(row["given"]).encode()) is row["same"]


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["*", "/\\", "a b"])), min_size=2, max_size=8))
def test_the_indentation_of_a_picture_counts_and_its_place_does_not(lines: list[tuple[int, str]]) -> None:
    picture = "\n".join(" " * indent + text for indent, text in lines)
    assert same_output("\n".join(f"  {line} " for line in picture.split("\n")), picture)
    is_flush = len({indent for indent, _ in lines}) == 1
    assert same_output("\n".join(text for _, text in lines), picture) is is_flush
    numbers = "\n".join(" " * indent + "7" for indent, _ in lines)
    is_no_picture = (
        len({indent for indent, _ in lines}) <= 2
    )  # a header and what stands below it, such as a table
    assert same_output("\n".join("7" for _ in lines), numbers) is is_no_picture


@given(DATA, DATA)
def test_an_output_that_is_text_is_the_result_itself_and_a_list_of_one_may_wrap_it(a: Any, b: Any) -> None:
    def passes(result: Any, output: Any) -> bool:
        tests = read_tests({"inputs": ["1"], "outputs": [output], "fn_name": "f"})
        return tests.passes(0, json.dumps(result).encode())

    for value in (a, [a], [[a]]):
        assert passes(value, json.dumps(value))
        assert not passes(value, json.dumps([value]))
        assert passes(value, [value])
    a_text, b_text = json.dumps(a, sort_keys=True), json.dumps(b, sort_keys=True)
    assert passes(a, json.dumps(b)) is (a_text == b_text)
    assert passes(a, [b]) is (a_text in (b_text, f"[{b_text}]"))


@given(
    st.text(alphabet="０１２３４５６７８９٠١٢٣٤", min_size=1), st.sampled_from(["{}", "{}.5", "-{}", "1{}"])
)
def test_digits_of_other_scripts_are_other_text(digits: str, form: str) -> None:
    written = form.format(digits)
    assert not same_output(written, str(float(written)))


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
    assert tests.expected == ([[3]], [{"4": 5}])
    for text in ("{[]: 1}", "(" * 1000, "yes"):  # neither JSON nor Python data
        assert read_tests({"inputs": ["1"], "outputs": [text], "fn_name": "f"}).expected == ([text],)


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
