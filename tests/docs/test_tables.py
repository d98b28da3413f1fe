"""Tests that each thing that somebody may add has its row on the page that lists its kind. Recipes and watches have
such tests beside their own."""

from __future__ import annotations

import re

import pytest

from nemo_prorl.config import (
    Advantage,
    Aggregation,
    CorrectionLevel,
    CorrectionMode,
    KlEstimator,
    Objective,
    RatioLevel,
)
from nemo_prorl.engines.megatron.families import FAMILIES
from reward.protocol import DOMAINS, GradeStatus
from tests.conftest import ROOT

FORMULAS = (("advantage", Advantage), ("objective", Objective), ("ratio_level", RatioLevel))
LISTED = [
    *(("algorithm.md", rf"\| `{option}={value.name}`") for option, values in FORMULAS for value in values),
    *(("algorithm.md", rf"\| `kl_estimator`.*\b{value.name}\b") for value in KlEstimator),
    *(
        ("algorithm.md", f"`{value.name}`")
        for values in (Aggregation, CorrectionLevel, CorrectionMode)
        for value in values
    ),
    *(("evaluation.md", f"`{suite.stem}`") for suite in (ROOT / "conf" / "suite").glob("*.yaml")),
    *(("reward_service.md", rf"(\w+, )?{domain}(, \w+)?") for domain in DOMAINS),
    *(("reward_service.md", f"`{status.value}`") for status in GradeStatus),
    *(("status.md", f"`{family}`") for family in FAMILIES),
]


@pytest.mark.parametrize(("page", "row"), LISTED)
def test_it_has_a_row(page: str, row: str) -> None:
    """row: a pattern of the row's beginning, or of its first cell alone."""
    wanted = row if row.startswith(r"\|") else rf"\| {row} \|"
    assert re.search(rf"^{wanted}", (ROOT / "docs" / page).read_text(), re.MULTILINE)
