"""`replay`: when a watch with other numbers would have fired on a recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl import __main__ as cli
from tests.training.control.controller_runs import columns

OPTIONS = [
    "controller.limits.window=5",
    "controller.patience.kl_spike=2",
    "controller.limits.num_deviations=3",
]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    """A run of seven steps whose KL jumps fivefold at the sixth, and a damaged line."""
    records = columns(objective__kl_to_reference=[0.1] * 5 + [0.5, 0.5])
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps(record) + "\n" for record in [*records[:3], [1], *records[3:]]), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    ("options", "fires"),
    [
        (["controller.cooldown=0"], ["step     7  reset      kl_spike: KL to the reference 0.5 nats"]),
        (["controller.cooldown=0", "controller.limits.kl_spike=6"], []),
        (["controller.cooldown=0", "controller.kl_spike=ignore"], []),
        (["controller.cooldown=8"], []),
        (["controller.mode=interval", "controller.interval=3"], ["step     4  reset", "step     7  reset"]),
    ],
)
def test_decisions_with_other_options(
    metrics: Path, options: list[str], fires: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for what in (metrics, metrics.parent):
        assert cli.main(["replay", str(what), *OPTIONS, *options]) == 0
        said.append(capsys.readouterr().out)
    head, *lines, unjudged = said[0].splitlines()
    assert said[0] == said[1]
    assert head.endswith(": 7 records, and 1 damaged line(s), which are left out")
    assert len(lines) == max(1, len(fires))
    assert all(line.startswith(text) for line, text in zip(lines, fires or ["no decision"], strict=True))
    assert "validation_drop (validation)" in unjudged
    assert "kl_spike" not in unjudged


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "holds no line with a step and a stage: write the metrics.jsonl, or the folder, of a run"),
        ("", "holds no line"),
        ('{"loss": 1}\n', "holds no line"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, content: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    assert cli.main(["replay", str(path)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
