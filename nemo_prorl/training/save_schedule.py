"""After which steps a run saves itself: by their number, and by the clock."""

from __future__ import annotations

import time

from nemo_prorl.config import CheckpointCallbackParams


class SaveSchedule:
    """The main rank's clock decides for all ranks, and it decides a step early: no rollouts may be sampled ahead across
    a checkpoint, and they would be under way already when the step ends."""

    def __init__(self, params: CheckpointCallbackParams) -> None:
        self._every_n, self._every_s = params.every_n_train_steps, 60 * params.every_minutes
        self._saved_s = time.monotonic()
        self.by_clock = 0
        """Step of the stage after which the clock wants the next checkpoint; 0: it has not decided yet."""

    def is_due(self, stage_step: int) -> bool:
        """Whether a checkpoint follows this step of the stage."""
        by_number = self._every_n > 0 and stage_step % self._every_n == 0
        return by_number or stage_step == self.by_clock

    def next_by_clock(self, stage_step: int, step_s: float) -> int:
        """`by_clock` after this step, as the main rank decides it: the next step if, taking `step_s` too, it will end
        every_minutes or more after the last save."""
        will_be_late = time.monotonic() - self._saved_s + step_s >= self._every_s > 0
        return stage_step + 1 if will_be_late and not self.is_due(stage_step) else self.by_clock

    def note_save(self) -> None:
        """A save begins, for whatever reason."""
        self._saved_s = time.monotonic()
