"""reward.* and shaping.*: where scores come from, and how a score becomes the reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from re import fullmatch
from urllib.parse import urlsplit

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require

FUNCTION_END_S = 10.0
"""Seconds after its time limit by which a reward function's process has certainly been killed."""
SERVICE = "service"
"""Name of the reward service in reward.weights, beside those of reward functions."""


@dataclass(slots=True, kw_only=True)
class RewardConfig:
    """Where the reward service is, which functions grade beside or instead of it, and what a failure means."""

    urls: list[str] = field(default_factory=list)
    """URLs of reward servers; empty: found through discovery_dir."""
    discovery_dir: str = ""
    """Folder in which reward servers announce themselves; if it and urls are empty, `train` starts a service of its
    own."""
    token_file: str = ""
    """File with the bearer token; servers that do not listen on the loopback interface require one."""
    request_timeout_s: float = 120.0
    """Timeout of one grading request in seconds, queueing included."""
    max_attempts: int = 5
    """Attempts at one grading request, on different servers if there are several."""
    ready_timeout_s: float = 120.0
    """Seconds that a run waits for the service before its first step."""
    max_failed_share: float = 0.01
    """Share of a step's rollouts that may be dropped because grading them failed; more stops the run."""
    function: list[str] = field(default_factory=list)
    """Python functions that grade instead of the service, each written FILE.py:NAME (docs/custom_rewards.md)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weight by function name in the sum that is the reward (default 1); `service` stands for the service's score, and
    0 records a value without using it."""
    function_batch: int = 64
    """Maximum number of responses that a function gets in one call."""
    function_timeout_s: float = 60.0
    """Seconds that one call of a function may take; after that its responses count as not graded."""

    def __post_init__(self) -> None:
        positive("reward", self, ["request_timeout_s", "ready_timeout_s", "function_timeout_s"])
        at_least("reward", self, 1, ["max_attempts", "function_batch"])
        require(
            0 <= self.max_failed_share <= 1, "reward.max_failed_share", self.max_failed_share, "in [0, 1]"
        )
        for url in self.urls:
            try:
                _ = urlsplit(url).port
            except ValueError as error:
                raise ConfigError(f"reward.urls names {url}, which has no usable port: {error}.") from None
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"reward.urls names {url}, which is no URL: write http://HOST:PORT.")
        names = [self.function_name(text) for text in self.function]
        for name in names:
            if name == SERVICE:
                raise ConfigError(
                    f"reward.function names a function {SERVICE}, which stands for the reward service in "
                    "reward.weights and in metrics: give the function another name."
                )
            if names.count(name) > 1:
                raise ConfigError(
                    f"reward.function names two functions {name}, and metrics tell functions apart by name: give one "
                    "of them another name."
                )
        known = [*names, SERVICE]
        for name in self.weights:
            if not names or name not in known:
                hint = "reward.function is empty: write the functions there, or leave the weight out."
                if names:
                    hint = f"the names are {', '.join(names)} and {SERVICE}."
                raise ConfigError(f"reward.weights.{name} names no function; {hint}")
        if names and not any(self.weight(name) for name in known if name != SERVICE or self.asks_service):
            raise ConfigError(
                "every weight in reward.weights is 0, so every reward would be 0: write another one."
            )

    @staticmethod
    def function_name(text: str) -> str:
        """Returns NAME of FILE.py:NAME. Raises ConfigError for any other text."""
        match = fullmatch(r".+\.py:([^\W\d]\w*)", text)
        if match is None:
            raise ConfigError(
                f"reward.function={text} is not of the form FILE.py:NAME: write the file and the function's name, such "
                "as my_reward.py:score."
            )
        return match[1]

    @property
    def asks_service(self) -> bool:
        """Returns whether the reward service grades: alone, or with a weight beside functions."""
        return not self.function or SERVICE in self.weights

    @property
    def names_servers(self) -> bool:
        """Returns whether the service runs already, at `urls` or as `discovery_dir` says."""
        return bool(self.urls or self.discovery_dir)

    @property
    def starts_service(self) -> bool:
        """Returns whether a run has to start a service of its own."""
        return self.asks_service and not self.names_servers

    def weight(self, name: str) -> float:
        """Returns the weight of a function, or of the service, in the reward."""
        return self.weights.get(name, 1.0)


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
