"""controller.*: automatic resets and ends of stages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require

ControllerMode = StrEnum("ControllerMode", ["manual", "interval", "automatic"])
ResetTo = StrEnum("ResetTo", ["current", "best"])
ControllerAction = StrEnum("ControllerAction", ["ignore", "warn", "reset", "end_stage", "stop"])
"""What a watch causes, in ascending order of severity: if several fire at one step, the most severe happens.

warn: the log says so, at most once in controller.cooldown steps, in every controller.mode; reset: the policy becomes
the reference; end_stage: the chain continues with the next stage; stop: the run saves and ends, and nothing continues
until a user has looked at it.
"""


@dataclass(slots=True, kw_only=True)
class WatchPatienceConfig:
    """Consecutive measurements of its metric that must agree before a watch of the reset controller acts."""

    sampler_mismatch: int = 2
    """Steps with a suspicious refit. Tensors that are still wrong after a second complete refit stop the run at
    once."""
    entropy_collapse: int = 20
    """Steps."""
    entropy_runaway: int = 20
    """Steps."""
    no_eos: int = 5
    """Steps."""
    response_length: int = 5
    """Steps."""
    futile_resets: int = 2
    """Resets without a new best by controller.limits.validation_plateau."""
    validation_drop: int = 2
    """Validations."""
    kl_spike: int = 3
    """Steps."""
    validation_plateau: int = 10
    """Validations without a new best; 10 are 200 steps at validation.interval=20."""
    effective_sample: int = 5
    """Steps."""

    def __post_init__(self) -> None:
        at_least("controller.patience", self, 1, [option.name for option in fields(self)])


@dataclass(slots=True, kw_only=True)
class WatchLimitsConfig:
    """The numbers with which the watches of the reset controller compare. A trend is the median of a window, which a
    value must exceed by the watch's own limit and by num_deviations."""

    sampler_mismatch: float = 3.0
    """Times the trend of the difference of log-probabilities between sampler and trainer."""
    entropy_collapse: float = 0.1
    """Share of the entropy's level."""
    entropy_runaway: float = 3.0
    """Times the entropy's level."""
    no_eos: float = 0.1
    """Share of rollouts above the trend of those without end-of-sequence."""
    response_length: float = 1.5
    """Times the trend of the mean response length."""
    validation_drop: float = 0.1
    """Standard deviations of the scores of single rollouts, because domains differ in level and scale."""
    kl_spike: float = 2.0
    """Times the trend of the KL to the reference."""
    validation_plateau: float = 0.02
    """Standard deviations of the scores of single rollouts by which a new best must exceed the old one."""
    effective_sample: float = 0.5
    """Least value of objective/effective_sample_share."""
    window: int = 40
    """Steps before the judged ones that define a trend; also the warm-up after a reset, when KL grows from 0."""
    level_steps: int = 20
    """Steps that define the entropy's level, the first of the stage, and the trend of the sampler's difference, which
    has only max_nats until there are as many."""
    num_deviations: float = 6.0
    """Robust standard deviations (1.4826 MAD, on a log scale but for no_eos) by which a trend must be exceeded."""
    validation_drop_errors: float = 4.0
    """Least drop in standard errors. The best of many validations was lucky: 3 gives a false alarm in one run of five,
    4 in one of 250."""
    min_nats: float = 1e-3
    """Difference between sampler and trainer in nats up to which nothing is suspicious; fp32 rounds to less than
    1e-5."""
    max_nats: float = 0.15
    """Difference in nats above which a step is always suspicious; bf16 shows 0.01 to 0.02, a broken refit 0.2, FP8 0.18
    (docs/gpu.md)."""

    def __post_init__(self) -> None:
        prefix = "controller.limits"
        at_least(prefix, self, 0, ["num_deviations"])
        at_least(prefix, self, 0, ["validation_drop", "validation_drop_errors", "validation_plateau"])
        at_least(prefix, self, 1, ["level_steps"])
        at_least(prefix, self, 5, ["window"])  # the spread of fewer values means little
        positive(prefix, self, ["min_nats"])
        for name in ("sampler_mismatch", "entropy_runaway", "response_length", "kl_spike"):
            require(getattr(self, name) > 1, f"{prefix}.{name}", getattr(self, name), "greater than 1")
        for name in ("entropy_collapse", "effective_sample"):
            require(0 < getattr(self, name) < 1, f"{prefix}.{name}", getattr(self, name), "in (0, 1)")
        require(0 < self.no_eos <= 1, f"{prefix}.no_eos", self.no_eos, "in (0, 1]")
        at_most = f"at least {prefix}.min_nats={self.min_nats:g}"
        require(self.max_nats >= self.min_nats, f"{prefix}.max_nats", self.max_nats, at_most)


@dataclass(slots=True, kw_only=True)
class ControllerConfig:
    """Automatic resets and ends of stages; docs/resets.md has every rule."""

    mode: ControllerMode = ControllerMode.manual
    """Who decides on resets. manual: the user, as ProRL's authors did; interval: also every controller.interval steps;
    automatic: also the watches. `request-reset` works in every mode."""
    reset_reference: bool = True
    """Whether a reset makes the policy the reference (on in ProRL)."""
    reset_optimizer: bool = True
    """Whether a reset clears the optimizer's moments (on in ProRL, off in ProRL v2)."""
    interval: int = 0
    """Steps from the last reset, or the start of the stage, to the next, except in mode manual (ProRL v2: 200 to 500);
    0: never."""
    reset_to: ResetTo = ResetTo.current
    """Which weights the policy has after a reset. current: its own; best: those of the stage's best checkpoint, with
    its reference and its optimizer moments unless these are reset."""
    cooldown: int = 50
    """Steps after a reset or the start of a stage in which no watch counts, because a reset needs time to help."""
    sampler_mismatch: ControllerAction = ControllerAction.stop
    """What it causes that the sampler does not run the trainer's weights: stop, in every controller.mode and without a
    cool-down, or ignore, with which suspicious refits are still repeated and reported."""
    entropy_collapse: ControllerAction = ControllerAction.stop
    """What it causes that the entropy has fallen to a fraction of its level at the start of the stage. A reset does not
    restore diversity: temperature, clip or entropy bonus must change."""
    entropy_runaway: ControllerAction = ControllerAction.stop
    """What it causes that the entropy has grown to a multiple of its level at the start of the stage. A policy that
    turns into noise must not become the reference."""
    no_eos: ControllerAction = ControllerAction.end_stage
    """What a jump of the share of rollouts without end-of-sequence above its trend causes (ProRL: the responses of run
    3 failed to terminate)."""
    response_length: ControllerAction = ControllerAction.end_stage
    """What a jump of the mean response length above its trend causes (ProRL: a sudden increase ended run 3)."""
    futile_resets: ControllerAction = ControllerAction.end_stage
    """What another plateau or drop causes after the stage's last resets have not led to a new best."""
    validation_drop: ControllerAction = ControllerAction.reset
    """What it causes that the held-out reward of a domain stays below its best since the last reset (ProRL: a hard
    reset when validation significantly degrades)."""
    kl_spike: ControllerAction = ControllerAction.reset
    """What a jump of the KL to the reference above its trend since the last reset causes (ProRL: a hard reset)."""
    validation_plateau: ControllerAction = ControllerAction.reset
    """What it causes that the held-out reward has no new best (ProRL: a hard reset when improvements plateau)."""
    effective_sample: ControllerAction = ControllerAction.warn
    """What it causes that the policy has moved so far from the one that sampled that few of the tokens count."""
    patience: WatchPatienceConfig = field(default_factory=WatchPatienceConfig)
    limits: WatchLimitsConfig = field(default_factory=WatchLimitsConfig)
    canary_rollouts: int = 4
    """Rollouts of a fixed prompt that every engine samples after each refit and the trainer scores; 0: none."""
    canary_tokens: int = 16
    """Maximum number of tokens of each of these rollouts."""

    def __post_init__(self) -> None:
        at_least("controller", self, 0, ["interval", "cooldown", "canary_rollouts"])
        at_least("controller", self, 1, ["canary_tokens"])
        if not (self.reset_reference or self.reset_optimizer):
            raise ConfigError(
                "controller.reset_reference=false with controller.reset_optimizer=false leaves a reset nothing to do: "
                "write true for one of the two."
            )
        if self.mode is ControllerMode.interval and self.interval == 0:
            raise ConfigError(
                "controller.mode=interval needs the steps between resets: write controller.interval=300, for example."
            )
        require(
            self.sampler_mismatch in (ControllerAction.stop, ControllerAction.ignore),
            "controller.sampler_mismatch",
            self.sampler_mismatch.name,
            "stop or ignore: neither a reset nor another stage gives the sampler other weights",
        )
