"""controller.*: automatic resets and ends of stages."""

from __future__ import annotations

from dataclasses import dataclass, field
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

    reset: the policy becomes the reference; end_stage: the chain continues with the next stage; stop: the run saves and
    ends, and nothing continues until a user has looked at it.
    """

    ignore = "ignore"
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
    """What the signal causes (ProRL: a hard reset when validation significantly degrades, at the end of run 1)."""
    patience: int = 2
    """Consecutive validations that must show the drop (our choice: a single one may be bad luck)."""
    margin: float = 0.1
    """Least drop, as a share of the best reward (our choice: relative, because domains differ in level)."""
    num_standard_errors: float = 4.0
    """Least drop, in standard errors of the difference (our choice, because the best of many validations was lucky: of
    simulated runs without any change one in five had a false alarm at 3, and one in 250 at 4, docs/controller.md)."""

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
    """Consecutive validations without a new best (our choice: 200 steps at validation.interval=20, ProRL v2's shortest
    interval)."""
    min_delta: float = 0.01
    """Reward by which a new best must exceed the old one (our choice: one point of pass@1)."""

    def __post_init__(self) -> None:
        at_least("controller.validation_plateau", self, 1, ["patience"])
        at_least("controller.validation_plateau", self, 0, ["min_delta"])


@dataclass(slots=True, kw_only=True)
class FutileResetsConfig:
    """Signal: another plateau or drop after the stage's last resets have not led to a new best."""

    action: ControllerAction = ControllerAction.end_stage
    """What the signal causes (our choice: the next stage may help where resets do not; those of ProRL have a longer
    context, or more samples)."""
    patience: int = 2
    """Consecutive resets without a new best by controller.validation_plateau.min_delta (our choice: one may have come
    at a bad moment)."""

    def __post_init__(self) -> None:
        at_least("controller.futile_resets", self, 1, ["patience"])


@dataclass(slots=True, kw_only=True)
class KlSpikeConfig:
    """Signal: the KL to the reference jumps above its trend since the last reset."""

    action: ControllerAction = ControllerAction.reset
    """What the signal causes (ProRL: a hard reset when KL spikes)."""
    patience: int = 3
    """Consecutive steps that must be above both limits (our choice: longer than one odd batch)."""
    window: int = 40
    """Steps before these that define the trend; also the warm-up after a reset, when KL grows from 0 (our choice: a
    fifth of ProRL v2's shortest interval)."""
    ratio: float = 2.0
    """First limit: this many times the median of the window (our choice: steady growth reaches less)."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations (1.4826 MAD) of log KL above the median (our choice)."""

    def __post_init__(self) -> None:
        _check_trend("controller.kl_spike", self)
        require(self.ratio > 1, "controller.kl_spike.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class ResponseLengthConfig:
    """Signal: the mean response length jumps above its trend."""

    action: ControllerAction = ControllerAction.end_stage
    """What the signal causes (ProRL: a sudden increase of response length ended run 3, and run 4 changed the
    shaping)."""
    patience: int = 5
    """Consecutive steps that must be above both limits (our choice: the mix of prompts changes the length from step to
    step)."""
    window: int = 40
    """Steps before these that define the trend (our choice: as for KL)."""
    ratio: float = 1.5
    """First limit: this many times the median of the window (our choice: desired growth takes hundreds of steps)."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations (1.4826 MAD) of log length above the median (our choice)."""

    def __post_init__(self) -> None:
        _check_trend("controller.response_length", self)
        require(self.ratio > 1, "controller.response_length.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class NoEosConfig:
    """Signal: the share of rollouts without end-of-sequence jumps above its trend."""

    action: ControllerAction = ControllerAction.end_stage
    """What the signal causes (ProRL: the responses of run 3 got long because they failed to terminate)."""
    patience: int = 5
    """Consecutive steps that must be above both limits (our choice: as for the length)."""
    window: int = 40
    """Steps before these that define the trend (our choice: as for KL)."""
    rise: float = 0.1
    """First limit: this much above the median share of the window (our choice: every tenth rollout)."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations (1.4826 MAD) of the share above the median (our choice)."""

    def __post_init__(self) -> None:
        _check_trend("controller.no_eos", self)
        require(0 < self.rise <= 1, "controller.no_eos.rise", self.rise, "in (0, 1]")


@dataclass(slots=True, kw_only=True)
class EntropyCollapseConfig:
    """Signal: the entropy has fallen to a fraction of its level at the start of the stage."""

    action: ControllerAction = ControllerAction.stop
    """What the signal causes (our choice: neither a new reference nor a new optimizer restores diversity; temperature,
    clip or entropy bonus must change)."""
    patience: int = 20
    """Consecutive steps that must be below the limit (our choice: entropy falls early and often recovers)."""
    window: int = 20
    """First steps of the stage, whose median is the level (our choice)."""
    ratio: float = 0.1
    """The limit, as a share of the level (our choice: no limit in nats suits every tokenizer and temperature)."""

    def __post_init__(self) -> None:
        at_least("controller.entropy_collapse", self, 1, ["patience", "window"])
        require(0 < self.ratio < 1, "controller.entropy_collapse.ratio", self.ratio, "in (0, 1)")


@dataclass(slots=True, kw_only=True)
class EntropyRunawayConfig:
    """Signal: the entropy has grown to a multiple of its level at the start of the stage."""

    action: ControllerAction = ControllerAction.stop
    """What the signal causes (our choice: a policy that turns into noise must not become the reference)."""
    patience: int = 20
    """Consecutive steps that must be above the limit (our choice: as for the collapse)."""
    window: int = 20
    """First steps of the stage, whose median is the level (our choice)."""
    ratio: float = 3.0
    """The limit, as a multiple of the level (our choice)."""

    def __post_init__(self) -> None:
        at_least("controller.entropy_runaway", self, 1, ["patience", "window"])
        require(self.ratio > 1, "controller.entropy_runaway.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class SamplerMismatchConfig:
    """Signal: the sampler does not run the trainer's weights. This is always a fault, so the signal is active in every
    controller.mode and has no cool-down."""

    action: ControllerAction = ControllerAction.stop
    """What the signal causes, stop or ignore (our choice: rollouts of another policy are worse than none). With ignore
    suspicious refits are still repeated and reported, but the run continues."""
    patience: int = 2
    """Consecutive suspicious steps. Tensors that are still wrong after a second complete refit stop the run at once
    (our choice)."""
    window: int = 20
    """Steps before these that define the trend; until there are as many, only max_nats counts (our choice)."""
    ratio: float = 3.0
    """First limit: this many times the median difference of the window (our choice: the broken refit in trl's issue
    5312 made it 13 times as large)."""
    num_deviations: float = 6.0
    """Second limit: this many robust standard deviations (1.4826 MAD) of the log difference above the median (our
    choice)."""
    min_nats: float = 1e-3
    """Mean difference of log-probabilities in nats up to which nothing is suspicious (our choice: fp32 rounds to less
    than 1e-5)."""
    max_nats: float = 0.15
    """Mean difference in nats above which a step is always suspicious (our choice: bf16 shows 0.01 to 0.02, trl's issue
    5312 showed 0.2)."""
    canary_rollouts: int = 4
    """Rollouts of a fixed prompt that every engine samples after each refit and the trainer scores; 0: no canary (our
    choice)."""
    canary_tokens: int = 16
    """Maximum number of tokens of each canary rollout (our choice)."""

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
    """Automatic resets and ends of stages; docs/controller.md has every rule."""

    mode: ControllerMode = ControllerMode.manual
    """Who decides on resets. manual: the user, as ProRL's authors did; interval: also every controller.interval steps;
    automatic: also the signals. `python -m nemo_prorl request-reset` requests a reset in every mode."""
    reset_optimizer: bool = True
    """Whether a reset also clears the optimizer's moments (on in ProRL, off in ProRL v2)."""
    interval: int = 0
    """Steps after the last reset, or the start of the stage, at which a reset is due in any case, except in mode manual
    (ProRL v2: 200 to 500); 0: never."""
    reset_to: ResetTo = ResetTo.current
    """Which weights become the policy and the reference at a reset, also at one that a user requests. current: the
    policy stays as it is (the papers: "a more recent snapshot of the online policy"). best: the policy returns to the
    stage's best checkpoint by exp_manager.checkpoint_callback_params.monitor (one of two readings of ProRL v2), with
    that checkpoint's optimizer moments unless reset_optimizer clears them."""
    validation_mean: ValidationMean = ValidationMean.domains
    """Which mean of the held-out rewards the validation signals use. domains: all domains have equal weight; prompts:
    all prompts do (our choice: domains, because IFEval alone has more prompts than the other benchmarks of the papers'
    blend together)."""
    cooldown: int = 50
    """Steps after a reset or the start of a stage in which no signal counts (our choice: a quarter of ProRL v2's
    shortest interval, because a reset needs time to help)."""
    validation_drop: ValidationDropConfig = field(default_factory=ValidationDropConfig)
    validation_plateau: ValidationPlateauConfig = field(default_factory=ValidationPlateauConfig)
    futile_resets: FutileResetsConfig = field(default_factory=FutileResetsConfig)
    kl_spike: KlSpikeConfig = field(default_factory=KlSpikeConfig)
    response_length: ResponseLengthConfig = field(default_factory=ResponseLengthConfig)
    no_eos: NoEosConfig = field(default_factory=NoEosConfig)
    entropy_collapse: EntropyCollapseConfig = field(default_factory=EntropyCollapseConfig)
    entropy_runaway: EntropyRunawayConfig = field(default_factory=EntropyRunawayConfig)
    sampler_mismatch: SamplerMismatchConfig = field(default_factory=SamplerMismatchConfig)

    def __post_init__(self) -> None:
        at_least("controller", self, 0, ["interval", "cooldown"])
        if self.mode is ControllerMode.interval and self.interval == 0:
            raise ConfigError(
                "controller.mode=interval needs the steps between resets: write controller.interval=300, for example."
            )
