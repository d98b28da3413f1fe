"""Checkpoints: written aside, renamed when whole, found again, and cleared away when newer ones exist.

    RUN/checkpoints/step-00000040-STAGE/
        state.json      the run state, and what wrote it
        policy/         weights, optimizer, reference, random states (Megatron's distributed checkpoint)
        huggingface/    config and tokenizer of the model, so that a checkpoint can be exported on its own

A folder without state.json does not exist: state.json is written last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Policy
from nemo_prorl.types import RunState

STATE_FILE = "state.json"
POLICY_FOLDER = "policy"
MODEL_FOLDER = "huggingface"
REPLACED = ".replaced"
"""Suffix of a checkpoint while a newer one of the same step takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: RunState

    @property
    def policy(self) -> Path:
        return self.path / POLICY_FOLDER


def checkpoint_name(state: RunState) -> str:
    """Of its folder. The stage is in it: two stages may stand at the same step."""
    return f"step-{state.step:08d}-{state.stage}"


def find_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Whole checkpoints of a run, oldest first."""
    found = []
    for path in sorted((run_dir / "checkpoints").glob("step-*")):
        is_replaced = path.suffix == REPLACED and path.with_suffix("").exists()
        if (path / STATE_FILE).is_file() and not is_replaced:
            record = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
            found.append(Checkpoint(path=path, state=RunState(**record["state"])))
    return sorted(found, key=lambda checkpoint: checkpoint.state.step)


class CheckpointWriter:
    """Saves the run; every rank calls `save` at the same step."""

    def __init__(
        self, run_dir: Path, *, model_dir: Path, keep: int, ranks: Ranks, provenance: dict[str, Any]
    ) -> None:
        self._folder = run_dir / "checkpoints"
        self._model_dir = model_dir
        self._keep = keep
        self._ranks = ranks
        self._provenance = provenance

    def save(self, policy: Policy, state: RunState) -> Path:
        """The final folder. On return it is whole; a crash before leaves the previous checkpoints as they were."""
        final = self._folder / checkpoint_name(state)
        aside = self._folder / f".writing-{final.name}"
        if self._ranks.layout.is_main:
            shutil.rmtree(aside, ignore_errors=True)
            (aside / POLICY_FOLDER).mkdir(parents=True)
            copy_model_files(self._model_dir, aside / MODEL_FOLDER)
        self._ranks.barrier()
        policy.save(aside / POLICY_FOLDER)
        self._ranks.barrier()
        if self._ranks.layout.is_main:
            record = {"state": asdict(state), "provenance": self._provenance}
            (aside / STATE_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")
            _replace(aside, final)
            self._clear_old(state.stage)
        self._ranks.barrier()
        return final

    def _clear_old(self, stage: str) -> None:
        """Keeps the newest of this stage, and the last of every other: what a later stage may begin from."""
        by_stage: dict[str, list[Checkpoint]] = {}
        for checkpoint in find_checkpoints(self._folder.parent):
            by_stage.setdefault(checkpoint.state.stage, []).append(checkpoint)
        for name, checkpoints in by_stage.items():
            for checkpoint in checkpoints[: -self._keep if name == stage else -1]:
                shutil.rmtree(checkpoint.path)


def _replace(aside: Path, final: Path) -> None:
    """A stage that ends as saturated saves the step of its last checkpoint again: at no time is there neither."""
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.replace(final, replaced)
    os.replace(aside, final)
    shutil.rmtree(replaced, ignore_errors=True)


def copy_model_files(source: Path, target: Path) -> None:
    """Config, generation config, tokenizer and chat template: everything but weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in {".json", ".txt", ".model", ".jinja"} and "safetensors" not in file.name:
            shutil.copy2(file, target / file.name)


def last_of_stage(checkpoints: Sequence[Checkpoint], stage: str) -> Checkpoint | None:
    """The newest checkpoint that the stage wrote."""
    return next((checkpoint for checkpoint in reversed(checkpoints) if checkpoint.state.stage == stage), None)
