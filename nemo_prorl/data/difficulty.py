"""What a run knows of the rows of a prompt file, and the draw that follows it (data.mix=difficulty)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPSILON = 0.05
"""Added to every weight, which is at most 0.5 without it."""
RETEST = 0.1
"""Share of the draws that take the row sampled the longest ago."""


def draw_weights(spreads_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns 0.5 s / max(s) + EPSILON for each standard deviation s of a row's scores; NaN, which was never graded,
    weighs the most.

    It is the scale of the group's advantages before they are normalised (GRPO, arXiv 2402.03300), and vanishes for
    groups that dynamic sampling leaves out. For scores of 0 and 1 with the mean q it is sqrt(q (1 - q)).
    """
    is_known_N = ~np.isnan(spreads_N)
    largest = np.max(spreads_N, initial=0.0, where=is_known_N) or 1.0
    return np.where(is_known_N, 0.5 * spreads_N / largest, 0.5) + EPSILON


class RowHistory:
    """How often each row of a file was drawn, in which order the last time, and the spread of its scores then."""

    def __init__(self, num_rows: int) -> None:
        self._visits_N: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self._turns_N: NDArray[np.int64] = np.full(num_rows, -1)
        self._spreads_N: NDArray[np.float64] = np.full(num_rows, np.nan)
        self._is_fit_N = np.full(num_rows, True)
        """False: too long to be drawn again."""
        self._num_out_N: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        """Draws whose scores are not known yet: the row is being sampled."""
        self._num_turns = 0

    def num_visits(self, row: int) -> int:
        """Returns how often the row was drawn."""
        return int(self._visits_N[row])

    def draw(self, row: int) -> None:
        """Notes that the row is drawn, and being sampled from now on."""
        self._visits_N[row] += 1
        self._turns_N[row] = self._num_turns
        self._num_turns += 1
        self._num_out_N[row] += 1

    def leave_out(self, row: int) -> None:
        """Notes that the row is too long."""
        self._is_fit_N[row] = False

    def take_out(self, row: int) -> None:
        """Notes that the row is being sampled, which `state` does not contain."""
        self._num_out_N[row] += 1

    def note(self, row: int, spread: float | None) -> None:
        """Notes the standard deviation of the scores of a row that was sampled; None if it is not known."""
        self._num_out_N[row] -= 1
        if spread is not None:
            self._spreads_N[row] = round(spread, 6)  # as it is saved, and 0 for equal fractions

    def choose(self, generator: np.random.Generator) -> int:
        """Returns a row: with probability RETEST the one whose last draw is the longest ago, otherwise one by its
        weight. Rows that are being sampled are not chosen while there are others."""
        is_free_N = self._is_fit_N & (self._num_out_N == 0)
        weights_N = np.where(is_free_N, draw_weights(self._spreads_N), 0.0)
        if generator.random() < RETEST or not is_free_N.any():
            candidates_N = is_free_N if is_free_N.any() else self._is_fit_N
            return int(np.argmin(np.where(candidates_N, self._turns_N, self._num_turns)))
        return int(generator.choice(len(weights_N), p=weights_N / weights_N.sum()))

    def state(self) -> dict[str, list[Any]]:
        """Returns what `restore` needs, as JSON-serialisable data: rows in the order of their last draw, how often each
        was drawn, and its spread. It lacks which rows are being sampled."""
        rows = np.argsort(self._turns_N, kind="stable")[np.count_nonzero(self._turns_N < 0) :]
        spreads = [None if np.isnan(spread) else float(spread) for spread in self._spreads_N[rows]]
        return {
            "rows": rows.tolist(),
            "visits": self._visits_N[rows].tolist(),
            "spreads": spreads,
            "too_long": np.flatnonzero(~self._is_fit_N).tolist(),
        }

    def restore(self, state: Mapping[str, list[Any]]) -> None:
        """Continues from `state`."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._visits_N[rows] = state["visits"]
        self._spreads_N[rows] = np.array(state["spreads"], dtype=np.float64)  # None becomes NaN
        self._turns_N[rows] = np.arange(len(rows))
        self._num_turns = len(rows)
        self._is_fit_N[np.array(state["too_long"], dtype=np.int64)] = False
