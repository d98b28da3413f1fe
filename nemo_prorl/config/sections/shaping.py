"""shaping.*: how a score becomes the reward."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_prorl.config.sections.checks import ConfigError, at_least, require


@dataclass(slots=True, kw_only=True)
class LengthPenaltyConfig:
    """ProRL v2's cosine length penalty: weight x (a length reward that falls along half a cosine from `shortest` to
    `longest`) is added to every reward, by turns on and off."""

    weight: float = 0.0
    """Weight of the length reward, which ProRL v2 does not state; 0: off."""
    shortest: float = 0.0
    """Length reward of an empty response; ProRL v2 states no value."""
    longest: float = -1.0
    """Length reward of a response with the maximum number of tokens; ProRL v2 states no value."""
    on_updates: int = 100
    """Optimizer updates for which the penalty is on, from the first stage's first update (ProRL v2: 100)."""
    off_updates: int = 500
    """Optimizer updates for which it is then off (ProRL v2: 500); 0: always on."""

    def __post_init__(self) -> None:
        at_least("shaping.length_penalty", self, 0, ["weight", "off_updates"])
        at_least("shaping.length_penalty", self, 1, ["on_updates"])
        if self.longest > self.shortest:
            raise ConfigError(
                f"shaping.length_penalty.longest={self.longest:g} would reward long responses more than short ones: "
                f"write at most shaping.length_penalty.shortest={self.shortest:g}."
            )


@dataclass(slots=True, kw_only=True)
class ShapingConfig:
    """How a score becomes the reward; docs/algorithm.md has the formulas."""

    termination_factor: float = 1.0
    """Factor on the score of a rollout without end-of-sequence; 1: off. ProRL penalises them in runs 4 and 5 without
    saying how; our runs 4 to 8 have 0."""
    malformed_thought_factor: float = 1.0
    """Factor on the score of a rollout whose reasoning is not exactly one closed thought; 1: off."""
    overlong_buffer_share: float = 0.0
    """Share of sampler.max_response_tokens, at its end, in which a response is penalised, linearly more the longer it
    is (DAPO eq. 13: 0.2); 0: off."""
    overlong_penalty: float = 1.0
    """Penalty at the end of that share (DAPO: 1, for rewards of -1 and 1)."""
    overlong_filtering: bool = False
    """Excludes rollouts that ran out of tokens from the loss (DAPO section 3.4). They still count in their group's mean
    and standard deviation."""
    length_penalty: LengthPenaltyConfig = field(default_factory=LengthPenaltyConfig)

    def __post_init__(self) -> None:
        for name in ("termination_factor", "malformed_thought_factor", "overlong_buffer_share"):
            require(0 <= getattr(self, name) <= 1, f"shaping.{name}", getattr(self, name), "in [0, 1]")
        at_least("shaping", self, 0, ["overlong_penalty"])
