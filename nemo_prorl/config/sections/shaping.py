"""shaping.*: how a score becomes the reward."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_prorl.config.sections.checks import ConfigError, at_least, require


@dataclass(slots=True, kw_only=True)
class LengthPenaltyConfig:
    """ProRL v2's scheduled cosine length penalty: weight x (a reward that falls with the response's length, along half
    a cosine from `shortest` to `longest`) is added to the reward of every rollout. It alternates between on and off."""

    weight: float = 0.0
    """Weight of the length reward, lambda in ProRL v2, which does not state its value; 0 turns the penalty off."""
    shortest: float = 0.0
    """Length reward of an empty response, eta_max (our choice: ProRL v2 states no value, and 0 never rewards
    brevity as such)."""
    longest: float = -1.0
    """Length reward of a response with the maximum number of tokens, eta_min (our choice: ProRL v2 states no value)."""
    on_updates: int = 100
    """Optimizer updates for which the penalty is on, from the first update of the first stage (ProRL v2: 100)."""
    off_updates: int = 500
    """Optimizer updates for which the penalty is then off, before it is on again (ProRL v2: 500); 0: always on."""

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
    """Factor on the score of a rollout without end-of-sequence; 1: off (ProRL penalises such rollouts in runs 4 and 5
    without saying how; 0 in our runs 4 to 8, as in the authors' ProRL v2 scripts)."""
    malformed_thought_factor: float = 1.0
    """Factor on the score of a rollout whose reasoning is not exactly one closed thought; 1: off (NeMo RL's
    penalize_malformed_think_tag: 0)."""
    overlong_buffer_share: float = 0.0
    """Share of sampler.max_response_tokens, at its end, in which a response is penalised, linearly more the longer it
    is (DAPO eq. 13); 0: off (DAPO: 4096 of 20480 tokens, 0.2)."""
    overlong_penalty: float = 1.0
    """Penalty for a response of sampler.max_response_tokens, at the end of that share (DAPO: 1, for rewards of -1 and
    1)."""
    overlong_filtering: bool = False
    """Excludes rollouts that ran out of tokens from the loss, because their reasoning may have been right (DAPO section
    3.4, DeepScaleR, NeMo RL). They still count in their group's mean and standard deviation."""
    length_penalty: LengthPenaltyConfig = field(default_factory=LengthPenaltyConfig)

    def __post_init__(self) -> None:
        for name in ("termination_factor", "malformed_thought_factor", "overlong_buffer_share"):
            require(0 <= getattr(self, name) <= 1, f"shaping.{name}", getattr(self, name), "in [0, 1]")
        at_least("shaping", self, 0, ["overlong_penalty"])
