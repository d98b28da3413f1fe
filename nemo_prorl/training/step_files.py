"""A folder with one file a step: what a run writes down beside metrics.jsonl.

A step that is done again after a resume replaces the file that it had written, and what lies beyond the step resumed
from is taken back. So a run that was interrupted leaves the same files as one that was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StepFiles:
    """Such a folder. Example: StepFiles(run_dir / "samples", ".jsonl").path(40) is samples/step-00000040.jsonl."""

    folder: Path
    suffix: str

    def path(self, step: int) -> Path:
        """Of a step's file, which need not be there."""
        return self.folder / f"step-{step:08d}{self.suffix}"

    def all(self) -> list[tuple[int, Path]]:
        """Steps and files in the order of the steps; empty where there is no folder."""
        files = sorted(self.folder.glob(f"step-*{self.suffix}"))
        return [(int(path.name.removeprefix("step-").removesuffix(self.suffix)), path) for path in files]

    def take_back(self, step: int) -> None:
        """The run goes on after `step`: files of later steps are deleted."""
        for of_step, path in self.all():
            if of_step > step:
                path.unlink()
