"""Tests of `export`: which folders it accepts as a checkpoint, and the model card."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nemo_prorl import __main__ as cli
from nemo_prorl.commands.model_card import model_card, name_of
from nemo_prorl.config import CheckpointCallbackParams, ConfigError
from nemo_prorl.engines.megatron import conversion
from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.benchmark import ScoreMetric
from nemo_prorl.run_folder.storage import step_files, write_manifest
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
    for name, parent, model in (("warm", "", str(hf)), ("first", "warm", "unused")):
        options = {
            "stage": {"name": name, "parent": parent},
            "model": {"path": model},
            "trainer": {"prompts_per_step": 8, "num_steps": 30, "learning_rate": 2e-6},
            "sampler": {"num_rollouts": 4, "max_response_tokens": 512},
            "algorithm": {"kl_beta": 1e-4, "advantage": "group_std", "objective": "clip"},
            "data": {"train": {f"{folder.parent}/sums/train.parquet": 1.0, f"data/{name}.jsonl": 0.5}},
        }
        (folder / "stages" / f"{name}.yaml").write_text(yaml.safe_dump(options))
    (folder / "validations").mkdir()
    pq.write_table(
        pa.table({"uid": list("abcd"), "reward_mean": [0.0, 0.5, 1.0, 0.5]}),
        step_files(folder, "validations").path(20, "first"),
    )
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
        state.validation.append(
            {"step": step, "reward": step / 40, "math/pass_at_1": 0.25, "num_rollouts": 1024.0}
        )
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
    assert cli.main(["export", str(run_dir), str(out), "--dtype", "bf16"]) == 0
    said = capsys.readouterr().out
    assert f"from {run_dir}/checkpoints/step-00000020-first" in said
    assert "step-00000020-first" in said
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    card = (out / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "prorl"],
    }, "a local folder is no model of the hub"
    for line in (
        "| run | sums |", "| base model | Base-1B |", "| stage | first |",
        "| step | 20 (20 of this stage) |", "| optimizer updates | 80 |",
        "| resets | 2, the last after step 10 |", "| nemo_prorl | commit abc123 |",
        "| torch | 2.13.0 |", "| reward | 0.5000 |", "| math/pass_at_1 | 0.2500 |",
        "| num_rollouts | 1,024 |", "## Held-out scores at step 20",
        "| warm | 30 | 8 x 4 | 512 | 2e-06 | 0.0001 | advantage group_std, objective clip |",
        "| sums/train.parquet | 1 in warm, 1 in first |", "| data/first.jsonl | 0.5 in first |",
    ):  # fmt: skip
        assert line in text
    assert text.index("| warm | 30 |") < text.index("| first | 30 |")
    low, high = re.search(r"4 prompts: 0.5000, 95 % interval (\S+) to (\S+) ", text).groups()
    assert 0 <= float(low) < 0.5 < float(high) <= 1
    assert str(tmp_path) not in card, "paths of a machine are nobody's business"
    assert str(run_dir.parent) not in card
    shutil.copytree(run_dir, tmp_path / "damaged")
    step_files(tmp_path / "damaged", "validations").path(20, "first").write_bytes(b"PAR1")
    (tmp_path / "damaged" / "stages" / "first.yaml").write_bytes(bytes(99))
    assert "95 % interval" not in model_card(tmp_path / "damaged" / "checkpoints" / "step-00000020-first")
    assert cli.main(["export", str(run_dir), str(out)]) == 2
    assert f"OUT={out} exists: write a folder that does not exist yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/Base-1B", "Base-1B"),
        ("models/Base-1B/", "Base-1B"),
        (
            "/home/.cache/huggingface/hub/models--Qwen--Qwen2.5-1.5B/snapshots/8faed761d45a",
            "Qwen/Qwen2.5-1.5B",
        ),
        ("hub/models--gpt2/snapshots/607a30d783df", "gpt2"),
    ],
)
def test_a_base_model_from_the_hubs_cache_has_its_name_there(path: str, name: str) -> None:
    """The folder's name is a commit."""
    assert name_of(path) == name


def test_evaluations_are_in_the_card_with_their_intervals(run_dir: Path, tmp_path: Path) -> None:
    one = results.BootstrapMean(value=0.25, low=0.125, high=0.5)
    found = results.BenchmarkResult(
        name="aime24", metric=ScoreMetric.pass_at_1, score=one, pass_at_k={8: one}, reward=0.25, num_prompts=4,
        num_too_long=0, num_samples=16, num_missing=0, response_tokens={"mean": 9.0, "p50": 9.0, "p99": 9.0},
        no_eos_share=0.0,
        prompts={"a": results.PromptResult(source="a", num_samples=16, num_correct=4, reward=0.25)},
    )  # fmt: skip
    results.write(tmp_path / "results.json", {"title": "Evaluation of sums-20"}, [found])
    checkpoint = run_dir / "checkpoints" / "step-00000020-first"
    card = model_card(checkpoint, [tmp_path])
    section = card[card.index("## Evaluation of sums-20") :]
    assert all(part in section for part in ("aime24", "25.00", "12.50 to 50.00"))
    with pytest.raises(ConfigError, match="not the folder of a finished evaluation"):
        model_card(checkpoint, [tmp_path / "none"])


def test_what_was_imported_has_no_run_to_tell_of(run_dir: Path) -> None:
    assert model_card(run_dir / "checkpoints" / "step-00000010-first" / "policy") == ""


def test_damage_and_other_folders_are_one_sentence(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> str:
        assert cli.main(["export", str(folder), str(tmp_path / "out")]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    copy = shutil.copytree(run_dir / "checkpoints" / "step-00000010-first", tmp_path / "copy")
    shard = next(copy.glob("policy/*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-7])
    assert f"{copy} is damaged (policy/{shard.name} has" in refused(copy)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "holds no whole checkpoint" in refused(tmp_path / "run")
    (tmp_path / "nothing").mkdir()
    assert "holds no complete checkpoint" in refused(tmp_path / "nothing")
    other = shutil.copytree(run_dir / "checkpoints" / "step-00000010-first", tmp_path / "other")
    file = other / "huggingface" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 64}))
    write_manifest(other, {})
    assert "they belong to different models" in refused(other)
