"""After which steps a run saves a checkpoint: by their number, and by the clock."""

from __future__ import annotations

import time

from nemo_prorl.config import CheckpointCallbackParams


class SaveSchedule:
    """The main rank's clock decides for all ranks. It decides one step early if it can, because a checkpoint drops
    rollouts that were sampled ahead. A step that unexpectedly ends more than every_minutes after the last save is saved
    as well."""

    def __init__(self, params: CheckpointCallbackParams) -> None:
        self._every_n, self._every_s = params.every_n_train_steps, 60 * params.every_minutes
        self._saved_s = time.monotonic()
        self.by_clock: frozenset[int] = frozenset()
        """Steps of the stage after which the clock asks for a checkpoint: this one, the next one, or both."""

    def is_due(self, stage_step: int) -> bool:
        """Whether to save after this step of the stage."""
        by_number = self._every_n > 0 and stage_step % self._every_n == 0
        return by_number or stage_step in self.by_clock

    def next_by_clock(self, stage_step: int, step_s: float) -> frozenset[int]:
        """Returns the main rank's new `by_clock` at the end of this step. It contains this step if every_minutes have
        passed since the last save, and the next one if they will have passed after `step_s` more."""
        saved_ago_s = time.monotonic() - self._saved_s
        is_late = saved_ago_s >= self._every_s > 0
        if is_late or self.is_due(stage_step):
            saved_ago_s = 0.0
        will_be_late = saved_ago_s + step_s >= self._every_s > 0
        this = {stage_step} if is_late else self.by_clock & {stage_step}
        return frozenset(this | ({stage_step + 1} if will_be_late else set()))

    def note_save(self) -> None:
        """Restarts the clock, when a save begins for any reason."""
        self._saved_s = time.monotonic()
