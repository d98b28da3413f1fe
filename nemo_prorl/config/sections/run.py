"""All options of `train`, with those of stage.*, and what sections require of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from nemo_prorl.config.sections.algorithm import AlgorithmConfig, CorrectionLevel, KlEstimator
from nemo_prorl.config.sections.checks import ConfigError, require
from nemo_prorl.config.sections.controller import ControllerAction, ControllerConfig, ControllerMode, ResetTo
from nemo_prorl.config.sections.data import DataConfig
from nemo_prorl.config.sections.evaluation import EvaluationConfig, ValidationConfig
from nemo_prorl.config.sections.exp_manager import ExpManagerConfig
from nemo_prorl.config.sections.model import FP8_NATS, Fp8Recipe, LoraConfig, ModelConfig
from nemo_prorl.config.sections.reward import FUNCTION_END_S, RewardConfig, ShapingConfig
from nemo_prorl.config.sections.sampler import DynamicSamplingConfig, SamplerConfig
from nemo_prorl.config.sections.trainer import Optimizer, TrainerConfig

StartFrom = StrEnum("StartFrom", ["last", "best"])


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


@dataclass(slots=True, kw_only=True)
class RunConfig:
    """All options of `train`."""

    seed: int = 1
    """Seed of the data order and of sampling."""
    stage: StageConfig = field(default_factory=StageConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    exp_manager: ExpManagerConfig = field(default_factory=ExpManagerConfig)

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2^32 - 1")
        reward, hang_s = self.reward, self.trainer.hang_timeout_s
        longest_s = {
            "reward.request_timeout_s x max_attempts": reward.request_timeout_s * reward.max_attempts
        }
        if reward.function:
            # Its process is started, a call with several responses times out, and both again with one of them.
            function_s = reward.ready_timeout_s + reward.function_timeout_s + 2 * FUNCTION_END_S
            longest_s["two starts and calls of a function (ready_timeout_s, function_timeout_s)"] = (
                2 * function_s
            )
        for what, seconds in longest_s.items():
            if 0 < hang_s <= seconds:
                raise ConfigError(
                    f"trainer.hang_timeout_s={hang_s:g} would take slow grading for a hang, as it may need {what} = "
                    f"{seconds:g} s: write more, or 0."
                )
        if self.algorithm.aggregation_constant == 0 and self.sampler.max_response_tokens:
            raise ConfigError(
                "algorithm.aggregation_constant=0 stands for the response limit that is found with "
                f"sampler.max_response_tokens=0: write {self.sampler.max_response_tokens}, or another number above 0."
            )
        _check_best_exists(self)
        limit = self.controller.limits.max_nats
        stops = self.controller.sampler_mismatch is ControllerAction.stop
        if self.model.fp8 is not Fp8Recipe.off and stops and limit < FP8_NATS:
            raise ConfigError(
                f"model.fp8={self.model.fp8.name} errs by 0.15 to 0.18 nats a token (experiments/gpu.md), and above "
                f"controller.limits.max_nats={limit:g} a run stops: write controller.limits.max_nats={FP8_NATS:g}."
            )
        if self.validation.stop_at and not (self.data.validation and self.validation.interval):
            lacking = "validation.interval=20" if self.data.validation else "data.validation=[FILE, ...]"
            raise ConfigError(
                f"validation.stop_at={self.validation.stop_at:g} needs validations during the stage: write {lacking}, "
                "or leave it out."
            )
        if self.lora.rank:
            _check_low_rank(self)
        if self.trainer.optimizer is Optimizer.sgd and not self.controller.reset_reference:
            raise ConfigError(
                "controller.reset_reference=false with trainer.optimizer=sgd, which has no moments, leaves a reset "
                "nothing to do: write controller.reset_reference=true."
            )
        algorithm = self.algorithm
        is_unweighted = algorithm.has_kl_in_loss and not algorithm.kl_weighted
        if is_unweighted and algorithm.kl_estimator is KlEstimator.k1:
            raise ConfigError(
                "algorithm.kl_estimator=k1 has no gradient in the loss, so that it would hold nothing: write k2 or k3, "
                "algorithm.kl_weighted=true, or algorithm.kl_in=reward."
            )
        missing = []
        if algorithm.correction_level is CorrectionLevel.off:
            missing.append("algorithm.correction_level=token (or sequence, or geometric)")
        if is_unweighted:
            missing.append("algorithm.kl_weighted=true")
        if self.sampler.ahead and missing:
            raise ConfigError(
                f"sampler.ahead=true trains on rollouts of older weights: write {' and '.join(missing)} as well."
            )

    @property
    def measures_kl(self) -> bool:
        """Returns whether the KL to the reference is measured, with one more pass over all rollouts: for the penalty,
        the controller's watch, or the choice of the best checkpoint."""
        controller, monitor = self.controller, self.exp_manager.checkpoint_callback_params.monitor
        action = controller.kl_spike
        is_watched = controller.mode is ControllerMode.automatic and action is not ControllerAction.ignore
        return (
            self.algorithm.kl_beta > 0
            or is_watched
            or action is ControllerAction.warn
            or monitor.startswith("objective/kl_")
        )


def _check_low_rank(config: RunConfig) -> None:
    """Raises ConfigError for what cannot be combined with low-rank training."""
    lora, stage = f"lora.rank={config.lora.rank}", config.stage
    resets = {"controller": config.controller} | ({"stage": stage} if stage.parent else {})
    for name, what in resets.items():
        if what.reset_reference and not what.reset_optimizer:
            raise ConfigError(
                f"{lora} with {name}.reset_optimizer=false: another reference begins new factors, to which the old "
                f"moments do not belong: write {name}.reset_optimizer=true, or {name}.reset_reference=false."
            )
    if config.model.megatron.get("overlap_grad_reduce"):
        raise ConfigError(
            f"{lora} with model.megatron.overlap_grad_reduce=true: gradients of the factors are complete only after "
            "the backward pass: leave it out."
        )


def _check_best_exists(config: RunConfig) -> None:
    """Raises ConfigError if the configuration returns to the best checkpoint and may not have one."""
    params, asked = config.exp_manager.checkpoint_callback_params, ""
    if config.controller.reset_to is ResetTo.best:
        asked = "controller.reset_to=best"
    elif config.stage.parent and config.stage.start_from is StartFrom.best:
        asked = "stage.start_from=best"
    if not asked:
        return
    where = "exp_manager.checkpoint_callback_params"
    if not config.exp_manager.create_checkpoint_callback or params.save_top_k == 0:
        raise ConfigError(
            f"{asked} needs the best checkpoint on disk: write {where}.save_top_k=1 (and leave "
            "exp_manager.create_checkpoint_callback on)."
        )
    if not params.monitor.startswith("validation/"):
        raise ConfigError(
            f"{asked} compares validations, and {where}.monitor={params.monitor} is a metric of training: write "
            f"{where}.monitor=validation/domain_mean_score."
        )
    if not config.data.validation:
        raise ConfigError(
            f"{asked} needs held-out prompts, which say what is best: write data.validation=[FILE, ...], or "
            f"{asked.replace('reset_to=best', 'reset_to=current').replace('start_from=best', 'start_from=last')}."
        )
    every, interval = params.every_n_train_steps, config.validation.interval
    if config.controller.reset_to is not ResetTo.best:
        return
    if not (params.keep_moments or config.controller.reset_optimizer):
        raise ConfigError(
            f"{asked} with controller.reset_optimizer=false returns to the moments of the best checkpoint, which "
            f"{where}.keep_moments=false deletes: write true for one of the two."
        )
    if every == 0 or interval == 0 or interval % every:
        raise ConfigError(
            f"{asked} needs a checkpoint at every validation: {where}.every_n_train_steps={every} must divide "
            f"validation.interval={interval}, and neither may be 0."
        )
