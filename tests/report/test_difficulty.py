"""Tests of the metrics that are computed from difficulty files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from nemo_prorl.report.difficulty import BANDS, BEFORE, NOW, difficulty_metrics
from nemo_prorl.report.drawings import draw
from nemo_prorl.report.panels import DIFFICULTY
from nemo_prorl.report.runs import read_run
from nemo_prorl.run_folder.difficulty import write_difficulty
from tests.report.made_up_runs import write_run
from tests.training.conftest import make_group


def write(folder: Path, parts: dict[int, dict[str, list[float]]]) -> None:
    for step, scores in parts.items():
        write_difficulty(folder, step, [make_group(f"{uid}#{step}", of) for uid, of in scores.items()])


def test_prompts_are_counted_by_the_share_of_their_rollouts_that_passed(tmp_path: Path) -> None:
    shares = (0, 1, 2, 3, 4, 4)
    write(tmp_path, {3: {f"p{number}": [1.0] * n + [0.0] * (4 - n) for number, n in enumerate(shares)}})
    (metrics,) = difficulty_metrics(tmp_path)[0].values()
    assert [metrics[name] for name in BANDS] == [1, 1, 2, 0, 2]


def test_a_prompt_is_compared_with_its_own_last_visit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {1: {"a": [0, 0], "b": [1, 1]}, 2: {"a": [1, 0], "c": [0, 0]}, 5: {"a": [1, 1], "b": [1, 0]}},
    )
    metrics, _ = difficulty_metrics(tmp_path)
    assert NOW not in metrics[1]
    assert (metrics[2][BEFORE], metrics[2][NOW]) == (0.0, 0.5)
    assert (metrics[5][BEFORE], metrics[5][NOW]) == (0.75, 0.75)


def test_visits_agree_with_a_plain_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    parts = {
        step: {
            f"p{uid}": rng.integers(0, 2, 8).astype(float).tolist()
            for uid in rng.choice(30, 10, replace=False)
        }
        for step in range(1, 21)
    }
    write(tmp_path, parts)
    last: dict[str, float] = {}
    expected: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step, prompts in parts.items():
        for uid, scores in prompts.items():
            if uid in last:
                expected[step].append((last[uid], float(np.mean(scores))))
            last[uid] = float(np.mean(scores))
    metrics, _ = difficulty_metrics(tmp_path)
    for step, pairs in expected.items():
        before, now = np.mean(pairs, axis=0)
        assert (metrics[step][BEFORE], metrics[step][NOW]) == pytest.approx((before, now))


def test_a_run_shows_them_when_it_has_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_steps=4, num_stages=1)
    assert [
        drawing for panel in DIFFICULTY.panels for drawing in draw(panel, [read_run(tmp_path / "run")])
    ] == []
    write(tmp_path / "run", {1: {"a": [0, 0]}, 2: {"a": [1, 0]}, 4: {"b": [1, 1]}})
    run = read_run(tmp_path / "run")
    bands, revisits = (drawing for panel in DIFFICULTY.panels for drawing in draw(panel, [run]))
    shown = {line.label: line.points.values.tolist() for line in bands.lines}
    assert shown == {"no rollout": [1, 0, 0], "up to 3/4": [0, 1, 0], "every rollout": [0, 0, 1]}
    assert [line.points.values.tolist() for line in revisits.lines] == [[0.5], [0.0]]
