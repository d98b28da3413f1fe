"""Folders with one file per step, which a run writes beside metrics.jsonl.

A run that resumes deletes the files of later steps and writes them again. So an interrupted run leaves the same files
as one that was not interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StepFiles:
    """One such folder. Example: StepFiles(run_dir / "samples", ".jsonl").path(40) is samples/step-00000040.jsonl."""

    folder: Path
    suffix: str

    def path(self, step: int, stage: str = "") -> Path:
        """Returns the path of a step's file, whether it exists or not. stage: of what several stages may write for one
        step, as a stage and the next one validate the step between them."""
        return self.folder / f"step-{step:08d}{f'-{stage}' if stage else ''}{self.suffix}"

    def all(self) -> list[tuple[int, Path]]:
        """Returns (step, file) in the order of the steps; empty if there is no folder."""
        files = sorted(self.folder.glob(f"step-*{self.suffix}"))
        return [(int(path.name.removesuffix(self.suffix).split("-")[1]), path) for path in files]

    def take_back(self, step: int) -> None:
        """Deletes the files of all steps after `step`."""
        for of_step, path in self.all():
            if of_step > step:
                path.unlink()
