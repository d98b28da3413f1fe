"""`make stories` and `make recipes`: every arm composes, and a mistake is said before anything is trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nemo_prorl.compose import compose

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from bench_stories import COMPARISONS  # noqa: E402


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_every_arm_composes_and_no_two_are_the_same(comparison: str) -> None:
    arms = COMPARISONS[comparison]
    configs = [
        compose("stories", ["model.path=x", *arm.overrides], conf_dir=ROOT / "conf") for arm in arms.values()
    ]
    assert all(one != other for index, one in enumerate(configs) for other in configs[:index])
    assert len({config.trainer.num_steps for config in configs}) == 1
    assert len({arm.colour for arm in arms.values()}) == len(arms)


def test_an_unknown_arm_is_one_sentence() -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "bench_stories.py"),
        "recipes",
        ".",
        "--arms",
        "prorl3",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 2
    assert "recipes has no arm prorl3" in ended.stderr
    assert "Traceback" not in ended.stderr
