"""Tests of what `compare` says of several checkpoints: classes, parts, sizes, remarks, files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.commands import compare as command
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.catalogue import get
from nemo_prorl.evaluation.comparison import (
    classify_gain,
    compare,
    comparison_lines,
    measurement_differences,
    start_against_gain,
)
from nemo_prorl.evaluation.journal import Known, SampleRecord
from nemo_prorl.evaluation.prompts import Loaded
from nemo_prorl.evaluation.results import BenchmarkResult, BootstrapMean
from nemo_prorl.evaluation.tables import MARK


def result(
    name: str,
    correct: Sequence[int] | Mapping[str, Sequence[int]],
    num_samples: int = 8,
    num_expected: int = 0,
) -> BenchmarkResult:
    """Returns a result of a benchmark that has `num_expected` problems. `correct`: the number of right samples of each
    prompt, by part if there are several; the prompts are called PART/0, PART/1 ..."""
    sources, samples = dict[str, str](), dict[tuple[str, int], SampleRecord]()
    for source, counts in (correct if isinstance(correct, Mapping) else {name: correct}).items():
        for index, count in enumerate(counts):
            sources[f"{source}/{index}"] = source
            for number in range(num_samples):
                sample = SampleRecord(num_tokens=10, finish="stop", score=float(number < count))
                samples[f"{source}/{index}", number] = sample
    return results.summarise(
        Loaded(benchmark=get(name), rows=(), num_found=0, num_expected=num_expected),
        Known(samples=samples),
        sources,
        num_samples=num_samples,
        num_too_long=0,
    )


def with_counts(of: BenchmarkResult, uid: str, num_samples: int, num_correct: int) -> BenchmarkResult:
    """Returns the result with other counts of one prompt, as if the service had failed to grade some samples."""
    changed = dataclasses.replace(of.prompts[uid], num_samples=num_samples, num_correct=num_correct)
    return dataclasses.replace(of, prompts={**of.prompts, uid: changed})


def with_other_prompts(of: BenchmarkResult, source: str) -> BenchmarkResult:
    """Returns the result with other prompts in one of its parts, as if from another file."""
    prompts = {f"new {uid}" if one.source == source else uid: one for uid, one in of.prompts.items()}
    return dataclasses.replace(of, prompts=prompts)


def difference(value: float, spread: float = 0.001) -> BootstrapMean:
    return BootstrapMean(value=value, low=value - spread, high=value + spread)


@pytest.mark.parametrize(
    ("start", "between", "expected"),
    [
        (-0.1, [], "diminish"),
        (0.005, [0.3], "diminish"),
        (0.3, [], "gain"),
        (0.3, [0.005], "plateau"),
        (0.3, [-0.2], "plateau"),
        (0.3, [0.2], "sustained"),
        (0.3, [0.2, 0.0], "plateau"),
    ],
)
def test_the_rule(start: float, between: list[float], expected: str) -> None:
    for spread, certain in ((0.001, True), (9.0, False)):
        found = classify_gain(difference(start, spread), [difference(value, spread) for value in between])
        assert found == (expected, certain)


def test_a_comparison_by_hand() -> None:
    start, last = result("aime2024", [0, 0, 4, 8]), result("aime2024", [0, 6, 8, 8])
    (one,) = compare([{"aime2024": start, "ifeval": start}, {"aime2024": last}])
    assert (one.k, one.num_samples, one.num_prompts, one.newly_solved) == (4, 8, 4, 1)
    assert one.pass_at_k[1] == pytest.approx([12 / 32, 22 / 32])
    assert one.pass_at_k[4] == pytest.approx([(0 + 0 + 69 / 70 + 1) / 4, 3 / 4]), (
        "C(4,4)/C(8,4) of the third fail"
    )
    assert one.pass_at_k[8] == pytest.approx([0.5, 0.75])
    assert one.gain.value == pytest.approx(3 / 4 - (69 / 70 + 1) / 4), "at half of the samples"
    assert one.verdict == "gain"
    assert one.variance == pytest.approx([np.var([0, 0, 0.5, 1]), np.var([0, 0.75, 1, 1])])


def test_the_interval_is_of_the_differences_of_each_prompt() -> None:
    """All prompts gain half, so it has no width, though they are very different from each other."""
    (one,) = compare(
        [{"aime2024": result("aime2024", [0, 2, 4])}, {"aime2024": result("aime2024", [4, 6, 8])}]
    )
    assert (one.gain_at_1.low, one.gain_at_1.value, one.gain_at_1.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("last", "num_samples", "k", "num_prompts", "num_short", "ks"),
    [
        (result("aime2024", [4, 4], num_samples=5), 5, 2, 2, 0, [1, 2, 4, 5]),
        (with_counts(result("aime2024", [4, 6, 8]), "aime2024/0", 7, 0), 8, 4, 3, 0, [1, 2, 4]),
        (with_counts(result("aime2024", [4, 6, 8]), "aime2024/0", 3, 0), 8, 4, 2, 1, [1, 2, 4, 8]),
    ],
    ids=["fewer of all and one prompt less", "one sample missing", "too few of one prompt"],
)
def test_samples_that_are_missing_bound_k_or_leave_a_prompt_out(
    last: BenchmarkResult, num_samples: int, k: int, num_prompts: int, num_short: int, ks: list[int]
) -> None:
    (one,) = compare([{"aime2024": result("aime2024", [0, 2, 4])}, {"aime2024": last}])
    assert (one.num_samples, one.k, one.num_prompts, one.num_short) == (
        num_samples,
        k,
        num_prompts,
        num_short,
    )
    assert list(one.pass_at_k) == ks
    said = "\n".join(comparison_lines([one], ["start", "last"]))
    assert ("1 prompts are left out" in said) is bool(num_short)


GAMES, LOGIC, MAZE = (f"reasoning_gym/{part}" for part in ("games/sudoku", "logic/zebra", "games/maze"))


def puzzles(correct: dict[str, list[int]]) -> dict[str, BenchmarkResult]:
    return {"reasoning_gym": result("reasoning_gym", correct)}


def test_every_task_is_classified_on_its_own() -> None:
    """One task gains what the other loses, so their mean does not change."""
    checkpoints = [
        puzzles({GAMES: [0, 0, 0], LOGIC: [8, 8, 8]}),
        puzzles({GAMES: [2, 0, 0], LOGIC: [8, 8, 0]}),
        puzzles({GAMES: [8, 8, 8], LOGIC: [0, 0, 0]}),
    ]
    (together,) = compare(checkpoints)
    assert together.verdict == "diminish"
    apart = compare(checkpoints, by_source=True)
    assert [(one.name, one.verdict) for one in apart] == [(GAMES, "sustained"), (LOGIC, "diminish")]
    assert apart[0].gain.value == 1.0
    assert f"sustained (1 of 2): {GAMES}" in "\n".join(comparison_lines(apart, ["a", "b", "c"]))
    (whole,) = compare([{"aime2024": result("aime2024", [1])}] * 2, by_source=True)
    assert whole.name == "aime2024", "it has no parts"


BOTH, AMC = puzzles({GAMES: [1, 2], LOGIC: [3]}), {"amc": result("amc", [1])}
OTHER_LOGIC = {"reasoning_gym": with_other_prompts(BOTH["reasoning_gym"], LOGIC)}
OTHER_GAMES = {"reasoning_gym": with_other_prompts(BOTH["reasoning_gym"], GAMES)}
THREE = puzzles({GAMES: [1, 2], LOGIC: [3], MAZE: [2]})


@pytest.mark.parametrize(
    ("checkpoints", "by_source", "compared", "left_out"),
    [
        ([BOTH, OTHER_LOGIC], False, ["reasoning_gym"], []),
        ([BOTH, OTHER_LOGIC], True, [GAMES], [LOGIC]),
        ([THREE, BOTH], True, [GAMES, LOGIC], [MAZE]),
        ([BOTH, THREE], True, [GAMES, LOGIC], [MAZE]),
        ([{**AMC, **puzzles({GAMES: [1]})}, {**AMC, **OTHER_GAMES}], False, ["amc"], ["reasoning_gym"]),
    ],
)
def test_what_has_no_common_prompt_is_left_out_and_named(
    checkpoints: list[Any], by_source: bool, compared: list[str], left_out: list[str]
) -> None:
    said: list[str] = []
    found = compare(checkpoints, by_source=by_source, say=said.append)
    assert [one.name for one in found] == compared
    assert said == [
        f"{name} is left out: the evaluations have no prompt of it in common" for name in left_out
    ]


@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [
        ([AMC], "at least two"),
        ([AMC, BOTH], "no benchmark in common"),
        ([AMC, {"amc": with_other_prompts(AMC["amc"], "amc")}], r"amc is left out.*Evaluate the same files"),
    ],
)
def test_nothing_to_compare_is_a_sentence(checkpoints: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compare(checkpoints)


def test_a_weak_start_that_gains_most_correlates_negatively() -> None:
    starts = {"aime2024": [8] * 4, "amc": [8, 8, 8, 0], "math": [8, 0, 0, 0]}
    one = compare([{n: result(n, c) for n, c in starts.items()}, {n: result(n, [8] * 4) for n in starts}])
    assert start_against_gain(one) == pytest.approx(-1.0)
    assert start_against_gain(one[:2]) is None


SAME = {"validation.temperature": "0.6", "graders": "7", "prompts of aime2024": "3 (hash a)"}


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([SAME], []),
        ([SAME | {"prompts of ifeval": "541 (hash c)"}], []),
        (
            [SAME | {"validation.temperature": "1", "graders": "8"}],
            ["policies': validation.temperature 0.6 (start), 1 (e1); graders 7 (start), 8 (e1)."],
        ),
        (
            [SAME | {"prompts of aime2024": "3 (hash b)"}],
            ["The problems of aime2024, their text, right answers"],
        ),
        ([{}], ["What e1 measured is not recorded"]),
        ([{}, SAME | {"graders": "8"}], ["graders 7 (start), 8 (e2)", "What e1 measured is not recorded"]),
    ],
)
def test_what_evaluations_do_not_have_in_common_is_said(
    others: list[dict[str, str]], said: list[str]
) -> None:
    headers = [{"measured": measured} if measured else {} for measured in (SAME, *others)]
    found = measurement_differences(["start", "e1", "e2"][: len(headers)], headers)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def test_the_command_writes_text_json_and_pictures_with_the_differences_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    below: list[str] = []
    monkeypatch.setattr("matplotlib.figure.Figure.supxlabel", lambda self, text, **look: below.append(text))
    folders: list[Any] = []
    for name, correct in (("start", [0, 1, 2]), ("last", [4, 5, 6])):
        header = {"key": "k", "measured": SAME | {"graders": name}}
        results.write(
            tmp_path / name / results.RESULTS, header, [result("aime2024", correct, num_expected=30)]
        )
        folders.append(str(tmp_path / name))
    out = tmp_path / "out"
    assert command.main([*folders, "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {
        "comparison.json", "comparison.txt", "pass_at_k.png", "gain.png",
    }  # fmt: skip
    text, content = (out / "comparison.txt").read_text(), json.loads((out / "comparison.json").read_text())
    assert text in capsys.readouterr().out
    (remark,) = content["remarks"]
    assert text.startswith(f"{remark}\n\naime2024: gain")
    assert f"{MARK} 3 problems instead of 30" in text
    assert len(below) == 2
    for note in below:
        assert "graders start (start), last (last)" in " ".join(note.split())
        assert f"{MARK} aime2024: 3 problems instead of 30" in note
    assert content["benchmarks"][0]["name"] == "aime2024"
    assert content["left_out"] == []
    with pytest.raises(ConfigError, match=r"not the folder of a finished evaluation, because results\.json"):
        command.main([folders[0], str(tmp_path)])
