"""Tests of `export`: which folders it accepts as a checkpoint, and the model card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_prorl import __main__ as cli
from nemo_prorl.commands.export import model_card, parse_size
from nemo_prorl.config import CheckpointCallbackParams, ConfigError
from nemo_prorl.engines.megatron import conversion
from nemo_prorl.run_folder.storage import write_manifest
from nemo_prorl.training.checkpoint import CheckpointWriter
from nemo_prorl.types import RunState
from tests.engines.conftest import build_hf_model
from tests.training.conftest import SINGLE


class ImportedPolicy:
    """A policy whose checkpoint is the import of a Hugging Face folder."""

    def __init__(self, hf: Path) -> None:
        self.hf = hf
        self.directory = Path()

    def begin_save(self, directory: Path) -> ImportedPolicy:
        self.directory = directory
        return self

    def reference_hash(self) -> str:
        return "0f"

    def write(self) -> list[Path]:
        conversion.import_hf(self.hf, self.directory)
        for name in ("manifest.json", "config.json"):
            (self.directory / name).unlink()
        return []

    def finish(self) -> None: ...


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with two checkpoints of a stage and its recorded configuration."""
    folder = tmp_path_factory.mktemp("runs") / "sums"
    hf = build_hf_model(folder.parent / "Base-1B", "qwen2")
    (folder / "stages").mkdir(parents=True)
    (folder / "stages" / "first.yaml").write_text(yaml.safe_dump({"model": {"path": str(hf)}}))
    writer = CheckpointWriter(
        folder,
        model_dir=hf,
        params=CheckpointCallbackParams(async_save=False),
        ranks=SINGLE,
        provenance={"commit": "abc123", "versions": {"torch": "2.13.0"}},
    )
    state = RunState(stage="first", num_updates=80, num_resets=2, last_reset_step=10)
    for step in (10, 20):
        state.step = state.stage_step = step
        state.validation.append({"step": step, "reward": step / 40, "math/pass_at_1": 0.25})
        writer.save(ImportedPolicy(hf), state, score=step / 40)  # type: ignore[arg-type]
    return folder


@pytest.fixture(autouse=True)
def keep_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the environment, which a command changes for its process."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_a_run_is_exported_with_its_card(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hf"
    assert cli.main(["export", str(run_dir), str(out), "--dtype", "bf16", "--max-shard-size", "100KB"]) == 0
    said = capsys.readouterr().out
    assert "exporting" in said
    assert "step-00000020-first" in said
    assert len(list(out.glob("*.safetensors"))) > 2
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    card = (out / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "prorl"],
        "base_model": "Base-1B",
    }
    for line in (
        "| run | sums |", "| stage | first |", "| step | 20 (20 of this stage) |", "| optimizer updates | 80 |",
        "| resets of the reference | 2, the last after step 10 |", "| nemo_prorl | commit abc123 |",
        "| torch | 2.13.0 |", "| reward | 0.5000 |", "| math/pass_at_1 | 0.2500 |", "## Held-out scores at step 20",
    ):  # fmt: skip
        assert line in text
    assert str(tmp_path) not in card, "paths of a machine are nobody's business"
    assert str(run_dir.parent) not in card


def test_what_was_imported_has_no_run_to_tell_of(run_dir: Path) -> None:
    assert model_card(run_dir / "checkpoints" / "step-00000010-first" / "policy") == ""


def test_damage_and_other_folders_are_one_sentence(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path, *options: str) -> str:
        assert cli.main(["export", str(folder), str(tmp_path / "out"), *options]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    copy = tmp_path / "copy"
    original = run_dir / "checkpoints" / "step-00000010-first"
    for file in original.rglob("*"):
        if file.is_file():
            target = copy / file.relative_to(original)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    shard = next(copy.glob("policy/*.distcp"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-7])
    assert f"{copy} is damaged (policy/{shard.name} has" in refused(copy)
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"{copy} is damaged (policy/{shard.name} is not what was written)" in refused(copy)
    shard.write_bytes(content)
    config = json.loads((copy / "huggingface" / "config.json").read_text())
    (copy / "huggingface" / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    write_manifest(copy, {})
    assert "they belong to different models" in refused(copy)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "holds no checkpoint yet" in refused(tmp_path / "run")
    (tmp_path / "nothing").mkdir()
    assert "holds no complete checkpoint" in refused(tmp_path / "nothing")
    assert "--max-shard-size 5 is no size" in refused(run_dir, "--max-shard-size", "5")


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("1.5 MB", 1_500_000), ("2GiB", 2 << 30), ("7KiB", 7168)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "GB", "-1GB", "0MB", "5 gb", "1e3MB"])
def test_no_sizes(text: Any) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        parse_size(text)
