"""Tests of draws by difficulty: weights against numbers worked out by hand, frequencies against the weights, and what a
row history keeps."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from nemo_prorl.data import difficulty
from nemo_prorl.data.difficulty import RowHistory, draw_weights


def history(*spreads: float | None) -> RowHistory:
    """Returns the history of rows that were drawn in their order and scored."""
    made = RowHistory(len(spreads))
    for row, spread in enumerate(spreads):
        made.draw(row)
        made.note(row, spread)
    return made


def frequencies(of: RowHistory, *, retest: float, count: int = 20_000) -> NDArray[np.float64]:
    generator = np.random.default_rng(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difficulty, "RETEST", retest)
        return np.bincount([of.choose(generator) for _ in range(count)], minlength=6) / count


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.01])
def test_weights_are_the_relative_deviations_and_epsilon(scale: float) -> None:
    spreads = scale * np.array([0.0, 0.5, 0.4, np.nan])
    assert draw_weights(spreads) == pytest.approx([0.05, 0.55, 0.45, 0.55])


def test_rows_of_which_none_teaches_weigh_the_same() -> None:
    equal = history(*[float(np.std([score] * 16)) for score in (0.0, 0.1, 1 / 3, 0.7)])
    assert frequencies(equal, retest=0.0)[:4] == pytest.approx([0.25] * 4, abs=0.012)
    assert draw_weights(np.array([np.nan, np.nan])) == pytest.approx([0.55, 0.55])


def test_rows_are_drawn_as_often_as_they_weigh() -> None:
    made = history(0.0, 0.4, 0.5, 0.0, None, 0.5)
    made.leave_out(5)
    weights = np.array([0.05, 0.45, 0.55, 0.05, 0.55, 0.0])
    expected = weights / weights.sum()
    assert frequencies(made, retest=0.0) == pytest.approx(expected, abs=0.012)  # four standard deviations
    oldest = np.array([1.0, 0, 0, 0, 0, 0])
    assert frequencies(made, retest=0.3) == pytest.approx(0.7 * expected + 0.3 * oldest, abs=0.014)


def test_a_row_that_is_being_sampled_is_drawn_only_where_there_is_no_other() -> None:
    made = history(0.5, 0.5, 0.5)
    made.leave_out(1)
    made.draw(0)
    assert frequencies(made, retest=0.5)[2] == 1.0
    made.draw(2)
    assert frequencies(made, retest=0.0, count=50)[0] == 1.0, "the oldest of those that fit"
    made.note(2, 0.0)
    assert frequencies(made, retest=0.0)[2] == 1.0


def test_a_row_that_is_always_solved_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a weight of nearly 0 it still has its turn: the rows before it in the order of their last draw, times 1 /
    retest, bound how long that takes on average."""
    monkeypatch.setattr(difficulty, "EPSILON", 1e-9)
    monkeypatch.setattr(difficulty, "RETEST", 0.2)
    made, generator = history(*[0.0] * 5, *[0.5] * 5), np.random.default_rng(1)
    drawn = []
    for _ in range(1000):
        row = made.choose(generator)
        made.draw(row)
        made.note(row, 0.0 if row < 5 else 0.5)
        drawn.append(row)
    gaps = np.diff([turn for turn, row in enumerate(drawn) if row == 0])
    assert 10 < gaps.mean() < 60
    assert {drawn.count(row) > 10 for row in range(10)} == {True}


def test_a_history_goes_on_after_json_as_without_it() -> None:
    made, now = history(0.3, None, 0.5, 0.123456789, 0.0, 0.5), []
    made.leave_out(1)
    saved = RowHistory(6)
    saved.restore(json.loads(json.dumps(made.state())))
    assert saved.state() == made.state()
    assert made.state()["spreads"] == [0.3, None, 0.5, 0.123457, 0.0, 0.5]
    for of in (made, saved):
        generator = np.random.default_rng(5)
        turns = []
        for turn in range(40):
            row = of.choose(generator)
            of.draw(row)
            of.note(row, turn / 40)
            turns.append((row, of.num_visits(row)))
        now.append(turns)
    assert now[0] == now[1]
    assert made.state() == saved.state()
