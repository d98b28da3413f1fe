"""Tests of the distribution of response lengths, against draws from it."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_prorl.cluster.scale.lengths import SIBLING_CORRELATION, Lengths


@pytest.mark.parametrize(("mean", "limit"), [(3536, 7072), (2000, 7072), (6500, 7072), (12, 15360)])
def test_moments_are_those_of_its_draws(mean: float, limit: int) -> None:
    lengths = Lengths.with_mean(mean, limit=limit)
    drawn = lengths.draw(4000, 25, seed=1).astype(float)
    assert lengths.mean == pytest.approx(mean)
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert (drawn**2).mean() == pytest.approx(lengths.mean_square, rel=0.05)
    assert drawn.min() >= 1


def test_siblings_are_alike() -> None:
    logs = np.log(Lengths(mu=5.0, limit=10**9).draw(20_000, 2, seed=2))
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(SIBLING_CORRELATION, abs=0.02)


def test_a_seed_is_a_draw() -> None:
    lengths = Lengths.with_mean(100, limit=400)
    assert (lengths.draw(5, 4, seed=3) == lengths.draw(5, 4, seed=3)).all()
    assert (lengths.draw(5, 4, seed=3) != lengths.draw(5, 4, seed=4)).any()
