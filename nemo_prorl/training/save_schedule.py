"""After which steps a run saves itself: by their number, and by the clock."""

from __future__ import annotations

import time

from nemo_prorl.config import CheckpointCallbackParams


class SaveSchedule:
    """The main rank's clock decides for all ranks. Where it can it decides a step early, because rollouts that are
    sampled ahead across a checkpoint are dropped and sampled again, and they are under way already when a step ends.
    A step that turns out to end later than every_minutes after the last save is saved all the same."""

    def __init__(self, params: CheckpointCallbackParams) -> None:
        self._every_n, self._every_s = params.every_n_train_steps, 60 * params.every_minutes
        self._saved_s = time.monotonic()
        self.by_clock: frozenset[int] = frozenset()
        """Steps of the stage that the clock wants to be followed by a checkpoint: this one, the next one, or both."""

    def is_due(self, stage_step: int) -> bool:
        """Whether a checkpoint follows this step of the stage."""
        by_number = self._every_n > 0 and stage_step % self._every_n == 0
        return by_number or stage_step in self.by_clock

    def next_by_clock(self, stage_step: int, step_s: float) -> frozenset[int]:
        """Returns what `by_clock` becomes at the end of this step, as the main rank decides it. This step joins if it
        ends every_minutes or more after the last save; the next one joins if it will, should it take `step_s` as this
        one did."""
        saved_ago_s = time.monotonic() - self._saved_s
        is_late = saved_ago_s >= self._every_s > 0
        if is_late or self.is_due(stage_step):
            saved_ago_s = 0.0
        will_be_late = saved_ago_s + step_s >= self._every_s > 0
        this = {stage_step} if is_late else self.by_clock & {stage_step}
        return frozenset(this | ({stage_step + 1} if will_be_late else set()))

    def note_save(self) -> None:
        """Restarts the clock: a save begins, for whatever reason."""
        self._saved_s = time.monotonic()
