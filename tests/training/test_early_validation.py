"""When a run validates: at its interval, and after its first steps, which the controller ignores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.scripted_run import Run


@pytest.mark.parametrize(
    ("interval", "num_steps", "regular", "early"),
    [
        (0, 3, [0, 3], []),
        (1, 2, [0, 1, 2], []),
        (2, 3, [0, 2, 3], [1]),
        (2, 4, [0, 2, 4], [1]),
        (4, 3, [0, 3], [1, 2]),
        (5, 6, [0, 5, 6], [1, 2, 4]),
        (9, 10, [0, 9, 10], [1, 2, 4, 8]),
    ],
)
@pytest.mark.parametrize("is_early_on", [False, True])
def test_validations_are_before_the_first_at_the_interval_after_the_last_and_after_powers_of_two_below_it(
    tmp_path: Path, interval: int, num_steps: int, regular: list[int], early: list[int], is_early_on: bool
) -> None:
    run = Run(tmp_path, num_steps=num_steps, interval=interval)
    run.config.validation.early = is_early_on
    run.fit()
    measured = {
        record["step"]: "is_early_validation" in record
        for record in run.records
        if "validation/score" in record
    }
    assert [step for step, is_early in measured.items() if is_early] == early * is_early_on
    assert [step for step, is_early in measured.items() if not is_early] == regular
    assert [record["step"] for record in run.state.validation] == [*measured]
    seeds = {setting.seed for setting in run.sampler.settings if setting.top_p < 1}
    assert len(seeds) == 1, "differences between validations come from the weights"
    seen = run.state.controller["series"]["validation/logic/score"]
    assert [step for step, _ in seen] == regular, "the controller counts validations, an interval apart"


def test_a_later_stage_has_no_early_validations(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=5, interval=5)
    run.config.validation.early = True
    run.fit()
    child = run.resume()
    child.state.stage, child.state.stage_step = "second", 0
    child.fit()
    assert [record["step"] for record in run.records if "is_early_validation" in record] == [1, 2, 4]
