"""The two means of a validation."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_prorl.training.held_out import DOMAIN_MEAN, domain_mean, with_domain_mean


def test_every_domain_counts_the_same_however_many_prompts_it_has() -> None:
    """IFEval's 541 prompts against AIME's 30: the mean over prompts is hardly anything but IFEval's."""
    summary = {
        "reward": (541 * 0.9 + 30 * 0.1) / 571,
        "instruction/reward": 0.9,
        "instruction/num_prompts": 541.0,
        "math/reward": 0.1,
        "math/num_prompts": 30.0,
    }
    assert domain_mean(summary) == pytest.approx(0.5)


def test_the_mean_of_fewer_domains_is_not_passed_off_as_that_of_all() -> None:
    """The service graded nothing of one domain."""
    assert domain_mean({"reward": 0.9, "math/num_prompts": 0.0, "code/reward": 0.9}) is None
    assert domain_mean({"num_prompts": 0.0}) is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(
            {
                "step": 0,
                "validation/reward": 0.7,
                "validation/math/reward": 0.2,
                "validation/code/reward": 0.8,
            },
            0.5,
            id="computed for a record of an older version",
        ),
        pytest.param({"step": 0, "validation/reward": 0.7, DOMAIN_MEAN: 0.6}, 0.6, id="kept as recorded"),
        pytest.param({"step": 1, "reward/math/mean": 0.5}, None, id="no validation"),
        pytest.param({"step": 0, "validation/reward": 0.7}, None, id="no domains to compute it from"),
    ],
)
def test_records_get_their_mean_over_domains(record: dict[str, Any], expected: float | None) -> None:
    completed = with_domain_mean(record)
    assert completed.get(DOMAIN_MEAN) == (pytest.approx(expected) if expected is not None else None)
    assert {key: value for key, value in completed.items() if key != DOMAIN_MEAN} == {
        key: value for key, value in record.items() if key != DOMAIN_MEAN
    }
