"""A writer of a scripted policy's checkpoints, shared by several tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_prorl.config import BestMode, CheckpointCallbackParams
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.checkpoint import CheckpointWriter
from nemo_prorl.types import RunState
from tests.training.conftest import SINGLE, ScriptedPolicy


def writer(
    tmp_path: Path,
    *,
    keep: int = 2,
    best: int = 0,
    mode: str = "max",
    asynchronous: bool = False,
    ranks: Any = SINGLE,
) -> CheckpointWriter:
    return CheckpointWriter(
        tmp_path / "run",
        model_dir=tmp_path / "model",
        params=CheckpointCallbackParams(
            save_last_k=keep, save_top_k=best, mode=BestMode(mode), async_save=asynchronous
        ),
        ranks=ranks,
        provenance={"commit": "abc"},
    )


def save(
    tmp_path: Path, step: int, stage: str = "main", *, policy: Any = None, keep: int = 2, **state: Any
) -> Path:
    return writer(tmp_path, keep=keep).save(
        policy or ScriptedPolicy(weight=float(step)),
        RunState(stage=stage, step=step, stage_step=step, **state),
    )


def found(tmp_path: Path) -> list[tuple[str, int]]:
    return [(c.state.stage, c.state.step) for c in find_checkpoints(tmp_path / "run")]


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
