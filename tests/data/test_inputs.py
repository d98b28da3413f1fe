"""What a run begins with: the names of files tell what validation will measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_prorl.config import DataConfig, ExpManagerConfig, RunConfig
from nemo_prorl.data.inputs import with_prompt_files


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ([], ["No validation: "]),
        (["held_out.jsonl"], []),
        (["link.jsonl", "held_out.jsonl"], ["link", "its validation says nothing about new problems"]),
    ],
)
def test_validation_on_nothing_or_on_training_problems_is_said(
    tmp_path: Path, validation: list[str], words: list[str]
) -> None:
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": f"1+1 ({name})", "answer": "2"}) + "\n")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "train.jsonl")
    config = RunConfig(
        data=DataConfig(
            train={str(tmp_path / "train.jsonl"): 1.0},
            validation=[str(tmp_path / name) for name in validation],
        ),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )
    said = [text for text in with_prompt_files(config)[1] if "1 row, prompts from" not in text]
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)
