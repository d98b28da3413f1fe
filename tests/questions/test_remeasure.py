"""Metrics of the user's for steps that are computed again: what is refused, and what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.algorithm.metrics import UpdateStatistics
from nemo_prorl.config import ConfigError
from nemo_prorl.questions.remeasure import load_metric


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"names no function: write FILE\.py:NAME"),
        ("mine.py", r"names no function"),
        ("nowhere.py:ess", r"names no function"),
        ("mine.py:gone", r"mine\.py has no function gone\."),
        ("mine.py:other", r"other in .*mine\.py takes \(a, b\): write `def other\(step, policy\)`"),
        ("broken.py:ess", r"broken\.py cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_no_metric_is_refused(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def ess(step, policy): ...\ndef other(a, b): ...\n")
    Path("broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=sentence):
        load_metric(text)


def test_a_function_says_by_its_argument_when_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def a(step, policy): return 3\ndef b(batch, policy): ...\n")
    assert [load_metric(f"{tmp_path}/mine.py:{name}").of_updates for name in "ab"] == [False, True]
    with pytest.raises(ConfigError, match="metric a returned 3: return an UpdateStatistics"):
        load_metric(f"{tmp_path}/mine.py:a").measure(None, None)  # type: ignore[arg-type]


def test_parts_are_merged_by_their_counts(tmp_path: Path) -> None:
    from tests.training.conftest import SINGLE

    (tmp_path / "mine.py").write_text("def mean(step, policy): return step\n")
    metric = load_metric(f"{tmp_path}/mine.py:mean")
    for total, count in ((6.0, 2), (1.0, 1)):
        metric.measure([UpdateStatistics(means={"my/mean": (total, count)})], None)  # type: ignore[arg-type]
    assert metric.take(SINGLE) == {"my/mean": pytest.approx(7 / 3)}
    assert metric.parts == []
    of_nothing = UpdateStatistics(means={"my/mean": (0.0, 0)}, maxima={"my/max": float("nan"), "my/one": 1.0})
    metric.measure(of_nothing, None)  # type: ignore[arg-type]
    assert metric.take(SINGLE) == {"my/one": 1.0}, "a step without such rollouts, and one without a number"
