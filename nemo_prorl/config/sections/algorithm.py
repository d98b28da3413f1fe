"""algorithm.*: advantages, objective, KL penalty, entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require

KlEstimator = StrEnum("KlEstimator", ["k1", "k2", "k3"])
"""Schulman's three estimators of KL(current || reference), http://joschu.net/blog/kl-approx.html."""
Aggregation = StrEnum("Aggregation", ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"])
Advantage = StrEnum("Advantage", ["group_std", "group_mean", "leave_one_out", "batch_std", "maxrl"])
Objective = StrEnum("Objective", ["clip", "cispo", "dppo"])
RatioLevel = StrEnum("RatioLevel", ["token", "sequence"])
KlIn = StrEnum("KlIn", ["loss", "reward"])
CorrectionLevel = StrEnum("CorrectionLevel", ["off", "token", "sequence", "geometric"])
CorrectionMode = StrEnum("CorrectionMode", ["truncate", "mask", "drop"])
EntropyBonus = StrEnum("EntropyBonus", ["fixed", "adaptive"])


@dataclass(slots=True, kw_only=True)
class AlgorithmConfig:
    """GRPO with DAPO's decoupled clip and ProRL's KL penalty by default; docs/algorithm.md has every formula."""

    advantage: Advantage = Advantage.group_std
    """How rewards become advantages. group_std: minus the group's mean, divided by its standard deviation (ProRL eq.
    2); group_mean: minus the group's mean (Dr. GRPO); leave_one_out: minus the mean of the other rollouts (RLOO);
    batch_std: group_mean, normalised over all response tokens of the step (REINFORCE++-baseline, ProRL v2); maxrl:
    group_mean divided by the mean's distance to the lowest reward, which for rewards of 0 and 1 maximises the log of
    the pass rate as num_rollouts grows (MaxRL)."""
    objective: Objective = Objective.clip
    """clip: PPO's clipped surrogate (ProRL eq. 1), which stops the gradient of clipped tokens; cispo: the
    log-probability, weighted by the clipped ratio as a constant (MiniMax-M1); dppo: the ratio times the advantage,
    without tokens whose probability has moved from the sampler's by more than clip_high (A > 0) or clip_low (A < 0)
    (DPPO, which has 0.2 for both)."""
    ratio_level: RatioLevel = RatioLevel.token
    """token: each token has its own ratio (ProRL eq. 1); sequence: the geometric mean over the rollout (GSPO), which
    needs far smaller clip_low and clip_high."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low (ProRL eq. 3: 0.2); 1: no lower bound."""
    clip_high: float = 0.4
    """The ratio is clipped above at 1 + clip_high (ProRL eq. 3: 0.4)."""
    dual_clip: float = 3.0
    """With a negative advantage A the objective is at least c A, so that no token counts more than c times (arXiv
    1912.09729; verl: 3); 0: off. Without effect with cispo."""
    aggregation: Aggregation = Aggregation.token_mean
    """How token losses become one number. token_mean: the mean over all response tokens of the update (DAPO eq. 8;
    ProRL does not say); sequence_mean_token_mean and sequence_mean_token_sum: the mean over responses of their tokens'
    mean or sum."""
    aggregation_constant: float = 1.0
    """With sequence_mean_token_sum the sum over a response is divided by this (Dr. GRPO: the maximum number of response
    tokens); 0: the limit found with sampler.max_response_tokens=0."""
    kl_beta: float = 1e-4
    """Weight of the KL penalty (ProRL: 1e-4). 0: no penalty, and no pass of the reference unless a signal or the
    monitored metric needs it."""
    kl_estimator: KlEstimator = KlEstimator.k3
    """Estimator of the KL penalty (ProRL eq. 5: k3)."""
    kl_in: KlIn = KlIn.loss
    """loss: the penalty is a term of each token's loss (ProRL eq. 4); reward: its sum over the response is subtracted
    from the reward (RLOO)."""
    kl_weighted: bool = False
    """Corrects the KL term for tokens that older weights sampled: multiplies it by the ratio of current to old
    probability, which has a gradient, and by the sampler's importance weight (DeepSeek-V3.2 eq. 7). Needed with
    sampler.ahead; without effect with kl_in=reward."""
    kl_clamp_log_ratio: float = 20.0
    """The log-ratio in the KL estimator is clamped to plus or minus this many nats, beyond which a token has no KL
    gradient (ProRL v2: 10; verl: 20); 0: no clamp."""
    kl_clamp_value: float = 10.0
    """The KL estimate of a token is clamped to plus or minus this many nats, beyond which it has no gradient (verl:
    10); 0: no clamp."""
    correction_level: CorrectionLevel = CorrectionLevel.off
    """Ratio of the trainer's to the sampler's probability that weights the policy gradient. token: each token's;
    sequence: the product over the response; geometric: its geometric mean; off: none."""
    correction_mode: CorrectionMode = CorrectionMode.truncate
    """What happens if that ratio is outside [correction_low, correction_high]. truncate: it is clamped; mask: the
    weight is 0; drop: the whole rollout gets the weight 0, and all others keep their tokens' own weights."""
    correction_low: float = 0.0
    """Lower bound of that ratio."""
    correction_high: float = 2.0
    """Upper bound of that ratio (verl: 2)."""
    entropy_bonus: EntropyBonus = EntropyBonus.fixed
    """fixed: a constant entropy_coefficient; adaptive: Skywork-OR1's rule drives the entropy towards entropy_target."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus, or its initial value if it is adaptive."""
    entropy_target: float = 0.2
    """Entropy in nats per token at or below which the adaptive bonus is active (arXiv 2505.22312)."""
    entropy_target_end: float = 0.0
    """Target to which entropy_target moves linearly over entropy_anneal_steps, in nats per token (Entrocraft's
    schedule, arXiv 2604.26326); 0: it stays."""
    entropy_anneal_steps: int = 0
    """Steps from the run's start or its last reset until entropy_target_end. A stage that begins without a reset goes
    on with the schedule."""
    entropy_step: float = 0.005
    """Change of the adaptive entropy coefficient per step."""
    entropy_coefficient_max: float = 0.1
    """Upper bound of the adaptive entropy coefficient."""

    @property
    def has_kl_in_loss(self) -> bool:
        return self.kl_beta > 0 and self.kl_in is KlIn.loss

    @property
    def takes_kl_from_rewards(self) -> bool:
        """Returns whether the KL penalty is subtracted from the rewards instead of being a term of the loss."""
        return self.kl_beta > 0 and self.kl_in is KlIn.reward

    def __post_init__(self) -> None:
        at_least("algorithm", self, 0, ["clip_high", "kl_beta", "entropy_coefficient", "entropy_step"])
        at_least("algorithm", self, 0, ["kl_clamp_log_ratio", "kl_clamp_value", "correction_low"])
        at_least("algorithm", self, 0, ["aggregation_constant", "entropy_target_end", "entropy_anneal_steps"])
        positive("algorithm", self, ["entropy_target", "entropy_coefficient_max"])
        require(0 <= self.clip_low <= 1, "algorithm.clip_low", self.clip_low, "in [0, 1]")
        require(
            self.correction_high > self.correction_low,
            "algorithm.correction_high",
            self.correction_high,
            f"greater than algorithm.correction_low={self.correction_low:g}",
        )
        require(
            self.dual_clip == 0 or self.dual_clip > 1,
            "algorithm.dual_clip",
            self.dual_clip,
            "0 or greater than 1",
        )
        schedule = (self.entropy_target_end > 0, self.entropy_anneal_steps > 0)
        if any(schedule) and not (all(schedule) and self.entropy_bonus is EntropyBonus.adaptive):
            raise ConfigError(
                f"algorithm.entropy_target_end={self.entropy_target_end:g} and algorithm.entropy_anneal_steps="
                f"{self.entropy_anneal_steps} move the target of an adaptive bonus together: write both above 0, such "
                "as 0.1 and 200, with algorithm.entropy_bonus=adaptive, or leave both out."
            )
        if self.aggregation_constant != 1 and self.aggregation is not Aggregation.sequence_mean_token_sum:
            raise ConfigError(
                f"algorithm.aggregation_constant={self.aggregation_constant:g} is a divisor for "
                "algorithm.aggregation=sequence_mean_token_sum only: write that, or leave it at 1."
            )
