"""Sorting, the bound and the creativity index, each against brute force or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, mean_pass_at_k, pass_at_k_bound
from nemo_prorl.commands import compare as command
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.catalogue import get
from nemo_prorl.evaluation.comparison import Difference, compare, sort, start_against_gain
from nemo_prorl.evaluation.creativity import creativity_indices
from nemo_prorl.evaluation.journal import Known, Sample
from nemo_prorl.evaluation.results import BenchmarkResult
from nemo_prorl.evaluation.tables import as_markdown, as_text, tables


def result(name: str, num_correct: list[int], num_samples: int = 8) -> BenchmarkResult:
    samples = {
        (f"p{index}", number): Sample(num_tokens=10, finish="stop", score=float(number < correct))
        for index, correct in enumerate(num_correct)
        for number in range(num_samples)
    }
    sources = {f"p{index}": name for index in range(len(num_correct))}
    return results.summarise(
        get(name), Known(samples=samples), sources, num_samples=num_samples, num_too_long=0, num_resamples=50
    )


@pytest.mark.parametrize("k", [2, 3, 8, 64])
def test_the_bound_holds_and_is_the_papers_formula_for_known_rates(k: int) -> None:
    rng = np.random.default_rng(k)
    for _ in range(20):
        rates = rng.beta(0.3, 1.0, 50)
        counts = [(100_000, round(100_000 * rate)) for rate in rates]
        p = np.array([correct / n for n, correct in counts])
        paper = 1 - ((1 - p.mean()) ** 2 + p.var()) ** (k / 2)
        assert pass_at_k_bound(counts, k) == pytest.approx(paper, abs=1e-3)
        assert mean_pass_at_k(counts, k) <= pass_at_k_bound(counts, k) + 1e-12


def test_the_bound_is_tight_at_2_and_refused_at_1() -> None:
    counts = [(4, 0), (4, 1), (4, 3)]
    assert pass_at_k_bound(counts, 2) == pytest.approx(mean_pass_at_k(counts, 2))
    with pytest.raises(ValueError, match="at least 2"):
        pass_at_k_bound(counts, 1)


def test_the_bootstrap_covers_a_known_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = bootstrap_interval(list(rng.normal(0.3, 0.2, 60)), num_resamples=200, seed=trial)
        hits += low <= 0.3 <= high
    assert 180 <= hits <= 199
    assert bootstrap_interval([0.5] * 9, num_resamples=9, seed=0) == (0.5, 0.5)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([], num_resamples=9, seed=0)


def difference(value: float, spread: float = 0.001) -> Difference:
    return Difference(value=value, low=value - spread, high=value + spread)


@pytest.mark.parametrize(
    ("start", "between", "expected"),
    [
        (-0.1, [], ("diminish", True)),
        (0.005, [0.3], ("diminish", True)),
        (0.3, [], ("gain", True)),
        (0.3, [0.005], ("plateau", True)),
        (0.3, [-0.2], ("plateau", True)),
        (0.3, [0.2], ("sustained", True)),
        (0.3, [0.2, 0.0], ("plateau", True)),
    ],
)
def test_the_rule(start: float, between: list[float], expected: tuple[str, bool]) -> None:
    assert sort(difference(start), [difference(value) for value in between]) == expected
    assert sort(difference(start, 9.0), [difference(value, 9.0) for value in between]) == (expected[0], False)


def test_a_comparison_by_hand() -> None:
    start, last = result("aime2024", [0, 0, 4, 8]), result("aime2024", [0, 6, 8, 8])
    (one,) = compare([{"aime2024": start, "ifeval": start}, {"aime2024": last}])
    assert (one.k, one.num_prompts, one.newly_solved) == (8, 4, 1)
    assert one.pass_at_k[1] == pytest.approx([12 / 32, 22 / 32])
    assert one.pass_at_k[8] == pytest.approx([0.5, 0.75])
    assert one.gain.value == pytest.approx(0.25)
    assert one.verdict == "gain"
    assert [sum(row) for row in one.histogram] == [4, 4]
    assert one.variance == pytest.approx([np.var([0, 0, 0.5, 1]), np.var([0, 0.75, 1, 1])])


def test_fewer_samples_bound_k_and_other_prompts_are_left_out() -> None:
    start, last = result("aime2024", [1, 2, 3]), result("aime2024", [4, 4], num_samples=5)
    (one,) = compare([{"aime2024": start}, {"aime2024": last}])
    assert (one.num_prompts, one.k, list(one.pass_at_k)) == (2, 5, [1, 2, 4, 5])


def test_a_weak_start_that_gains_most_correlates_negatively() -> None:
    starts = {"aime2024": [8] * 4, "amc": [8, 8, 8, 0], "math": [8, 0, 0, 0]}
    one = compare([{n: result(n, c) for n, c in starts.items()}, {n: result(n, [8] * 4) for n in starts}])
    assert start_against_gain(one) == pytest.approx(-1.0)
    assert start_against_gain(one[:2]) is None


def test_nothing_to_compare_is_a_sentence() -> None:
    one = {"aime2024": result("aime2024", [1])}
    with pytest.raises(ConfigError, match="at least two"):
        compare([one])
    with pytest.raises(ConfigError, match="in common"):
        compare([one, {"amc": result("amc", [1])}])


def brute_force_index(text: list[str], corpus: list[list[str]]) -> float:
    """By the definition: is a word in any run of L or more words of the corpus?"""
    total = 0.0
    for least in range(5, 13):
        covered = [False] * len(text)
        for length in range(least, len(text) + 1):
            runs = {tuple(d[i : i + length]) for d in corpus for i in range(len(d) - length + 1)}
            for start in range(len(text) - length + 1):
                if tuple(text[start : start + length]) in runs:
                    covered[start : start + length] = [True] * length
        total += covered.count(False) / len(text)
    return total


def test_the_creativity_index_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(1)
    letters = list("abcd")
    corpus = [list(rng.choice(letters, 120)) for _ in range(3)]
    texts = [list(rng.choice(letters, 40)), corpus[0][20:50], corpus[1][:9] + ["z"] * 9 + corpus[2][5:16]]
    found = creativity_indices([" ".join(text) for text in texts], (" ".join(d) for d in corpus))
    assert found == pytest.approx([brute_force_index(text, corpus) for text in texts])
    assert found[1] == 0.0
    assert creativity_indices(["z " * 20, "too short"], []) == [8.0, None]


def test_tables_stand_as_in_the_paper() -> None:
    found = {"aime2024": result("aime2024", [8, 4]), "gpqa_diamond": result("gpqa_diamond", [0, 8])}
    math, other, details = tables(found, "mine")
    assert math.columns == ("Model", "AIME24", "AIME25", "AMC", "Math", "Minerva", "Olympiad", "Avg")
    assert math.rows[0][0] == "DeepSeek-R1-Distill-Qwen-1.5B"
    assert math.rows[0][1:] == ("28.54", "22.71", "62.58", "82.90", "26.38", "43.58", "44.45")
    assert math.rows[-1] == ("mine", "75.00", "–", "–", "–", "–", "–", "–"), "no average of a part"
    assert other.rows[-1][:2] == ("mine", "50.00")
    assert details.rows[0][-2:] == ("28.54", "48.13")
    assert len({len(line) for line in list(as_text(math))[1:]}) <= 2
    assert next(line for line in as_markdown(math) if line.startswith("|---")).count("|") == 9


def test_the_command_writes_text_json_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders: list[Any] = []
    for name, correct in (("start", [0, 1, 2]), ("last", [4, 5, 6])):
        results.write(tmp_path / name / results.RESULTS, {"key": "k"}, [result("aime2024", correct)])
        (tmp_path / name / "samples").mkdir()
        line = '{"uid": "p0", "sample": 0, "key": "k", "response": "%s", "num_tokens": 1, "finish": "stop"}\n'
        (tmp_path / name / "samples" / "aime2024.rank0.jsonl").write_text(line % ("word " * 15))
        folders.append(str(tmp_path / name))
    (tmp_path / "corpus.txt").write_text("word " * 30)
    out = tmp_path / "out"
    assert command.main([*folders, "--out", str(out), "--corpus", str(tmp_path / "corpus.txt")]) == 0
    said = capsys.readouterr().out
    assert "aime2024: gain" in said
    assert "creativity index of aime2024 (0 to 8): start 0.000, last 0.000" in said
    assert {path.name for path in out.iterdir()} == {
        "comparison.json", "comparison.txt", "pass_at_k.png", "pass_at_1_shift.png", "gain.png",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="no folder of a finished evaluation"):
        command.main([folders[0], str(tmp_path)])
