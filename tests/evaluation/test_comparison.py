"""Tests of the classification of benchmarks and the bound, against brute force or by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, mean_pass_at_k, pass_at_k, pass_at_k_bound
from nemo_prorl.commands import compare as command
from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.catalogue import get
from nemo_prorl.evaluation.comparison import (
    by_size,
    common_k,
    compare,
    compare_sizes,
    comparison_lines,
    size_lines,
    sort,
    start_against_gain,
    unlike,
)
from nemo_prorl.evaluation.figures import draw, draw_sizes
from nemo_prorl.evaluation.journal import Known, Sample
from nemo_prorl.evaluation.prompts import Loaded
from nemo_prorl.evaluation.results import BenchmarkResult, Estimate
from nemo_prorl.evaluation.tables import ABSENT, MARK, as_markdown, as_text, tables


def loaded(name: str) -> Loaded:
    return Loaded(benchmark=get(name), rows=(), num_found=0)


def result(name: str, num_correct: list[int], num_samples: int = 8) -> BenchmarkResult:
    samples = {
        (f"p{index}", number): Sample(num_tokens=10, finish="stop", score=float(number < correct))
        for index, correct in enumerate(num_correct)
        for number in range(num_samples)
    }
    sources = {f"p{index}": name for index in range(len(num_correct))}
    return results.summarise(
        loaded(name),
        Known(samples=samples),
        sources,
        num_samples=num_samples,
        num_too_long=0,
        num_resamples=50,
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


def difference(value: float, spread: float = 0.001) -> Estimate:
    return Estimate(value=value, low=value - spread, high=value + spread)


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
    assert (one.k, one.num_samples, one.num_prompts, one.newly_solved) == (4, 8, 4, 1)
    assert one.pass_at_k[1] == pytest.approx([12 / 32, 22 / 32])
    assert one.pass_at_k[4] == pytest.approx([(0 + 0 + 69 / 70 + 1) / 4, 3 / 4]), (
        "C(4,4)/C(8,4) of the third fail"
    )
    assert one.pass_at_k[8] == pytest.approx([0.5, 0.75])
    assert one.gain.value == pytest.approx(3 / 4 - (69 / 70 + 1) / 4), "at half of the samples"
    assert one.verdict == "gain"
    assert [sum(row) for row in one.histogram] == [4, 4]
    assert one.variance == pytest.approx([np.var([0, 0, 0.5, 1]), np.var([0, 0.75, 1, 1])])


def test_fewer_samples_bound_k_and_other_prompts_are_left_out() -> None:
    start, last = result("aime2024", [1, 2, 3]), result("aime2024", [4, 4], num_samples=5)
    (one,) = compare([{"aime2024": start}, {"aime2024": last}])
    assert (one.num_prompts, one.num_samples, one.k, list(one.pass_at_k)) == (2, 5, 2, [1, 2, 4, 5])


def with_fewer_samples(of: BenchmarkResult, uid: str, num_samples: int) -> BenchmarkResult:
    """Returns the result with fewer samples of one prompt, as if the service had failed to grade the others."""
    fewer = dataclasses.replace(of.prompts[uid], num_samples=num_samples, num_correct=0)
    return dataclasses.replace(of, prompts={**of.prompts, uid: fewer})


def test_one_missing_sample_does_not_lower_k() -> None:
    start, last = result("aime2024", [0, 2, 4]), with_fewer_samples(result("aime2024", [4, 6, 8]), "p0", 7)
    (one,) = compare([{"aime2024": start}, {"aime2024": last}])
    assert (one.num_samples, one.k, one.num_prompts, one.num_short) == (8, 4, 3, 0)
    assert list(one.pass_at_k) == [1, 2, 4], "k = 8 is impossible for one prompt, and is left out"


def test_prompts_with_too_few_samples_are_left_out_and_said() -> None:
    start, last = result("aime2024", [0, 2, 4]), with_fewer_samples(result("aime2024", [4, 6, 8]), "p0", 3)
    (one,) = compare([{"aime2024": start}, {"aime2024": last}])
    assert (one.num_samples, one.k, one.num_prompts, one.num_short) == (8, 4, 2, 1)
    assert list(one.pass_at_k) == [1, 2, 4, 8]
    said = "\n".join(comparison_lines([one], ["start", "last"]))
    assert "1 prompts are left out: they have fewer than 4 graded samples" in said


def test_half_of_the_samples_varies_less_than_all_of_them() -> None:
    """Both are unbiased. Over repeated draws for one prompt at rate 0.02, the estimate at k = n has the larger
    variance."""
    rng = np.random.default_rng(5)
    half, whole = (
        [pass_at_k(n, int(c), k) for c in rng.binomial(n, 0.02, 4000)] for n, k in ((64, 32), (32, 32))
    )
    truth = 1 - 0.98**32
    assert np.mean(half) == pytest.approx(truth, abs=0.02)
    assert np.mean(whole) == pytest.approx(truth, abs=0.02)
    assert np.std(half) < 0.85 * np.std(whole)


def test_a_part_of_a_benchmark_is_said_in_the_comparison() -> None:
    half = dataclasses.replace(result("aime2024", [1, 2]), num_expected=30)
    (one,) = compare([{"aime2024": half}, {"aime2024": half}])
    assert one.shortfall == "2 problems instead of 30"
    assert f"{MARK} 2 problems instead of 30" in next(iter(comparison_lines([one], ["start", "last"])))


def puzzles(correct: dict[str, list[int]], num_samples: int = 8) -> BenchmarkResult:
    """Returns a result of several tasks. `correct`: task -> number of right samples for each of its prompts."""
    samples = {
        (f"{source}/{index}", number): Sample(num_tokens=10, finish="stop", score=float(number < count))
        for source, counts in correct.items()
        for index, count in enumerate(counts)
        for number in range(num_samples)
    }
    sources = {
        f"{source}/{index}": source for source, counts in correct.items() for index in range(len(counts))
    }
    return results.summarise(
        loaded("reasoning_gym"),
        Known(samples=samples),
        sources,
        num_samples=num_samples,
        num_too_long=0,
        num_resamples=9,
    )


GAMES, LOGIC = "reasoning_gym/games/sudoku", "reasoning_gym/logic/zebra"


def test_every_task_is_sorted_on_its_own() -> None:
    """One task gains what the other loses, so their mean does not change."""
    stages = [
        {GAMES: [0, 0, 0], LOGIC: [8, 8, 8]},
        {GAMES: [2, 0, 0], LOGIC: [8, 8, 0]},
        {GAMES: [8, 8, 8], LOGIC: [0, 0, 0]},
    ]
    checkpoints = [{"reasoning_gym": puzzles(stage)} for stage in stages]
    (together,) = compare(checkpoints)
    assert together.verdict == "diminish"
    apart = compare(checkpoints, by_source=True)
    assert [(one.name, one.verdict) for one in apart] == [(GAMES, "sustained"), (LOGIC, "diminish")]
    assert apart[0].gain.value == 1.0
    assert apart[0].histogram == [[3, *[0] * 9], [2, 0, 1, *[0] * 7], [*[0] * 9, 3]]
    said = "\n".join(comparison_lines(apart, ["a", "b", "c"]))
    assert f"sustained (1 of 2): {GAMES}" in said
    assert compare([{"aime2024": result("aime2024", [1])}] * 2, by_source=True)[0].name == "aime2024", (
        "has no parts"
    )


def categories(of: BenchmarkResult) -> dict[str, str]:
    """Returns our row of the table by category."""
    table = next(one for one in tables({"reasoning_gym": of}, "mine") if "by category" in one.title)
    return dict(zip(table.columns, table.rows[-1], strict=True))


def test_categories_are_means_over_their_tasks() -> None:
    maze = "reasoning_gym/games/maze"
    row = categories(puzzles({GAMES: [8, 0, 8, 8], maze: [0], LOGIC: [8]}))
    assert (row["games"], row["logic"], row["algebra"]) == ("37.50", "100.00", ABSENT)


def test_categories_of_some_of_the_puzzles_are_marked() -> None:
    some = dataclasses.replace(puzzles({GAMES: [8, 0], LOGIC: [8]}), num_expected=9600)
    row = categories(some)
    assert (row["games"], row["logic"], row["algebra"]) == (f"50.00{MARK}", f"100.00{MARK}", ABSENT)
    assert row["Avg"].endswith(MARK)


def test_a_single_puzzle_has_its_category() -> None:
    """A benchmark of one part is not shown by part, but its category is known."""
    row = categories(puzzles({GAMES: [8, 0]}))
    assert (row["games"], row["logic"]) == ("50.00", ABSENT)


def test_results_hold_every_task_with_pass_at_k_and_its_distribution(tmp_path: Path) -> None:
    found = puzzles({GAMES: [0, 4], LOGIC: [8, 8]})
    results.write(tmp_path / results.RESULTS, {"key": "k"}, [found])
    part = json.loads((tmp_path / results.RESULTS).read_text())["benchmarks"]["reasoning_gym"]["by_source"][
        "games/sudoku"
    ]
    assert part["num_prompts"] == 2
    assert part["score"]["value"] == 0.25
    assert part["pass_at_k"] == pytest.approx(
        {"1": 0.25, "2": 0.5 * (1 - 6 / 28), "4": 0.5 * 69 / 70, "8": 0.5}
    )
    assert part["histogram"] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert results.read(tmp_path)[1] == {"reasoning_gym": found}


def test_sizes_come_in_their_order() -> None:
    sources = {f"graph_color_sizes/{size}_vertices": [size % 8] for size in (20, 10, 12)}
    parts = compare(
        [{"graph_color_sizes": dataclasses.replace(puzzles(sources), name="graph_color_sizes")}] * 2,
        by_source=True,
    )
    sizes = by_size(parts)["graph_color_sizes", "vertices"]
    assert [size for size, _ in sizes] == [10, 12, 20]
    assert sizes[0][1].pass_at_k[1] == [0.25, 0.25]
    head, row = list(size_lines("graph_color_sizes", "vertices", sizes, ["start", "last"]))[2:4]
    assert head.split() == ["10", "12", "20"]
    assert row.split() == ["start", "pass@1", "0.2500", "0.5000", "0.5000"]
    assert by_size(parts[:1]) == {}, "one size is no series"


def graphs(num_samples: dict[int, int]) -> BenchmarkResult:
    """Returns a result of graph_color. num_samples: vertices -> number of samples of its one prompt, half of which are
    right."""
    sources = {f"graph_color_sizes/{size:02}_vertices": n for size, n in num_samples.items()}
    samples = {
        (source, number): Sample(num_tokens=10, finish="stop", score=float(number < n / 2))
        for source, n in sources.items()
        for number in range(n)
    }
    return results.summarise(
        loaded("graph_color_sizes"),
        Known(samples=samples),
        {source: source for source in sources},
        num_samples=16,
        num_too_long=0,
        num_resamples=9,
    )


def test_sizes_with_fewer_samples_are_shown_at_a_k_that_all_have(tmp_path: Path) -> None:
    """12 samples have pass@6 and 16 samples do not; both have pass@4."""
    found = graphs({10: 12, 12: 16})
    sizes = by_size(compare_sizes([{"graph_color_sizes": found}] * 2))["graph_color_sizes", "vertices"]
    assert common_k([one for _, one in sizes]) == 4
    said = list(size_lines("graph_color_sizes", "vertices", sizes, ["start", "last"]))
    assert said[1] == "graph_color_sizes by vertices (12 to 16 samples each)"
    of_12, of_16 = 1 - 15 / 495, 1 - 70 / 1820
    assert said[4].split() == ["start", "pass@4", f"{of_12:.4f}", f"{of_16:.4f}"]
    draw_sizes("graph_color_sizes", "vertices", sizes, ["start", "last"], tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").is_file()


def with_other_prompts(of: BenchmarkResult, source: str) -> BenchmarkResult:
    """Returns the result with other prompts in one of its parts, as if from another file."""
    prompts = {f"new {uid}" if one.source == source else uid: one for uid, one in of.prompts.items()}
    return dataclasses.replace(of, prompts=prompts)


def test_a_part_without_a_common_prompt_is_left_out_and_named() -> None:
    start = puzzles({GAMES: [1, 2], LOGIC: [3]})
    checkpoints = [{"reasoning_gym": start}, {"reasoning_gym": with_other_prompts(start, LOGIC)}]
    (whole,) = compare(checkpoints)
    assert whole.num_prompts == 2
    said: list[str] = []
    assert [one.name for one in compare(checkpoints, by_source=True, say=said.append)] == [GAMES]
    assert said == [f"{LOGIC} is left out: the evaluations have no prompt of it in common"]
    assert compare_sizes(checkpoints, say=said.append) == [], "none of these parts is a size"
    assert len(said) == 1


def test_a_part_that_one_evaluation_lacks_is_named() -> None:
    maze = "reasoning_gym/games/maze"
    more, fewer = puzzles({GAMES: [1], LOGIC: [3], maze: [2]}), puzzles({GAMES: [1], LOGIC: [3]})
    for order in ([more, fewer], [fewer, more]):
        said: list[str] = []
        compare([{"reasoning_gym": one} for one in order], by_source=True, say=said.append)
        assert said == [f"{maze} is left out: the evaluations have no prompt of it in common"]


def test_a_benchmark_without_a_common_prompt_does_not_stop_the_others() -> None:
    start = {"amc": result("amc", [1]), "math": result("math", [1])}
    said: list[str] = []
    (one,) = compare([start, start | {"math": with_other_prompts(start["math"], "math")}], say=said.append)
    assert (one.name, said) == ("amc", ["math is left out: the evaluations have no prompt of it in common"])
    with pytest.raises(ConfigError, match=r"math is left out.*Evaluate the same files"):
        compare([{"math": start["math"]}, {"math": with_other_prompts(start["math"], "math")}])


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
        folders.append(str(tmp_path / name))
    out = tmp_path / "out"
    assert command.main([*folders, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "aime2024: gain" in said
    assert {path.name for path in out.iterdir()} == {
        "comparison.json", "comparison.txt", "pass_at_k.png", "pass_at_1_shift.png", "gain.png",
    }  # fmt: skip
    content = json.loads((out / "comparison.json").read_text())
    assert content["benchmarks"][0]["name"] == "aime2024"
    assert content["left_out"] == []
    with pytest.raises(ConfigError, match=r"not the folder of a finished evaluation, because results\.json"):
        command.main([folders[0], str(tmp_path)])


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
            ["The problems of aime2024 are the same, but their text"],
        ),
        ([{}], ["What e1 measured is not recorded"]),
        ([{}, SAME | {"graders": "8"}], ["graders 7 (start), 8 (e2)", "What e1 measured is not recorded"]),
    ],
)
def test_what_evaluations_do_not_have_in_common_is_said_first_and_in_every_file(
    others: list[dict[str, str]], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for name, measured in {"start": SAME, **{f"e{n}": one for n, one in enumerate(others, 1)}}.items():
        header = {"key": "k"} | ({"measured": measured} if measured else {})
        results.write(tmp_path / name / results.RESULTS, header, [result("aime2024", [0, 1, 2])])
        folders.append(str(tmp_path / name))
    assert command.main([*folders, "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "comparison.txt").read_text()
    assert text in capsys.readouterr().out
    remarks, benchmarks = text.split("aime2024: diminish")
    assert all(part in remarks for part in said)
    assert len(remarks.splitlines()) == (len(said) + 1 if said else 0)
    assert "measure" not in benchmarks
    recorded = json.loads((tmp_path / "out" / "comparison.json").read_text())["remarks"]
    assert recorded == remarks.strip("\n").splitlines()


def test_other_problems_are_said(tmp_path: Path) -> None:
    fewer = result("aime2024", [0, 1])
    found = unlike(
        ["start", "last"],
        [{"measured": SAME}, {"measured": SAME | {"prompts of aime2024": "2 (hash b)"}}],
        [{"aime2024": result("aime2024", [0, 1, 2])}, {"aime2024": fewer}],
    )
    assert found == ["Not all have the same problems of aime2024: only those that all have are compared."]


def test_remarks_are_below_every_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below: list[str] = []
    monkeypatch.setattr("matplotlib.figure.Figure.supxlabel", lambda self, text, **look: below.append(text))
    start, last = ({"graph_color_sizes": graphs({10: 8, 12: 8})} for _ in range(2))
    parts = compare_sizes([start, last])
    ((series, unit),) = by_size(parts)
    draw(parts, ["start", "last"], tmp_path, ["They differ."])
    draw_sizes(
        series, unit, by_size(parts)[series, unit], ["start", "last"], tmp_path / "s.png", ["They differ."]
    )
    assert below == ["They differ."] * 4
