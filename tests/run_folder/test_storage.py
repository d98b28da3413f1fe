"""What a checkpoint takes along of its model, and the files of steps."""

from __future__ import annotations

import os
from pathlib import Path

from nemo_prorl.run_folder.storage import StepFiles, copy_model_files, replace_text, replacing_file


def test_a_model_is_copied_without_weights_and_readable_for_others(tmp_path: Path) -> None:
    source, target = tmp_path / "model", tmp_path / "checkpoint/huggingface"
    (source / "additional_chat_templates").mkdir(parents=True)
    (source / "original").mkdir()
    kept = ["additional_chat_templates/rag.jinja", "chat_template.jinja", "config.json", "tokenizer.model"]
    others = [
        "model.safetensors",
        "model.safetensors.index.json",
        "policy.json",
        "original/params.json",
        "README.md",
    ]
    for name in kept + others:
        (source / name).write_text(name)
        (source / name).chmod(0o600)
    copy_model_files(source, target)
    copies = sorted(file for file in target.rglob("*") if file.is_file())
    assert [file.relative_to(target).as_posix() for file in copies] == kept
    assert all(file.read_text() == file.relative_to(target).as_posix() for file in copies)
    (tmp_path / "new").touch()
    assert {file.stat().st_mode for file in copies} == {(tmp_path / "new").stat().st_mode}


def test_taking_back_leaves_the_files_up_to_a_step_and_nothing_that_a_kill_left_half_written(
    tmp_path: Path,
) -> None:
    files = StepFiles(tmp_path / "rollouts", ".parquet")
    for step in (1, 2, 3):
        replace_text(files.path(step, "rank0"), "whole")
    with replacing_file(files.path(2, "rank1")) as aside:
        aside.write_text("half")
        os.link(aside, tmp_path / "left")
    files.path(2, "rank1").unlink()
    os.replace(tmp_path / "left", aside)  # a kill -9 before the file is whole leaves it
    files.take_back(2)
    assert sorted(path.name for path in files.folder.iterdir()) == [
        "step-00000001-rank0.parquet",
        "step-00000002-rank0.parquet",
    ]
    StepFiles(tmp_path / "nothing", ".parquet").take_back(0)
