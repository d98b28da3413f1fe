"""controller.*: automatic resets and ends of stages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require


class ControllerMode(Enum):
    manual = "manual"
    interval = "interval"
    automatic = "automatic"


class ValidationMean(Enum):
    domains = "domains"
    prompts = "prompts"


class ResetTo(Enum):
    current = "current"
    best = "best"


class ControllerAction(Enum):
    """What a signal causes, in ascending order of severity: if several fire at one step, the most severe happens.

    warn: the log says so, at most once in controller.cooldown steps, in every controller.mode; remix: the stage goes on
    with data.mix=difficulty, and where it has it already, this is a reset; reset: the policy becomes the reference;
    end_stage: the chain continues with the next stage; stop: the run saves and ends, and nothing
    continues until a user has looked at it.
    """

    ignore = "ignore"
    warn = "warn"
    remix = "remix"
    reset = "reset"
    end_stage = "end_stage"
    stop = "stop"


def _check_trend(prefix: str, config: object) -> None:
    at_least(prefix, config, 1, ["patience"])
    at_least(prefix, config, 5, ["window"])  # the spread of fewer values means little
    at_least(prefix, config, 0, ["num_deviations"])


@dataclass(slots=True, kw_only=True)
class ValidationDropConfig:
    """Signal: the held-out reward of a domain stays below its best since the last reset."""

    action: ControllerAction = ControllerAction.reset
    """What the signal causes (ProRL: a hard reset when validation significantly degrades)."""
    patience: int = 2
    """Consecutive validations that must show the drop."""
    margin: float = 0.1
    """Least drop, as a share of the best reward, because domains differ in level."""
    num_standard_errors: float = 4.0
    """Least drop, in standard errors of the difference. The best of many validations was lucky: 3 gives a false alarm
    in one run of five, 4 in one of 250."""

    def __post_init__(self) -> None:
        at_least("controller.validation_drop", self, 1, ["patience"])
        at_least("controller.validation_drop", self, 0, ["num_standard_errors"])
        require(0 <= self.margin < 1, "controller.validation_drop.margin", self.margin, "in [0, 1)")


@dataclass(slots=True, kw_only=True)
class ValidationPlateauConfig:
    """Signal: the held-out reward, as controller.validation_mean defines it, has no new best."""

    action: ControllerAction = ControllerAction.reset
    """What the signal causes (ProRL: a hard reset when improvements plateau)."""
    patience: int = 10
    """Consecutive validations without a new best; 10 are 200 steps at validation.interval=20."""
    min_delta: float = 0.01
    """Reward by which a new best must exceed the old one."""

    def __post_init__(self) -> None:
        at_least("controller.validation_plateau", self, 1, ["patience"])
        at_least("controller.validation_plateau", self, 0, ["min_delta"])


@dataclass(slots=True, kw_only=True)
class FutileResetsConfig:
    """Signal: another plateau or drop after the stage's last resets have not led to a new best."""

    action: ControllerAction = ControllerAction.end_stage
    """What the signal causes."""
    patience: int = 2
    """Consecutive resets, a remix included, without a new best by controller.validation_plateau.min_delta."""

    def __post_init__(self) -> None:
        at_least("controller.futile_resets", self, 1, ["patience"])


@dataclass(slots=True, kw_only=True)
class KlSpikeConfig:
    """Signal: the KL to the reference jumps above its trend since the last reset."""

    action: ControllerAction = ControllerAction.reset
    """What the signal causes (ProRL: a hard reset when KL spikes)."""
    patience: int = 3
    """Consecutive steps that must be above both limits."""
    window: int = 40
    """Steps before these that define the trend; also the warm-up after a reset, when KL grows from 0."""
    ratio: float = 2.0
    """First limit: this many times the median of the window."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations (1.4826 MAD) of log KL above the median."""

    def __post_init__(self) -> None:
        _check_trend("controller.kl_spike", self)
        require(self.ratio > 1, "controller.kl_spike.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class ResponseLengthConfig:
    """Signal: the mean response length jumps above its trend."""

    action: ControllerAction = ControllerAction.end_stage
    """What the signal causes (ProRL: a sudden increase of response length ended run 3)."""
    patience: int = 5
    """Consecutive steps that must be above both limits."""
    window: int = 40
    """Steps before these that define the trend."""
    ratio: float = 1.5
    """First limit: this many times the median of the window."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations of log length above the median."""

    def __post_init__(self) -> None:
        _check_trend("controller.response_length", self)
        require(self.ratio > 1, "controller.response_length.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class NoEosConfig:
    """Signal: the share of rollouts without end-of-sequence jumps above its trend."""

    action: ControllerAction = ControllerAction.end_stage
    """What the signal causes (ProRL: the responses of run 3 failed to terminate)."""
    patience: int = 5
    """Consecutive steps that must be above both limits."""
    window: int = 40
    """Steps before these that define the trend."""
    rise: float = 0.1
    """First limit: this much above the median share of the window."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations of the share above the median."""

    def __post_init__(self) -> None:
        _check_trend("controller.no_eos", self)
        require(0 < self.rise <= 1, "controller.no_eos.rise", self.rise, "in (0, 1]")


@dataclass(slots=True, kw_only=True)
class EntropyCollapseConfig:
    """Signal: the entropy has fallen to a fraction of its level at the start of the stage."""

    action: ControllerAction = ControllerAction.stop
    """What the signal causes. A reset does not restore diversity: temperature, clip or entropy bonus must change."""
    patience: int = 20
    """Consecutive steps that must be below the limit."""
    window: int = 20
    """First steps of the stage, whose median is the level."""
    ratio: float = 0.1
    """The limit, as a share of the level."""

    def __post_init__(self) -> None:
        at_least("controller.entropy_collapse", self, 1, ["patience", "window"])
        require(0 < self.ratio < 1, "controller.entropy_collapse.ratio", self.ratio, "in (0, 1)")


@dataclass(slots=True, kw_only=True)
class EntropyRunawayConfig:
    """Signal: the entropy has grown to a multiple of its level at the start of the stage."""

    action: ControllerAction = ControllerAction.stop
    """What the signal causes. A policy that turns into noise must not become the reference."""
    patience: int = 20
    """Consecutive steps that must be above the limit."""
    window: int = 20
    """First steps of the stage, whose median is the level."""
    ratio: float = 3.0
    """The limit, as a multiple of the level."""

    def __post_init__(self) -> None:
        at_least("controller.entropy_runaway", self, 1, ["patience", "window"])
        require(self.ratio > 1, "controller.entropy_runaway.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class EffectiveSampleConfig:
    """Signal: the policy has moved so far from the one that sampled that few of the tokens count."""

    action: ControllerAction = ControllerAction.warn
    """What the signal causes."""
    patience: int = 5
    """Consecutive steps that must be below the limit."""
    share: float = 0.5
    """The limit of objective/effective_sample_share."""

    def __post_init__(self) -> None:
        at_least("controller.effective_sample", self, 1, ["patience"])
        require(0 < self.share < 1, "controller.effective_sample.share", self.share, "in (0, 1)")


@dataclass(slots=True, kw_only=True)
class SamplerMismatchConfig:
    """Signal: the sampler does not run the trainer's weights. This is always a fault, so the signal is active in every
    controller.mode, without a cool-down."""

    action: ControllerAction = ControllerAction.stop
    """What the signal causes: stop, or ignore, with which suspicious refits are still repeated and reported."""
    patience: int = 2
    """Consecutive suspicious steps. Tensors that are still wrong after a second complete refit stop the run at once."""
    window: int = 20
    """Steps before these that define the trend; until there are as many, only max_nats counts."""
    ratio: float = 3.0
    """First limit: this many times the median difference of the window."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations of the log difference above the median."""
    min_nats: float = 1e-3
    """Mean difference of log-probabilities in nats up to which nothing is suspicious; fp32 rounds to less than 1e-5."""
    max_nats: float = 0.15
    """Mean difference in nats above which a step is always suspicious; bf16 shows 0.01 to 0.02, a broken refit 0.2."""
    canary_rollouts: int = 4
    """Rollouts of a fixed prompt that every engine samples after each refit and the trainer scores; 0: none."""
    canary_tokens: int = 16
    """Maximum number of tokens of each of these rollouts."""

    def __post_init__(self) -> None:
        prefix = "controller.sampler_mismatch"
        _check_trend(prefix, self)
        at_least(prefix, self, 0, ["canary_rollouts"])
        at_least(prefix, self, 1, ["canary_tokens"])
        positive(prefix, self, ["min_nats"])
        require(self.ratio > 1, f"{prefix}.ratio", self.ratio, "greater than 1")
        require(
            self.max_nats >= self.min_nats,
            f"{prefix}.max_nats",
            self.max_nats,
            f"at least {prefix}.min_nats={self.min_nats:g}",
        )
        require(
            self.action in (ControllerAction.stop, ControllerAction.ignore),
            f"{prefix}.action",
            self.action.name,
            "stop or ignore: neither a reset nor another stage gives the sampler other weights",
        )


@dataclass(slots=True, kw_only=True)
class ControllerConfig:
    """Automatic resets and ends of stages; docs/resets.md has every rule."""

    mode: ControllerMode = ControllerMode.manual
    """Who decides on resets. manual: the user, as ProRL's authors did; interval: also every controller.interval steps;
    automatic: also the signals. `request-reset` works in every mode."""
    reset_optimizer: bool = True
    """Whether a reset also clears the optimizer's moments (on in ProRL, off in ProRL v2)."""
    interval: int = 0
    """Steps from the last reset, or the start of the stage, to the next, except in mode manual (ProRL v2: 200 to 500);
    0: never."""
    reset_to: ResetTo = ResetTo.current
    """Which weights become the policy and the reference at a reset. current: the policy's own; best: those of the
    stage's best checkpoint, with its optimizer moments unless reset_optimizer clears them."""
    validation_mean: ValidationMean = ValidationMean.domains
    """Which mean of the held-out rewards the validation signals use: domains gives every domain the same weight,
    prompts every prompt."""
    cooldown: int = 50
    """Steps after a reset or the start of a stage in which no signal counts, because a reset needs time to help."""
    validation_drop: ValidationDropConfig = field(default_factory=ValidationDropConfig)
    validation_plateau: ValidationPlateauConfig = field(default_factory=ValidationPlateauConfig)
    futile_resets: FutileResetsConfig = field(default_factory=FutileResetsConfig)
    kl_spike: KlSpikeConfig = field(default_factory=KlSpikeConfig)
    response_length: ResponseLengthConfig = field(default_factory=ResponseLengthConfig)
    no_eos: NoEosConfig = field(default_factory=NoEosConfig)
    entropy_collapse: EntropyCollapseConfig = field(default_factory=EntropyCollapseConfig)
    entropy_runaway: EntropyRunawayConfig = field(default_factory=EntropyRunawayConfig)
    effective_sample: EffectiveSampleConfig = field(default_factory=EffectiveSampleConfig)
    sampler_mismatch: SamplerMismatchConfig = field(default_factory=SamplerMismatchConfig)

    @property
    def remixing(self) -> list[str]:
        """Returns the names of the signals whose action is remix."""
        actions = {
            option.name: getattr(getattr(self, option.name), "action", None) for option in fields(self)
        }
        return [name for name, action in actions.items() if action is ControllerAction.remix]

    def __post_init__(self) -> None:
        at_least("controller", self, 0, ["interval", "cooldown"])
        if self.mode is ControllerMode.interval and self.interval == 0:
            raise ConfigError(
                "controller.mode=interval needs the steps between resets: write controller.interval=300, for example."
            )
