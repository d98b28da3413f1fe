"""validation.*: held-out prompts during training."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_prorl.config.sections.checks import at_least, positive, require


@dataclass(slots=True, kw_only=True)
class ValidationConfig:
    """Held-out prompts, sampled and graded as in training."""

    interval: int = 20
    """Steps between validations; 0: only before the first and after the last step."""
    early: bool = False
    """Whether a run also validates after its steps 1, 2, 4, 8, ... below the interval, which the controller ignores."""
    num_rollouts: int = 16
    """Rollouts per prompt (ProRL: 16)."""
    temperature: float = 0.6
    """Sampling temperature of validation and `evaluate` (ProRL: 0.6)."""
    top_p: float = 0.95
    """Nucleus sampling threshold of validation and `evaluate` (ProRL: 0.95)."""
    max_prompts: int = 0
    """Prompts taken from each file, and by `evaluate` from each benchmark, evenly spaced; 0: all."""
    num_kept: int = 64
    """Rollouts per validation whose text is kept in RUN/samples/; 0: none."""

    def __post_init__(self) -> None:
        at_least("validation", self, 0, ["interval", "max_prompts", "num_kept"])
        at_least("validation", self, 1, ["num_rollouts"])
        positive("validation", self, ["temperature"])
        require(0 < self.top_p <= 1, "validation.top_p", self.top_p, "in (0, 1]")

    def is_due(self, stage_step: int) -> bool:
        """Whether a validation follows this step of a stage; its last step has one anyway."""
        return self.interval > 0 and stage_step % self.interval == 0

    def is_early(self, step: int) -> bool:
        """Whether one follows this step of the run because of `early`."""
        return self.early and step < self.interval and step.bit_count() == 1
