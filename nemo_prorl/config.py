"""Every option with its type, default, documentation and range. Defaults are written nowhere else.

YAML files in conf/ and the command line state only differences. Values marked "ProRL" are from the papers (arXiv
2507.12507 and 2505.24864); "our choice" marks what the papers leave open. This file imports only the standard library,
because the command line reads it before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from pathlib import Path
from re import fullmatch
from typing import Any
from urllib.parse import urlsplit

REPLACED = {
    "sampler.context_tokens": "write sampler.max_response_tokens, which bounds the response alone (the context is "
    "sampler.max_prompt_tokens more).",
    "algorithm.normalise_std": "write algorithm.advantage=group_std (true) or algorithm.advantage=group_mean (false).",
    "algorithm.importance_correction": "write algorithm.correction_level, with the same value.",
    "algorithm.importance_cap": "write algorithm.correction_high.",
    "shaping.overlong_buffer_tokens": "write shaping.overlong_buffer_share, the buffer as a share of "
    "sampler.max_response_tokens.",
}
"""Options of earlier versions -> what to write instead; this ends the error message that refuses them."""


FUNCTION_END_S = 10.0
"""Seconds after its time limit by which a reward function's process has certainly been killed."""
SERVICE = "service"
"""The reward service's name among those of reward functions."""


class ConfigError(ValueError):
    """A user's mistake, in one sentence: what, where, and what to write instead."""


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class Device(Enum):
    """auto: the GPUs that this process can see, or the CPU if there are none."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class LayerSpec(Enum):
    """auto: Transformer Engine's layers on CUDA, where it must be installed, and Megatron's local layers on CPU."""

    auto = "auto"
    local = "local"
    transformer_engine = "transformer_engine"


class Fp8Recipe(Enum):
    off = "off"
    delayed = "delayed"
    tensorwise = "tensorwise"
    blockwise = "blockwise"


class Recompute(Enum):
    none = "none"
    selective = "selective"
    full = "full"


class KlEstimator(Enum):
    """Schulman's three estimators of KL(current || reference), http://joschu.net/blog/kl-approx.html."""

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"


class BestMode(Enum):
    """Field of NeMo's exp_manager: is a larger value of the monitored metric better, or a smaller one?"""

    max = "max"
    min = "min"


class UseNemo(Enum):
    """Who makes the loggers of exp_manager.*: auto is NeMo's own exp_manager where it is installed."""

    auto = "auto"
    always = "always"
    never = "never"


class Aggregation(Enum):
    """How token losses become one number; see docs/algorithm.md."""

    token_mean = "token_mean"
    sequence_mean_token_mean = "sequence_mean_token_mean"
    sequence_mean_token_sum = "sequence_mean_token_sum"


class Advantage(Enum):
    """How rewards become advantages; see docs/algorithm.md."""

    group_std = "group_std"
    group_mean = "group_mean"
    leave_one_out = "leave_one_out"
    batch_std = "batch_std"


class Objective(Enum):
    """clip: PPO's minimum of the ratio and the clipped ratio; cispo: REINFORCE, weighted with the clipped ratio."""

    clip = "clip"
    cispo = "cispo"


class RatioLevel(Enum):
    """Whether the clip sees each token's ratio of current to old probability or the response's geometric mean."""

    token = "token"
    sequence = "sequence"


class KlIn(Enum):
    """loss: the KL penalty is a term of the loss; reward: it is subtracted from the reward."""

    loss = "loss"
    reward = "reward"


class CorrectionLevel(Enum):
    """Which ratio of trainer to sampler probability is compared with the bounds: each token's, the product over a
    response, or the geometric mean over a response."""

    off = "off"
    token = "token"
    sequence = "sequence"
    geometric = "geometric"


class CorrectionMode(Enum):
    """What happens outside the bounds. truncate: the weight is clamped to them; mask: it is 0; drop: the whole rollout
    gets the weight 0, and every other rollout keeps its tokens' own weights."""

    truncate = "truncate"
    mask = "mask"
    drop = "drop"


class InformativeBy(Enum):
    """What dynamic sampling compares within a group: the task's score, or the reward that shaping makes of it."""

    score = "score"
    reward = "reward"


class EntropyBonus(Enum):
    fixed = "fixed"
    adaptive = "adaptive"


class Decay(Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class ControllerMode(Enum):
    """manual: only a user's request resets; interval: also every `controller.interval` steps; automatic: also the
    signals."""

    manual = "manual"
    interval = "interval"
    automatic = "automatic"


class ValidationMean(Enum):
    """Which mean of the held-out rewards represents the whole validation.

    domains: validation/domain_mean_reward, in which all domains have equal weight; prompts: validation/reward, in which
    all prompts do.
    """

    domains = "domains"
    prompts = "prompts"


class ResetTo(Enum):
    """Which weights become policy and reference at a reset: the current ones, or the stage's best checkpoint's."""

    current = "current"
    best = "best"


class StartFrom(Enum):
    """Which checkpoint of its parent a stage starts from."""

    last = "last"
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


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{key}={value} is out of range: it must be {allowed}.")


def _at_least(prefix: str, config: object, minimum: float, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value >= minimum, f"{prefix}.{name}", value, f"at least {minimum:g}")


def _positive(prefix: str, config: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value > 0, f"{prefix}.{name}", value, "greater than 0")


def _is_window(text: str) -> bool:
    """Returns whether `text` is FIRST..LAST, two dates as YYYY-MM-DD in order."""
    first, _, last = text.partition("..")
    try:
        return len(first) == len(last) == 10 and date.fromisoformat(first) <= date.fromisoformat(last)
    except ValueError:
        return False


@dataclass(slots=True, kw_only=True)
class ModelConfig:
    """The policy and how Megatron-Core builds it."""

    path: str = ""
    """Folder of the Hugging Face checkpoint that the first stage starts from (weights, config, tokenizer)."""
    precision: Precision = Precision.bf16
    """Precision of weights and activations; the optimizer keeps fp32 main weights in any case."""
    layer_spec: LayerSpec = LayerSpec.auto
    """Which layer implementations Megatron-Core uses. auto: Transformer Engine's on CUDA, where a run without it is
    refused, and Megatron's own on CPU. local: Megatron's own, which are slower on CUDA and cannot pack sequences."""
    fp8: Fp8Recipe = Fp8Recipe.off
    """Transformer Engine's FP8 recipe for the linear layers; needs CUDA and Transformer Engine."""
    recompute: Recompute = Recompute.none
    """Activation recomputation: none, selective (attention core) or full (every layer)."""
    logprob_chunk_tokens: int = 1024
    """Number of tokens whose logits exist at a time; limits the memory for log-probabilities and entropy."""
    fused_logprobs: bool = True
    """Computes log-probabilities and entropy with Triton kernels if CUDA and Triton are there; false: with plain
    PyTorch, which is slower."""
    vocab_divisible_by: int = 1
    """The vocabulary is padded to a multiple of this times tensor_parallel; padding gets no probability."""
    megatron: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-Core's TransformerConfig, DistributedDataParallelConfig and OptimizerConfig that change speed,
    memory or rounding alone, such as {overlap_grad_reduce: true}; docs/gpu.md lists those that can be set."""

    def __post_init__(self) -> None:
        _positive("model", self, ["logprob_chunk_tokens", "vocab_divisible_by"])


@dataclass(slots=True, kw_only=True)
class TrainerConfig:
    """The step's size, the parallel layout and the optimizer."""

    device: Device = Device.auto
    """Device that the ranks compute on. auto: the GPUs that the process can see, or the CPU if there are none, except
    that a job to which Slurm has given GPUs refuses to start on the CPU. cpu allows it, and leaves the GPUs unused."""
    num_steps: int = 1000
    """Number of steps in this stage."""
    prompts_per_step: int = 256
    """Informative groups that a step trains on (ProRL: 256)."""
    updates_per_step: int = 4
    """Optimizer updates per step; the groups are split evenly between them (ProRL: mini-batch 64, hence 4)."""
    tensor_parallel: int = 1
    """Tensor-parallel size: ranks that each layer is split over."""
    pipeline_parallel: int = 1
    """Pipeline-parallel size: ranks that the layers are distributed over."""
    sequence_parallel: bool = False
    """Splits activations between the tensor-parallel regions along the sequence; needs tensor_parallel > 1."""
    distributed_optimizer: bool = True
    """Shards optimizer state over data-parallel ranks."""
    micro_batch_tokens: int = 32768
    """Tokens, with padding, in one forward pass of training or log-probabilities; a longer rollout gets a pass of its
    own."""
    packing: bool = True
    """Packs sequences without padding (thd layout) where attention supports it: Transformer Engine on CUDA, in bf16."""
    learning_rate: float = 2e-6
    """Learning rate of AdamW, after the warm-up and before any decay (ProRL: 2e-6, constant)."""
    warmup_updates: int = 0
    """Updates of linear warm-up from the start of the first stage (our choice: none)."""
    decay: Decay = Decay.constant
    """Learning-rate schedule after the warm-up (ProRL: constant)."""
    decay_updates: int = 0
    """Updates from the start of the first stage to the end of the decay; required unless decay is constant."""
    adam_beta1: float = 0.9
    """AdamW's decay rate of the first moment (our choice: PyTorch's default)."""
    adam_beta2: float = 0.999
    """AdamW's decay rate of the second moment (our choice: PyTorch's default)."""
    adam_epsilon: float = 1e-8
    """Added to the root of AdamW's second moment."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay (our choice: none, because the KL penalty regularises)."""
    clip_grad: float = 1.0
    """Upper bound of the global gradient norm; larger gradients are scaled down to it (our choice)."""
    cpu_threads: int = 1
    """Threads of the policy's passes on CPU; sampling always uses one, which makes it bitwise reproducible."""
    start_timeout_s: float = 300.0
    """Seconds in which all ranks of a job must have reached each other, or the job gives up (our choice: on a slow file
    system they import torch and vLLM minutes apart)."""
    hang_timeout_s: float = 1800.0
    """Seconds after which a rank that has neither begun another phase of the step nor finished a rollout writes its
    stack traces to RUN/stacks/ and fails, so that launchers restart the job; 0: never (our choice: a rollout of 16k
    tokens and the first compilation take far less; gloo and NCCL time out later)."""

    def __post_init__(self) -> None:
        counts = ["num_steps", "prompts_per_step", "updates_per_step", "tensor_parallel", "pipeline_parallel"]
        _at_least("trainer", self, 1, [*counts, "micro_batch_tokens", "cpu_threads"])
        _at_least("trainer", self, 0, ["warmup_updates", "decay_updates", "weight_decay"])
        _at_least("trainer", self, 0, ["hang_timeout_s"])
        _positive("trainer", self, ["learning_rate", "clip_grad", "adam_epsilon", "start_timeout_s"])
        for name in ("adam_beta1", "adam_beta2"):
            _require(0 <= getattr(self, name) < 1, f"trainer.{name}", getattr(self, name), "in [0, 1)")
        if self.prompts_per_step % self.updates_per_step:
            raise ConfigError(
                f"trainer.prompts_per_step={self.prompts_per_step} cannot be split evenly over "
                f"trainer.updates_per_step={self.updates_per_step}: write a multiple of it."
            )
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ConfigError(
                "trainer.sequence_parallel=true needs tensor parallelism: "
                "write trainer.tensor_parallel=2 or more, or leave it off."
            )
        if self.decay is not Decay.constant and self.decay_updates <= self.warmup_updates:
            raise ConfigError(
                f"trainer.decay={self.decay.name} needs trainer.decay_updates greater than "
                f"trainer.warmup_updates={self.warmup_updates}."
            )


@dataclass(slots=True, kw_only=True)
class AlgorithmConfig:
    """GRPO with DAPO's decoupled clip and ProRL's KL penalty by default; docs/algorithm.md has every formula."""

    advantage: Advantage = Advantage.group_std
    """How rewards become advantages. group_std: the group's mean is subtracted, then divided by the group's standard
    deviation (ProRL eq. 2); group_mean: the group's mean is subtracted (Dr. GRPO); leave_one_out: the mean of the other
    rollouts is subtracted (RLOO); batch_std: the group's mean is subtracted, then normalised over all response tokens
    of the step (REINFORCE++-baseline, ProRL v2)."""
    objective: Objective = Objective.clip
    """clip: PPO's clipped surrogate (ProRL eq. 1), which stops the gradient of clipped tokens; cispo: the
    log-probability, weighted by the clipped ratio as a constant (MiniMax-M1); every token keeps its gradient."""
    ratio_level: RatioLevel = RatioLevel.token
    """token: each token has its own ratio (ProRL eq. 1); sequence: all tokens of a rollout have the geometric mean of
    its ratios (GSPO), which needs far smaller values of clip_low and clip_high."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low (ProRL eq. 3: 0.2); 1: no lower bound, as in MiniMax-M1's cispo."""
    clip_high: float = 0.4
    """The ratio is clipped above at 1 + clip_high (ProRL eq. 3: 0.4)."""
    dual_clip: float = 0.0
    """Lower bound c > 1 on the objective for negative advantages (arXiv 1912.09729); 0 turns it off."""
    aggregation: Aggregation = Aggregation.token_mean
    """How token losses become one number. token_mean: the mean over all response tokens of the update (DAPO eq. 8; our
    choice, because ProRL does not say); sequence_mean_token_mean and sequence_mean_token_sum: the mean over responses
    of their tokens' mean or sum."""
    aggregation_constant: float = 1.0
    """With aggregation=sequence_mean_token_sum the sum over a response is divided by this (Dr. GRPO: the maximum number
    of response tokens); 1 leaves the plain sum."""
    kl_beta: float = 1e-4
    """Weight of the KL penalty (ProRL: 1e-4). With 0 there is no penalty, and no log-probabilities of the reference are
    computed either, unless a signal of the controller or the monitored metric is a KL."""
    kl_estimator: KlEstimator = KlEstimator.k3
    """Estimator of the KL penalty (ProRL eq. 5: k3)."""
    kl_in: KlIn = KlIn.loss
    """loss: the KL penalty is a term of each token's loss (ProRL eq. 4); reward: its sum over the response is
    subtracted from the reward before advantages are computed (RLOO)."""
    kl_clamp_log_ratio: float = 20.0
    """The log-ratio in the KL estimator is clamped to plus or minus this many nats, and a token beyond it has no KL
    gradient; 0: no clamp (verl and NeMo RL: 20; ProRL v2: 10; ProRL does not say)."""
    kl_clamp_value: float = 10.0
    """The KL estimate of a token is clamped to plus or minus this many nats, and a token beyond it has no KL gradient;
    0: no clamp (verl, which ProRL was trained with, NeMo RL and OpenRLHF: 10; ProRL does not say)."""
    correction_level: CorrectionLevel = CorrectionLevel.off
    """Weights the policy-gradient term by the ratio of the trainer's to the sampler's probability: per token, per
    sequence (the product over the response), or by the geometric mean over the response; off: not at all."""
    correction_mode: CorrectionMode = CorrectionMode.truncate
    """What happens if that ratio is outside [correction_low, correction_high]. truncate: it is clamped to them; mask:
    the weight is 0; drop: the whole rollout gets the weight 0, and all others keep their tokens' own weights."""
    correction_low: float = 0.0
    """Lower bound of the ratio of trainer to sampler probability (our choice: none)."""
    correction_high: float = 2.0
    """Upper bound of the ratio of trainer to sampler probability (Yao et al. 2025, verl: 2)."""
    entropy_bonus: EntropyBonus = EntropyBonus.fixed
    """fixed: a constant entropy_coefficient; adaptive: Skywork-OR1's rule drives the entropy towards entropy_target."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus, or its initial value if it is adaptive."""
    entropy_target: float = 0.2
    """Entropy in nats per token at or below which the adaptive bonus is active (arXiv 2505.22312)."""
    entropy_step: float = 0.005
    """Change of the adaptive entropy coefficient per step."""
    entropy_coefficient_max: float = 0.1
    """Upper bound of the adaptive entropy coefficient (our choice)."""

    @property
    def takes_kl_from_rewards(self) -> bool:
        """Whether the KL penalty lowers the rewards instead of being a term of the loss."""
        return self.kl_beta > 0 and self.kl_in is KlIn.reward

    def __post_init__(self) -> None:
        _at_least("algorithm", self, 0, ["clip_high", "kl_beta", "entropy_coefficient", "entropy_step"])
        _at_least("algorithm", self, 0, ["kl_clamp_log_ratio", "kl_clamp_value", "correction_low"])
        _positive("algorithm", self, ["aggregation_constant", "entropy_target", "entropy_coefficient_max"])
        _require(0 <= self.clip_low <= 1, "algorithm.clip_low", self.clip_low, "in [0, 1]")
        _require(
            self.correction_high > self.correction_low,
            "algorithm.correction_high",
            self.correction_high,
            f"greater than algorithm.correction_low={self.correction_low:g}",
        )
        _require(
            self.dual_clip == 0 or self.dual_clip > 1,
            "algorithm.dual_clip",
            self.dual_clip,
            "0 or greater than 1",
        )
        if self.objective is Objective.cispo and self.dual_clip > 0:
            raise ConfigError(
                f"algorithm.dual_clip={self.dual_clip:g} has no meaning with algorithm.objective=cispo, whose weight "
                "algorithm.clip_high bounds already: write algorithm.dual_clip=0."
            )
        if self.aggregation_constant != 1 and self.aggregation is not Aggregation.sequence_mean_token_sum:
            raise ConfigError(
                f"algorithm.aggregation_constant={self.aggregation_constant:g} is a divisor for "
                "algorithm.aggregation=sequence_mean_token_sum only: write that, or leave it at 1."
            )


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
        _at_least("shaping.length_penalty", self, 0, ["weight", "off_updates"])
        _at_least("shaping.length_penalty", self, 1, ["on_updates"])
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
    """Penalty in that buffer for a response that uses all of its tokens (DAPO: 1, for rewards of -1 and 1)."""
    overlong_filtering: bool = False
    """Excludes rollouts that ran out of tokens from the loss, because their reasoning may have been right (DAPO section
    3.4, DeepScaleR, NeMo RL). They still count in their group's mean and standard deviation."""
    length_penalty: LengthPenaltyConfig = field(default_factory=LengthPenaltyConfig)

    def __post_init__(self) -> None:
        for name in ("termination_factor", "malformed_thought_factor", "overlong_buffer_share"):
            _require(0 <= getattr(self, name) <= 1, f"shaping.{name}", getattr(self, name), "in [0, 1]")
        _at_least("shaping", self, 0, ["overlong_penalty"])


@dataclass(slots=True, kw_only=True)
class SamplerConfig:
    """Sampling of training rollouts with vLLM."""

    num_rollouts: int = 16
    """Rollouts per prompt, n (ProRL: 16; 32 in runs 6 and 7)."""
    temperature: float = 1.2
    """Sampling temperature of training rollouts (ProRL: 1.2); the trainer divides its logits by it as well."""
    max_prompt_tokens: int = 4096
    """Longest prompt in tokens; longer prompts are removed from the data, and counted (our choice: the papers give no
    bound; docs/data.md says what each bound removes)."""
    max_response_tokens: int = 8192
    """Longest response in tokens, end-of-sequence included; longer ones are cut off (ProRL "8k": 8192, and 16384 in
    run 8; that the prompt does not count is our reading)."""
    tensor_parallel: int = 1
    """Tensor-parallel size of each vLLM engine; must divide the ranks of a node."""
    memory_fraction: float = 0.5
    """Fraction of the GPU's memory for vLLM's weights and KV cache; the policy has the rest."""
    kv_cache_mib: int = 512
    """MiB of KV cache on CPU, where memory_fraction does not apply."""
    max_sequences: int = 1024
    """Maximum number of sequences that one engine decodes concurrently."""
    enforce_eager: bool = False
    """Skips CUDA graph capture; always true on CPU."""
    release_memory: bool = False
    """Frees the sampler's weights and KV cache while the policy trains (vLLM's sleep level 2; the next refit loads
    the weights again). No effect on CPU."""
    ahead: bool = False
    """Samples the next step's first round while the policy trains on the current one. These rollouts are one step
    off-policy, which algorithm.correction_level corrects. The sampler always keeps its memory (our choice: off)."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Further fields of vLLM's EngineArgs, such as {kv_cache_dtype: fp8}; those that the trainer sets itself are
    refused (docs/gpu.md)."""

    def __post_init__(self) -> None:
        _positive("sampler", self, ["temperature", "kv_cache_mib", "max_sequences"])
        _at_least("sampler", self, 2, ["num_rollouts"])
        _at_least("sampler", self, 1, ["max_prompt_tokens", "max_response_tokens", "tensor_parallel"])
        _require(0 < self.memory_fraction < 1, "sampler.memory_fraction", self.memory_fraction, "in (0, 1)")
        if self.ahead and (self.release_memory or self.tensor_parallel > 1):
            # Engines and policy would run collectives on the same ranks at the same time, in no common order.
            raise ConfigError(
                "sampler.ahead=true needs the sampler beside the policy at all times, on one rank each: write "
                "sampler.release_memory=false and sampler.tensor_parallel=1 (and perhaps a smaller "
                "sampler.memory_fraction), or leave it off."
            )

    @property
    def context_tokens(self) -> int:
        """The longest prompt and the longest response together: positions that the model must have."""
        return self.max_prompt_tokens + self.max_response_tokens


@dataclass(slots=True, kw_only=True)
class DynamicSamplingConfig:
    """DAPO's dynamic sampling: prompts whose rollouts are all equally good teach nothing and are replaced."""

    enabled: bool = True
    """Whether uninformative groups are replaced. false trains on every sampled prompt, except for groups of which
    overlong filtering or a failing reward service leaves nothing: such a step has fewer groups, and logs it."""
    by: InformativeBy = InformativeBy.score
    """What has to differ within a group. score: the task's score (ProRL and DAPO drop prompts with accuracy 0 or 1);
    reward: the reward after shaping, so that length penalties alone can make a group informative, even if all answers
    are right or all are wrong."""
    max_rounds: int = 8
    """Maximum number of rounds (generation batches) of a step, after which the data counts as saturated."""
    oversample: float = 1.12
    """Prompts of a round, as a multiple of the missing groups divided by the last measured yield (our choice). Too many
    are sampled in vain, too few cost a further round: 1.12 needs one in 1 of 150 steps of 256 prompts and in 1 of 7
    steps of 32; 1.25 in none of 4,000 and in 1 of 36 (simulated, with a yield of 60 %)."""
    min_fill: float = 0.5
    """Share of a step's groups that is enough to train on, correctly normalised, when max_rounds is reached; with less
    the stage ends as saturated. Without dynamic sampling one group is enough."""

    def __post_init__(self) -> None:
        _at_least("dynamic_sampling", self, 1, ["max_rounds", "oversample"])
        _require(0 <= self.min_fill <= 1, "dynamic_sampling.min_fill", self.min_fill, "in [0, 1]")


@dataclass(slots=True, kw_only=True)
class DataConfig:
    """Problems: files (JSON Lines, JSON, CSV, Parquet), folders of them, or OWNER/NAME of data sets on the Hugging Face
    hub; docs/data.md has the columns."""

    train: dict[str, float] = field(default_factory=dict)
    """Weight of each training file in the mix: path -> weight. Weights need not add up to 1. On the command line, one
    path or a list of paths is enough where all weights are the same."""
    validation: list[str] = field(default_factory=list)
    """Held-out files, for validation."""

    def __post_init__(self) -> None:
        for path, weight in self.train.items():
            _require(weight > 0, f"data.train.{path}", weight, "greater than 0")


@dataclass(slots=True, kw_only=True)
class RewardConfig:
    """Where the reward service is, which functions grade beside or instead of it, and how failures are handled."""

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
    """Share of a step's rollouts that may be dropped because the service or a reward function failed on them; more
    stops the run."""
    python: str = ".venv-reward/bin/python"
    """Interpreter of the service's environment, for a service that `train` starts itself; a relative path is looked for
    in the working folder, then in the checkout."""
    function: list[str] = field(default_factory=list)
    """Python functions that grade instead of the service, each written FILE.py:NAME (docs/custom_rewards.md)."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weights of the functions' values in the sum that is the reward, by function name; a function that is not named
    here has weight 1. A weight for `service` adds the service's score, and 0 records a value without using it."""
    function_batch: int = 64
    """Maximum number of responses that a function gets in one call."""
    function_timeout_s: float = 60.0
    """Seconds that one call of a function may take; after that its responses are not graded."""
    function_python: str = ""
    """Interpreter that runs the functions; empty: the one that runs the trainer."""

    def __post_init__(self) -> None:
        _positive("reward", self, ["request_timeout_s", "ready_timeout_s", "function_timeout_s"])
        _at_least("reward", self, 1, ["max_attempts", "function_batch"])
        _require(
            0 <= self.max_failed_share <= 1, "reward.max_failed_share", self.max_failed_share, "in [0, 1]"
        )
        for url in self.urls:
            try:
                _ = urlsplit(url).port
            except ValueError as error:
                raise ConfigError(f"reward.urls names {url}, which has no usable port: {error}.") from None
        self._check_functions()

    def _check_functions(self) -> None:
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
                raise ConfigError(
                    f"reward.weights.{name} names no function; "
                    + (
                        f"the names are {', '.join(names)} and {SERVICE}."
                        if names
                        else "reward.function is empty: write the functions there, or leave the weight out."
                    )
                )
        if names and not any(self.weight(name) for name in known if name != SERVICE or self.asks_service):
            raise ConfigError(
                "every weight in reward.weights is 0, so every reward would be 0: write another one."
            )

    @staticmethod
    def function_name(text: str) -> str:
        """NAME of FILE.py:NAME. Raises ConfigError for any other text."""
        match = fullmatch(r".+\.py:([^\W\d]\w*)", text)
        if match is None:
            raise ConfigError(
                f"reward.function={text} is not of the form FILE.py:NAME: write the file and the function's name, such "
                "as my_reward.py:score."
            )
        return match[1]

    @property
    def interpreter(self) -> Path:
        """reward.python, from the working folder, or else from the checkout that this file is in."""
        of_checkout = Path(__file__).resolve().parents[1] / self.python
        return of_checkout if not Path(self.python).exists() and of_checkout.exists() else Path(self.python)

    @property
    def function_silence_s(self) -> float:
        """Longest time in seconds without a result of a reward function: its process has to be started, a call with
        several responses times out, the process is started again, and a call with one of them times out."""
        return 2 * (self.ready_timeout_s + FUNCTION_END_S + self.function_timeout_s + FUNCTION_END_S)

    @property
    def asks_service(self) -> bool:
        """Whether the reward service grades: alone, or with a weight beside functions."""
        return not self.function or SERVICE in self.weights

    def weight(self, name: str) -> float:
        """Returns the weight of a function, or of the service, in the reward."""
        return self.weights.get(name, 1.0)


@dataclass(slots=True, kw_only=True)
class ValidationConfig:
    """Held-out prompts, sampled and graded as in training."""

    interval: int = 20
    """Steps between validations; 0: only before the first and after the last step."""
    num_rollouts: int = 16
    """Rollouts per prompt (ProRL: 16)."""
    temperature: float = 0.6
    """Sampling temperature of validation and `evaluate` (ProRL: 0.6)."""
    top_p: float = 0.95
    """Nucleus sampling threshold of validation and `evaluate` (ProRL: 0.95)."""
    max_prompts: int = 0
    """Number of prompts taken from each file, from its beginning; 0: all."""
    num_kept: int = 64
    """Number of rollouts per validation whose text is kept in RUN/samples/, spread over the prompts; 0: none."""

    def __post_init__(self) -> None:
        _at_least("validation", self, 0, ["interval", "max_prompts", "num_kept"])
        _at_least("validation", self, 1, ["num_rollouts"])
        _positive("validation", self, ["temperature"])
        _require(0 < self.top_p <= 1, "validation.top_p", self.top_p, "in (0, 1]")


@dataclass(slots=True, kw_only=True)
class EvaluationConfig:
    """`evaluate suite=NAME`: which benchmarks, from which files, into which folder. The options of sampling are under
    validation and sampler."""

    benchmarks: list[str] = field(default_factory=list)
    """Names of benchmarks; `evaluate --list` prints all of them."""
    data_dir: str = "data/benchmarks"
    """Folder with the benchmarks' files, as published."""
    livecodebench_dates: str = "2024-08-01..2025-02-01"
    """Window of contest dates for LiveCodeBench, FIRST..LAST, both days included; empty: all dates. The papers name no
    window (our choice: DeepCoder's, 279 problems; DeepCoder is in the papers' table)."""
    puzzles: list[str] = field(default_factory=list)
    """Reasoning Gym tasks that the benchmark reasoning_gym is limited to; empty: all in its file."""
    out: str = ""
    """Folder for samples and results; empty: evaluations/ and the name of the model's folder."""
    num_resamples: int = 1000
    """Number of times that the prompts are resampled for bootstrap intervals."""
    chunk_samples: int = 8192
    """Samples that one engine gets at a time; the ranks synchronise between chunks."""

    def __post_init__(self) -> None:
        _at_least("evaluation", self, 1, ["num_resamples", "chunk_samples"])
        _require(
            not self.livecodebench_dates or _is_window(self.livecodebench_dates),
            "evaluation.livecodebench_dates",
            self.livecodebench_dates,
            "empty, or FIRST..LAST in order, such as 2024-08-01..2025-02-01",
        )


@dataclass(slots=True, kw_only=True)
class ValidationDropConfig:
    """Signal: the held-out reward of a domain stays below its best since the last reset."""

    action: ControllerAction = ControllerAction.reset
    """ProRL: hard reset when validation significantly degrades (end of run 1)."""
    patience: int = 2
    """Consecutive validations that must show the drop (our choice: one may be bad luck)."""
    margin: float = 0.1
    """Least drop, as a share of the best reward (our choice: relative, because domains differ in level)."""
    num_standard_errors: float = 4.0
    """Least drop, in standard errors of the difference (our choice: the best of many validations is a lucky one; at 3
    one in five simulated runs without any change had a false alarm, at 4 one in 250, docs/controller.md)."""

    def __post_init__(self) -> None:
        _at_least("controller.validation_drop", self, 1, ["patience"])
        _at_least("controller.validation_drop", self, 0, ["num_standard_errors"])
        _require(0 <= self.margin < 1, "controller.validation_drop.margin", self.margin, "in [0, 1)")


@dataclass(slots=True, kw_only=True)
class ValidationPlateauConfig:
    """Signal: the held-out reward, as controller.validation_mean defines it, has no new best."""

    action: ControllerAction = ControllerAction.reset
    """ProRL: hard reset when improvements plateau."""
    patience: int = 10
    """Consecutive validations without a new best (our choice: 200 steps at validation.interval=20, ProRL v2's shortest
    interval)."""
    min_delta: float = 0.01
    """Reward by which a new best must exceed the old one (our choice: one point of pass@1)."""

    def __post_init__(self) -> None:
        _at_least("controller.validation_plateau", self, 1, ["patience"])
        _at_least("controller.validation_plateau", self, 0, ["min_delta"])


@dataclass(slots=True, kw_only=True)
class FutileResetsConfig:
    """Signal: another plateau or drop after the stage's last resets have not led to a new best."""

    action: ControllerAction = ControllerAction.end_stage
    """Our choice: the next stage may help where a reset does not (ProRL lengthens the context, or samples more)."""
    patience: int = 2
    """Consecutive resets without a new best by controller.validation_plateau.min_delta (our choice: one may have come
    at a bad moment)."""

    def __post_init__(self) -> None:
        _at_least("controller.futile_resets", self, 1, ["patience"])


@dataclass(slots=True, kw_only=True)
class KlSpikeConfig:
    """Signal: the KL to the reference jumps above its trend since the last reset."""

    action: ControllerAction = ControllerAction.reset
    """ProRL: hard reset when KL spikes."""
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
        _require(self.ratio > 1, "controller.kl_spike.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class ResponseLengthConfig:
    """Signal: the mean response length jumps above its trend."""

    action: ControllerAction = ControllerAction.end_stage
    """ProRL: run 3 ended on a sudden increase of response length, and run 4 changed the shaping."""
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
        _require(self.ratio > 1, "controller.response_length.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class NoEosConfig:
    """Signal: the share of rollouts without end-of-sequence jumps above its trend."""

    action: ControllerAction = ControllerAction.end_stage
    """ProRL: run 3's responses got long because they failed to terminate."""
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
        _require(0 < self.rise <= 1, "controller.no_eos.rise", self.rise, "in (0, 1]")


@dataclass(slots=True, kw_only=True)
class EntropyCollapseConfig:
    """Signal: the entropy has fallen to a fraction of its level at the start of the stage."""

    action: ControllerAction = ControllerAction.stop
    """Our choice: neither a new reference nor a new optimizer restores diversity; temperature, clip or entropy bonus
    must change."""
    patience: int = 20
    """Consecutive steps that must be below the limit (our choice: entropy falls early and often recovers)."""
    window: int = 20
    """First steps of the stage, whose median is the level (our choice)."""
    ratio: float = 0.1
    """The limit, as a share of the level (our choice: no limit in nats suits every tokenizer and temperature)."""

    def __post_init__(self) -> None:
        _at_least("controller.entropy_collapse", self, 1, ["patience", "window"])
        _require(0 < self.ratio < 1, "controller.entropy_collapse.ratio", self.ratio, "in (0, 1)")


@dataclass(slots=True, kw_only=True)
class EntropyRunawayConfig:
    """Signal: the entropy has grown to a multiple of its level at the start of the stage."""

    action: ControllerAction = ControllerAction.stop
    """Our choice: a policy that turns into noise must not become the reference."""
    patience: int = 20
    """Consecutive steps that must be above the limit (our choice: as for the collapse)."""
    window: int = 20
    """First steps of the stage, whose median is the level (our choice)."""
    ratio: float = 3.0
    """The limit, as a multiple of the level (our choice)."""

    def __post_init__(self) -> None:
        _at_least("controller.entropy_runaway", self, 1, ["patience", "window"])
        _require(self.ratio > 1, "controller.entropy_runaway.ratio", self.ratio, "greater than 1")


@dataclass(slots=True, kw_only=True)
class SamplerMismatchConfig:
    """Signal: the sampler does not run the trainer's weights. This is always a fault, so the signal is active in every
    controller.mode and has no cool-down."""

    action: ControllerAction = ControllerAction.stop
    """stop or ignore. With ignore, suspicious refits are still repeated and reported, but the run continues (our
    choice: rollouts of another policy are worse than none)."""
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
        _at_least(prefix, self, 0, ["canary_rollouts"])
        _at_least(prefix, self, 1, ["canary_tokens"])
        _positive(prefix, self, ["min_nats"])
        _require(self.ratio > 1, f"{prefix}.ratio", self.ratio, "greater than 1")
        _require(
            self.max_nats >= self.min_nats,
            f"{prefix}.max_nats",
            self.max_nats,
            f"at least {prefix}.min_nats={self.min_nats:g}",
        )
        _require(
            self.action in (ControllerAction.stop, ControllerAction.ignore),
            f"{prefix}.action",
            self.action.name,
            "stop or ignore: neither a reset nor another stage gives the sampler other weights",
        )


def _check_trend(prefix: str, config: object) -> None:
    _at_least(prefix, config, 1, ["patience"])
    _at_least(prefix, config, 5, ["window"])  # the spread of fewer values means little
    _at_least(prefix, config, 0, ["num_deviations"])


@dataclass(slots=True, kw_only=True)
class ControllerConfig:
    """Automatic resets and ends of stages; docs/controller.md has every rule."""

    mode: ControllerMode = ControllerMode.manual
    """Who decides on resets. manual: the user, as ProRL's authors did; interval: also every controller.interval steps;
    automatic: also the signals. `python -m nemo_prorl reset` requests a reset in every mode."""
    reset_optimizer: bool = True
    """Whether a reset also clears the optimizer's moments (on in ProRL, off in ProRL v2)."""
    interval: int = 0
    """Steps after which a reset is due in any case, except in mode manual (ProRL v2: 200 to 500); 0: never."""
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
        _at_least("controller", self, 0, ["interval", "cooldown"])
        if self.mode is ControllerMode.interval and self.interval == 0:
            raise ConfigError(
                "controller.mode=interval needs the steps between resets: write controller.interval=300, for example."
            )


@dataclass(slots=True, kw_only=True)
class StageConfig:
    """One link of the chain of runs."""

    name: str = "main"
    """Name of this stage; the files that record its configuration and its end are named after it."""
    parent: str = ""
    """Stage that this one continues; empty: it starts from model.path."""
    reset_reference: bool = True
    """Whether the policy becomes the reference at the start of a stage with a parent (ProRL's hard reset)."""
    reset_optimizer: bool = True
    """Whether optimizer moments are cleared at the start of a stage with a parent (on in ProRL, off in ProRL v2)."""
    start_from: StartFrom = StartFrom.last
    """Which checkpoint of the parent the policy is taken from. last: the papers reset "to a more recent snapshot of the
    online policy". best: the best by exp_manager.checkpoint_callback_params.monitor, for a parent that ends because its
    validation degrades. Steps, data and the learning-rate schedule continue after the parent's last step in either
    case. Without stage.parent it has no effect."""
    reset_data: bool = False
    """Whether every data file starts from its beginning at the start of a stage with a parent. Otherwise files that the
    parent read continue where it stopped (our choice: the papers do not say)."""

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
class CheckpointCallbackParams:
    """When checkpoints are written and which are kept. The field names are those of NeMo's exp_manager."""

    every_n_train_steps: int = 20
    """Steps between checkpoints; 0: the number of steps causes none (our choice: validation.interval, so that every
    validation has a checkpoint and the best one is on disk)."""
    every_minutes: float = 15.0
    """Minutes since the last checkpoint after which the next step to end is followed by one (NeMo's
    train_time_interval), so that a crash costs at most this time and one step; 0: the clock causes none (our choice:
    the loop waits less than a second for a save). The end of a stage is saved in any case."""
    save_last_k: int = 2
    """Number of the stage's newest checkpoints that are kept; an older one is deleted once a newer one is complete. The
    last checkpoint of every other stage is kept, too."""
    save_top_k: int = 1
    """Number of best checkpoints by `monitor` that are also kept, of the run and of the current stage; 0: none."""
    monitor: str = "validation/domain_mean_reward"
    """Metric by which checkpoints are compared (our choice: see controller.validation_mean). A checkpoint of a step
    without a validation is not compared."""
    mode: BestMode = BestMode.max
    """Whether a larger (max) or a smaller (min) value of `monitor` is better."""
    async_save: bool = True
    """Writes files in the background while training continues, from a copy in host memory."""

    def __post_init__(self) -> None:
        _at_least(
            "exp_manager.checkpoint_callback_params",
            self,
            0,
            ["every_n_train_steps", "every_minutes", "save_top_k"],
        )
        _at_least("exp_manager.checkpoint_callback_params", self, 1, ["save_last_k"])
        _require(
            bool(self.monitor),
            "exp_manager.checkpoint_callback_params.monitor",
            self.monitor,
            "the name of a metric, such as validation/domain_mean_reward",
        )


@dataclass(slots=True, kw_only=True)
class ExpManagerConfig:
    """Where a run's files go and which loggers it uses. The field names are those of NeMo's exp_manager."""

    explicit_log_dir: str = "runs/prorl"
    """Folder of the run, with metrics.jsonl, checkpoints/ and stages/."""
    resume_if_exists: bool = True
    """Continues from the newest checkpoint of the folder; false refuses a folder that has one."""
    create_tensorboard_logger: bool = False
    """Writes TensorBoard events through Lightning."""
    create_wandb_logger: bool = False
    """Logs to Weights & Biases through Lightning; needs the package wandb."""
    wandb_logger_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of lightning's WandbLogger, such as project and name."""
    create_mlflow_logger: bool = False
    """Logs to MLflow through Lightning; needs the package mlflow."""
    mlflow_logger_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of lightning's MLFlowLogger, such as experiment_name and tracking_uri."""
    create_checkpoint_callback: bool = True
    """false: no checkpoint is ever written."""
    checkpoint_callback_params: CheckpointCallbackParams = field(default_factory=CheckpointCallbackParams)
    """When checkpoints are written and how many are kept."""
    max_time_per_run: str = ""
    """Time from the start of the process, as DD:HH:MM:SS, by which the run has saved and paused; empty: no limit. In a
    Slurm job the job's own time limit counts as well."""
    use_nemo: UseNemo = UseNemo.auto
    """Who creates the loggers. auto: NeMo's own exp_manager if nemo-toolkit 3 is installed, else Lightning; always:
    NeMo, and it is an error if it is not installed; never: Lightning."""
    nemo_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further fields of NeMo's exp_manager, such as files_to_copy or create_dllogger_logger; needs use_nemo=always."""

    def __post_init__(self) -> None:
        if not self.explicit_log_dir.strip():
            raise ConfigError(
                "exp_manager.explicit_log_dir is empty, so the run would be scattered over the working folder: write a "
                "folder for it, such as runs/mine."
            )
        if not fullmatch(r"(\d+:[0-5]?\d:[0-5]?\d:[0-5]?\d)?", self.max_time_per_run):
            raise ConfigError(
                f"exp_manager.max_time_per_run={self.max_time_per_run} is no time: write DD:HH:MM:SS, such as "
                "00:03:55:00."
            )
        if self.nemo_kwargs and self.use_nemo is not UseNemo.always:
            raise ConfigError(
                f"exp_manager.nemo_kwargs is read by NeMo only, and exp_manager.use_nemo={self.use_nemo.value}: write "
                "use_nemo=always."
            )

    @property
    def max_time_per_run_s(self) -> float:
        """`max_time_per_run` in seconds; 0: no limit."""
        seconds = 0
        for part, unit in zip(self.max_time_per_run.split(":"), (86400, 3600, 60, 1), strict=False):
            seconds += int(part or 0) * unit
        return float(seconds)


@dataclass(slots=True, kw_only=True)
class RunConfig:
    """All options of `train`."""

    seed: int = 1
    """Seed of the data order and of sampling."""
    stage: StageConfig = field(default_factory=StageConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
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
        patience_s = self.reward.request_timeout_s * self.reward.max_attempts
        if 0 < self.trainer.hang_timeout_s <= patience_s:
            raise ConfigError(
                f"trainer.hang_timeout_s={self.trainer.hang_timeout_s:g} would take for a hang what is a slow reward "
                f"service, which has reward.request_timeout_s x max_attempts = {patience_s:g} s: write more, or 0."
            )
        function_s = self.reward.function_silence_s
        if self.reward.function and 0 < self.trainer.hang_timeout_s <= function_s:
            raise ConfigError(
                f"trainer.hang_timeout_s={self.trainer.hang_timeout_s:g} would take for a hang what is a slow reward "
                f"function, which may be started (reward.ready_timeout_s) and called (reward.function_timeout_s) twice "
                f"without an answer, {function_s:g} s together: write more, or 0."
            )
        _check_best_exists(self)
        if self.sampler.ahead and self.algorithm.correction_level is CorrectionLevel.off:
            raise ConfigError(
                "sampler.ahead=true trains on rollouts of older weights: write algorithm.correction_level=token "
                "(or sequence, or geometric) as well."
            )

    @property
    def measures_kl(self) -> bool:
        """Whether the KL to the reference is measured, by one more pass over all rollouts: for the penalty, the
        controller's signal, or the choice of the best checkpoint."""
        controller, monitor = self.controller, self.exp_manager.checkpoint_callback_params.monitor
        is_signal = controller.kl_spike.action is not ControllerAction.ignore
        return (
            self.algorithm.kl_beta > 0
            or (controller.mode is ControllerMode.automatic and is_signal)
            or monitor.startswith("objective/kl_")
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
            f"{where}.monitor=validation/domain_mean_reward."
        )
    if not config.data.validation:
        raise ConfigError(
            f"{asked} needs held-out prompts, which say what is best: write data.validation=[FILE, ...], or "
            f"{asked.replace('reset_to=best', 'reset_to=current').replace('start_from=best', 'start_from=last')}."
        )
    every, interval = params.every_n_train_steps, config.validation.interval
    if config.controller.reset_to is ResetTo.best and (every == 0 or interval == 0 or interval % every):
        raise ConfigError(
            f"{asked} needs a checkpoint at every validation: {where}.every_n_train_steps={every} must divide "
            f"validation.interval={interval}, and neither may be 0."
        )


@dataclass(slots=True, kw_only=True)
class DataBuildConfig:
    """`data build`: what is read, how much of it is kept, and which model judges where a judge is needed."""

    source: str = ""
    """A file, a folder (.json, .jsonl, .csv, gzipped or not, .parquet) or a data set on the hub; empty: the published
    one."""
    revision: str = ""
    """Commit or tag of a data set on the hub; empty: the newest."""
    out: str = "data"
    """Folder in which each data set gets a folder of its name."""
    limit: int = 0
    """Maximum number of records to read, for a trial; 0: all."""
    rows: int = -1
    """Training rows to keep, chosen by seed from those that pass; -1: as many as ProRL's set has (40,000 of deepscaler,
    24,000 of eurus, 25,000 of scp116k, 37,000 of reasoning_gym, 10,000 of llama_nemotron_if); 0: all."""
    held_out: int = -1
    """Rows kept out of training for validation, with reasoning_gym per task; -1: none, but with reasoning_gym ProRL's
    100 per task."""
    against: list[str] = field(default_factory=list)
    """Evaluation files and folders that no row may overlap with."""
    seed: int = 1
    """Seed for choosing rows and for generated problems."""
    endpoint: str = ""
    """OpenAI-compatible server whose model extracts and compares answers, such as http://127.0.0.1:8000/v1."""
    model: str = ""
    """Name of the model at the endpoint (ProRL: GPT-4o)."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's API key; a local server needs none."""
    concurrency: int = 32
    """Maximum number of concurrent requests to the endpoint."""
    requests_per_minute: float = 0.0
    """Maximum rate of requests to the endpoint; 0: no limit."""
    max_retries: int = 8
    """Retries of one request to the endpoint after 429, 5xx or a lost connection, as its Retry-After says or with
    backoff."""
    endpoint_timeout_s: float = 600.0
    """Timeout of one request to the endpoint in seconds."""
    max_reply_tokens: int = 4096
    """Maximum number of tokens in one reply of the endpoint's model, reasoning included."""
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        for name, minimum in {
            "limit": 0,
            "rows": -1,
            "held_out": -1,
            "concurrency": 1,
            "max_reply_tokens": 1,
        }.items():
            _require(getattr(self, name) >= minimum, name, getattr(self, name), f"at least {minimum}")
        for name in ("requests_per_minute", "max_retries"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _require(self.endpoint_timeout_s > 0, "endpoint_timeout_s", self.endpoint_timeout_s, "greater than 0")
        if self.reward.function:
            raise ConfigError(
                "reward.function grades rollouts, and data build asks the reward service about gold answers: leave it "
                "out."
            )
