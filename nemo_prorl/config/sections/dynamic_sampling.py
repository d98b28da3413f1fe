"""dynamic_sampling.*: which prompts are replaced because they teach nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nemo_prorl.config.sections.checks import at_least, require


class InformativeBy(Enum):
    score = "score"
    reward = "reward"


@dataclass(slots=True, kw_only=True)
class DynamicSamplingConfig:
    """DAPO's dynamic sampling: prompts whose rollouts are all equally good teach nothing and are replaced."""

    enabled: bool = True
    """Whether uninformative groups are replaced. false trains on every sampled prompt."""
    by: InformativeBy = InformativeBy.score
    """What has to differ within a group. score: the task's score (ProRL, DAPO); reward: the reward after shaping, so
    that length penalties alone can make a group informative."""
    max_rounds: int = 8
    """Maximum number of rounds of a step. A step ends after two if they find no informative group at all."""
    oversample: float = 1.12
    """Prompts of a round, as a multiple of the missing groups divided by the recent share of informative groups, but at
    most four for each missing group. Surplus groups are sampled in vain, missing ones cost another round."""
    min_fill: float = 0.5
    """Share of a step's groups that is enough to train on when max_rounds is reached; with less the stage is done
    (`saturated`) or fails."""

    def __post_init__(self) -> None:
        at_least("dynamic_sampling", self, 1, ["max_rounds", "oversample"])
        require(0 <= self.min_fill <= 1, "dynamic_sampling.min_fill", self.min_fill, "in [0, 1]")
