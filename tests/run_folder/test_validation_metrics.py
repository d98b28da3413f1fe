"""The two means of a validation."""

from __future__ import annotations

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, check_monitor, domain_mean

WHOLE = {"validation/score": 0.5, "validation/pass_at_1": 0.5} | {
    f"validation/{domain}/{name}": 0.5
    for domain in ("code", "math")
    for name in ("num_prompts", "score", "pass_at_1")
}
NO_CODE = {name: value for name, value in WHOLE.items() if "code" not in name} | {
    "validation/code/num_prompts": 0.0
}


@pytest.mark.parametrize(
    "monitor", ["validation/scores", "validation/stem/score", "validation/code/domain_mean_score"]
)
def test_a_metric_that_no_validation_has_is_refused(monitor: str) -> None:
    with pytest.raises(
        ConfigError, match=f"monitor={monitor} is not measured: write one of validation/score"
    ):
        check_monitor(monitor, WHOLE | {DOMAIN_MEAN: 0.5})


@pytest.mark.parametrize(
    ("monitor", "measured", "is_said"),
    [
        (DOMAIN_MEAN, WHOLE | {DOMAIN_MEAN: 0.5}, False),
        ("reward/mean", WHOLE, False),
        ("validation/scores", {}, False),  # no validation
        ("validation/math/score", NO_CODE, False),
        (DOMAIN_MEAN, NO_CODE, True),
        ("validation/code/pass_at_1", NO_CODE, True),
    ],
)
def test_a_domain_that_the_service_did_not_grade_is_no_mistake_of_the_user(
    monitor: str, measured: dict[str, float], is_said: bool
) -> None:
    assert (f"has no {monitor}, because the reward service" in check_monitor(monitor, measured)) is is_said


def test_every_domain_counts_the_same_however_many_prompts_it_has() -> None:
    """With IFEval's 541 prompts and AIME's 30, the mean over prompts is nearly that of IFEval alone."""
    summary = {
        "reward": (541 * 0.9 + 30 * 0.1) / 571,
        "instruction/score": 0.9,
        "instruction/num_prompts": 541.0,
        "math/score": 0.1,
        "math/num_prompts": 30.0,
    }
    assert domain_mean(summary) == pytest.approx(0.5)


def test_the_mean_of_fewer_domains_is_not_passed_off_as_that_of_all() -> None:
    """The service graded nothing of one domain."""
    assert domain_mean({"score": 0.9, "math/num_prompts": 0.0, "code/score": 0.9}) is None
    assert domain_mean({"num_prompts": 0.0}) is None
