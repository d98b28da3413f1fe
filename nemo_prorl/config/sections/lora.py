"""lora.*: low-rank training, whose hard reset is a merge (docs/lora.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from nemo_prorl.config.sections.checks import ConfigError, at_least


class LoraTargets(Enum):
    all = "all"
    attention = "attention"
    mlp = "mlp"


@dataclass(slots=True, kw_only=True)
class LoraConfig:
    """Trains a low-rank difference to the reference, W = reference + (alpha / rank) B A (LoRA, arXiv 2106.09685, eq.
    3), instead of all weights. A reset merges the difference into the reference and begins a new one."""

    rank: int = 0
    """Columns of B and rows of A; 0: all weights are trained."""
    alpha: float = 0.0
    """Numerator of the scale alpha / rank; 0: the rank, so that the scale is 1."""
    targets: LoraTargets = LoraTargets.all
    """Matrices that get a difference: attention (queries, keys, values, output), mlp (gate, up, down), or all.
    Embedding, head, norms and biases stay as they are."""

    def __post_init__(self) -> None:
        at_least("lora", self, 0, ["rank", "alpha"])
        if not self.rank and (self.alpha or self.targets is not LoraTargets.all):
            name, value = ("alpha", f"{self.alpha:g}") if self.alpha else ("targets", self.targets.name)
            raise ConfigError(
                f"lora.{name}={value} without lora.rank would train all weights: write a rank as well, such as "
                "lora.rank=32, or leave it out."
            )

    @property
    def scale(self) -> float:
        """Returns the factor of B A."""
        return self.alpha / self.rank if self.alpha else 1.0

    @property
    def recorded(self) -> dict[str, Any]:
        """Returns what a checkpoint notes of the factors that it holds; empty if all weights are trained."""
        if not self.rank:
            return {}
        return {"rank": self.rank, "scale": self.scale, "targets": self.targets.name}
