"""Tests that all files of a benchmark are read, that the window of dates is respected, and that an unexpected number of
problems is said."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_prorl.commands.parsing import CONF_DIR, composed
from nemo_prorl.config import ConfigError, EvaluationConfig
from nemo_prorl.data.building.source import Record
from nemo_prorl.data.sources.reasoning_gym import tasks
from nemo_prorl.evaluation import prompts
from nemo_prorl.evaluation.catalogue import BENCHMARKS, get
from reward.graders.code.code_tests import limits_of


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))


def exam(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"question": f"question {number}", "answer": str(number)} for number in range(first, first + count)
    ]


def loaded(name: str, folder: Path, **options: Any) -> prompts.Loaded:
    (one,), missing = prompts.load([get(name)], folder, **options)
    assert missing == []
    return one


def test_all_files_are_read_each_question_once_and_a_part_of_a_benchmark_is_said(tmp_path: Path) -> None:
    """opencompass/AIME2025 has two files."""
    write(tmp_path / "aime2025-I.jsonl", exam(0, 15))
    half = loaded("aime2025", tmp_path)
    (line,) = prompts.accounts([half])
    assert "15 problems of aime2025-I.jsonl. These are 15 problems instead of 30 (two exams of 15)" in line
    assert "does not compare" in line
    write(tmp_path / "aime2025-II.jsonl", exam(10, 20))
    whole = loaded("aime2025", tmp_path)
    assert len(whole.rows) == 30
    (line,) = prompts.accounts([whole])
    files = "aime2025-I.jsonl, aime2025-II.jsonl"
    assert line == f"aime2025: 30 problems of {files}; 5 duplicates were removed."


def test_what_makes_no_problem_or_lacks_tests_is_counted_and_named(tmp_path: Path) -> None:
    test = {"input": "1", "output": "2", "testtype": "stdin"}
    asked = {"contest_date": "2024-09-01T00:00:00", "public_test_cases": [test], "private_test_cases": [test]}
    function = {**asked, "public_test_cases": [{**test, "testtype": "functional"}]}
    rows = [
        {"question_content": "whole", **asked},
        {"question_content": "public", **asked, "private_test_cases": None},
        {"question_content": "old", **asked, "contest_date": "2023-01-01"},
        {"question_content": "function", **function},
        {"question_content": "picture", **asked, "images": ["a.png"]},
        {"question_content": "another function", **function},
    ]
    write(tmp_path / "livecodebench.jsonl", rows)
    one = loaded("livecodebench", tmp_path)
    assert len(one.rows) == 2
    (line,) = prompts.accounts([one])
    for said in (
        "; 2 make no problem (no_function_name, such as livecodebench.jsonl:3)",
        "; 1 make no problem (not_text_alone, such as livecodebench.jsonl:4)",
        "; 1 of them have no private tests, and are graded on the examples in their question alone",
    ):
        assert said in line
    assert "1 lie outside" in line


def test_every_subject_is_read_and_the_training_split_only_where_nothing_else_is(tmp_path: Path) -> None:
    for place, subject in enumerate(("algebra", "geometry")):
        rows = [{"problem": f"{subject} {n}", "solution": f"\\boxed{{{n}}}"} for n in range(place + 2)]
        write(tmp_path / "math" / subject / "test-00000.jsonl", rows)
        write(tmp_path / "math" / subject / "train-00000.jsonl", exam(0, 9))
    assert len(loaded("math", tmp_path).rows) == 5
    for split in ("train", "test"):
        tests = {"inputs": ["1"], "outputs": ["2"]}
        write(tmp_path / f"apps_{split}.jsonl", [{"problem": "a", "tests": tests}])
        assert loaded("apps", tmp_path).files == (f"apps_{split}.jsonl",)


def release(dates: list[str]) -> list[dict[str, Any]]:
    tests = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    return [
        {"question_content": f"of {date}", "contest_date": date, "public_test_cases": tests} for date in dates
    ]


def test_livecodebench_is_all_its_releases_within_the_window(tmp_path: Path) -> None:
    folder = tmp_path / "code_generation_lite"
    write(folder / "test.jsonl", release(["2023-05-07T00:00:00", "2024-07-31T23:00:00"]))
    write(
        folder / "test5.jsonl",
        release([f"{day}T00:00:00" for day in ("2024-08-01", "2024-12-24", "2025-02-01")]),
    )
    write(folder / "test6.jsonl", release(["2025-02-02T00:00:00", "2024-12-24T00:00:00"]))
    one = loaded("livecodebench", tmp_path)
    days = [row.messages[0]["content"][3:13] for row in one.rows]
    assert days == ["2024-08-01", "2024-12-24", "2025-02-01"]
    assert (one.num_expected, one.other_dates) == (279, "")
    (line,) = prompts.accounts([one])
    assert "1 duplicates were removed" in line
    assert "3 lie outside evaluation.livecodebench_dates" in line
    assert "3 problems instead of 279" in line
    assert "test.jsonl to test5.jsonl" in line, (
        "test6.jsonl has problems of January 2025 that release v5 lacks"
    )


@pytest.mark.parametrize(
    ("dates", "told", "num_rows"),
    [("2024-12-24..2024-12-24", "2024-12-24..2024-12-24", 1), ("", "any date", 2)],
)
def test_another_window_of_dates_is_said_and_has_no_known_number(
    tmp_path: Path, dates: str, told: str, num_rows: int
) -> None:
    write(tmp_path / "livecodebench.jsonl", release(["2024-12-24T00:00:00", "2025-03-01T00:00:00"]))
    one = loaded("livecodebench", tmp_path, dates=dates)
    assert (one.other_dates, one.num_expected, len(one.rows)) == (told, 0, num_rows)
    said = f"{num_rows} problems of {told}, another window of dates than 2024-08-01..2025-02-01"
    assert said in next(iter(prompts.accounts([one])))


NO_DATE = object()


def dated(value: object) -> Record:
    (values,) = release(["2024-09-01T00:00:00"])
    values = {key: given for key, given in {**values, "contest_date": value}.items() if given is not NO_DATE}
    return Record(values=values, split="test", origin="f:0")


@pytest.mark.parametrize(
    "value", [datetime(2024, 9, 1, 23, 30), date(2024, 9, 1), "2024-09-01", "2024-09-01T00:00:00"]
)
def test_a_date_may_be_text_or_a_date(value: object) -> None:
    assert len(get("livecodebench").problems([dated(value)], "2024-09-01..2024-09-01").rows) == 1
    with pytest.raises(ConfigError, match="outside_the_window_of_dates"):
        get("livecodebench").problems([dated(value)], "2024-09-02..2024-09-03")


@pytest.mark.parametrize("value", ["2024/09/01", "08/15/2024", "soon", "", None, 1725148800000, NO_DATE])
def test_a_date_that_cannot_be_read_is_named_where_a_window_is_asked(value: object) -> None:
    """Compared as text, 2024/09/01 would lie inside the window and 08/15/2024 outside."""
    has = "no contest_date" if value is NO_DATE else f"contest_date={value!r}"
    with pytest.raises(ConfigError, match=rf"f:0 has {re.escape(has)}, and .*livecodebench_dates=''"):
        get("livecodebench").problems([dated(value)], prompts.DATES)
    assert len(get("livecodebench").problems([dated(value)]).rows) == 1


@pytest.mark.parametrize(
    "dates", ["2024", "2024-08-01", "2025-02-01..2024-08-01", "2024-08-01..2024-02-30", "20240801..20250201"]
)
def test_a_window_that_is_none_is_a_sentence(dates: str) -> None:
    with pytest.raises(ConfigError, match=r"livecodebench_dates=.*such as 2024-08-01\.\.2025-02-01"):
        EvaluationConfig(livecodebench_dates=dates)


def puzzle(task: str, number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{task} {number}"}]
    return {"messages": messages, "task": json.dumps({"task": task, "entry": {}})}


def test_the_puzzles_can_be_some_tasks(tmp_path: Path) -> None:
    (tmp_path / "reasoning_gym").mkdir()
    rows = [puzzle(task, number) for task in ("maze", "ab", "sudoku") for number in range(2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "reasoning_gym" / "validation.parquet")
    one = loaded("reasoning_gym", tmp_path, puzzles=["sudoku", "ab"])
    assert sorted({row.task["task"] for row in one.rows}) == ["ab", "sudoku"]
    assert "6 problems of reasoning_gym/validation.parquet; 4 of them are asked" in next(
        iter(prompts.accounts([one]))
    )
    with pytest.raises(ConfigError, match=r"evaluation\.puzzles=mazes.*such as ab, maze, sudoku"):
        loaded("reasoning_gym", tmp_path, puzzles=["mazes"])


@pytest.mark.parametrize(("num_found", "num_expected"), [(9, 9), (8, 8), (7, 10)])
def test_a_few_puzzles_that_the_builder_drops_are_not_marked(
    tmp_path: Path, num_found: int, num_expected: int
) -> None:
    write(tmp_path / "few.jsonl", exam(0, num_found))
    few = dataclasses.replace(get("aime2025"), files=("few.jsonl",), num_problems=10, num_may_differ=2)
    (one, part) = (prompts.load([few], tmp_path, most)[0][0] for most in (0, 3))
    assert (one.num_found, one.num_expected) == (num_found, num_expected)
    assert ("problems instead of 10" in next(iter(prompts.accounts([one])))) == (num_expected == 10)
    assert part.num_expected == num_expected, "a part is a part"
    assert (part.rows[0], part.rows[-1], len(part.rows)) == (one.rows[0], one.rows[-1], 3), "of the whole"


def test_programs_get_their_publishers_time_and_the_others_the_papers() -> None:
    assert get("livecodebench").task == {"cpu_s": 30.0, "test_cpu_s": 6.0}
    assert get("humaneval_plus").task == {"cpu_s": 30.0}
    for benchmark in BENCHMARKS.values():
        limits_of(benchmark.task)
        assert not benchmark.task or benchmark.domain == "code", benchmark.name
    assert get("codeforces").task == {}


def test_the_suite_of_18_puzzles_is_the_draw_that_it_says() -> None:
    text = (CONF_DIR / "suite" / "reasoning_boundary_puzzles.yaml").read_text()
    seed = int(re.findall(r"random\.Random\((\d+)\)", text)[0])
    others = [task for task in tasks() if task != "family_relationships"]
    drawn = random.Random(seed).sample(others, 17)
    config = composed("train", ["suite=reasoning_boundary_puzzles"])
    assert config.evaluation.puzzles == sorted(["family_relationships", *drawn])
    assert config.validation.num_rollouts == 256
