"""What low-rank training refuses, before anything heavy starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.commands.parsing import CONF_DIR
from nemo_prorl.config import ConfigError, LoraConfig
from nemo_prorl.config.compose import compose
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.run import check_same_weights
from nemo_prorl.run_folder.checkpoints import Checkpoint
from nemo_prorl.training.stages import StartingPoint
from nemo_prorl.types import RunState


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["controller.reset_optimizer=false"], r"controller\.reset_optimizer=false: .* write .*=true, or "),
        (
            ["stage.parent=run1", "stage.reset_optimizer=false"],
            r"stage\.reset_optimizer=false: another reference begins new factors, .* write stage\.reset_optimizer=true",
        ),
        (["+model.megatron.overlap_grad_reduce=true"], r"overlap_grad_reduce=true: .* leave it out\."),
        (["lora.alpha=-1"], r"lora\.alpha=-1"),
        (["lora.targets=embedding"], r"lora\.targets"),
        (["lora.rank=0", "lora.alpha=16"], r"lora\.alpha=16 without lora\.rank would train all weights"),
        (["lora.rank=0", "lora.targets=mlp"], r"lora\.targets=mlp without lora\.rank"),
    ],
)
def test_what_cannot_be_combined_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose("laptop", ["lora.rank=8", *overrides], conf_dir=CONF_DIR)
    if not overrides[0].startswith("lora."):
        compose("laptop", overrides, conf_dir=CONF_DIR)


def test_the_scale_is_1_unless_alpha_says_otherwise() -> None:
    assert [LoraConfig(rank=8, alpha=alpha).scale for alpha in (0, 8, 32)] == [1.0, 1.0, 4.0]
    assert LoraConfig().recorded == {}


def a_start(folder: Path, lora: dict[str, Any], *, is_resume: bool) -> StartingPoint:
    (folder / "policy").mkdir()
    (folder / "policy" / CHECKPOINT_MARK).write_text(json.dumps({"precision": "fp32", "lora": lora}))
    checkpoint = Checkpoint(
        path=folder, state=RunState(stage="run1", step=7), reference_hash="", score=None, monitor=""
    )
    return StartingPoint(checkpoint=checkpoint, is_resume=is_resume)


RANK_4 = LoraConfig(rank=4).recorded


@pytest.mark.parametrize(
    ("saved", "rank", "is_resume", "overrides", "must_say"),
    [
        (RANK_4, 4, True, [], ""),
        (RANK_4, 8, True, [], r"trained rank 4, scale 1\.0, .* write the same lora\.\* options\.$"),
        ({}, 4, True, [], r"trained all weights, .* write the same lora"),
        (RANK_4, 0, True, [], "trained rank 4"),
        (RANK_4, 8, False, [], ""),  # the stage begins with a reset
        ({}, 8, False, [], ""),
        (RANK_4, 4, False, ["stage.reset_reference=false"], ""),
        (
            RANK_4,
            8,
            False,
            ["stage.reset_reference=false"],
            r"stage\.reset_reference=true stage\.reset_optimizer=true\.$",
        ),
    ],
)
def test_other_factors_are_refused_unless_the_stage_begins_with_a_reset(
    saved: dict[str, Any], rank: int, is_resume: bool, overrides: list[str], must_say: str, tmp_path: Path
) -> None:
    stage = ["stage.name=run2", "stage.parent=run1", f"lora.rank={rank}", *overrides]
    config, start = compose("laptop", stage, conf_dir=CONF_DIR), a_start(tmp_path, saved, is_resume=is_resume)
    if not must_say:
        check_same_weights(config, start)
        return
    with pytest.raises(ConfigError, match=f"step 7 of stage run1, .*{must_say}"):
        check_same_weights(config, start)


@pytest.mark.parametrize("is_resume", [False, True])
def test_another_precision_than_the_checkpoints_is_refused(is_resume: bool, tmp_path: Path) -> None:
    """Even if the stage begins with a reset: the reference would not be the one that was saved."""
    stage = ["stage.name=run2", "stage.parent=run1", "model.precision=bf16"]
    start = a_start(tmp_path, {}, is_resume=is_resume)
    with pytest.raises(
        ConfigError, match=r"step 7 of stage run1, which .* fp32: write model\.precision=fp32"
    ):
        check_same_weights(compose("laptop", stage, conf_dir=CONF_DIR), start)
