"""What a checkpoint takes along of its model."""

from __future__ import annotations

from pathlib import Path

from nemo_prorl.run_folder.storage import copy_model_files


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
