"""stage.*: which link of the chain a run is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nemo_prorl.config.sections.checks import ConfigError


class StartFrom(Enum):
    last = "last"
    best = "best"


@dataclass(slots=True, kw_only=True)
class StageConfig:
    """One link of the chain of runs."""

    name: str = "main"
    """Name of this stage, after which the files of its configuration and its end are named."""
    parent: str = ""
    """Stage that this one continues; empty: it starts from model.path."""
    reset_reference: bool = True
    """Whether the policy becomes the reference at the start of a stage with a parent (ProRL's hard reset)."""
    reset_optimizer: bool = True
    """Whether optimizer moments are cleared at the start of a stage with a parent (on in ProRL, off in ProRL v2)."""
    start_from: StartFrom = StartFrom.last
    """Checkpoint of the parent that the policy is taken from: its last, as in the papers, or its best by
    exp_manager.checkpoint_callback_params.monitor. Steps, data and learning rate continue after the last in either
    case."""
    reset_data: bool = False
    """Whether every data file starts from its beginning in a stage with a parent; otherwise it continues where the
    parent stopped."""

    def __post_init__(self) -> None:
        for name in ("name", "parent"):
            value = getattr(self, name)
            if value and not value.replace("_", "").replace("-", "").isalnum():
                raise ConfigError(f"stage.{name}={value!r} must consist of letters, digits, '-' and '_'.")
        if not self.name:
            raise ConfigError("stage.name is empty: give the stage a name, such as stage.name=run1.")
        if self.name == self.parent:
            raise ConfigError(
                f"stage.parent={self.parent} names the stage itself: write the stage before it."
            )
