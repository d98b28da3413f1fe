"""The data types of a step.

    Prompt -> Rollout (on the rank that sampled it)
    Rollout -> RolloutOutline -> ScoredRollout -> RolloutGroup (on every rank)
    Rollout -> RolloutTokens -> PreparedRollout -> TrainBatch -> UpdateReport (on one replica)

Names of batched arrays end in their shape: `B` rollouts, `T` tokens of prompt and response. Arrays of one response have
the shape [R], its number of tokens, and no suffix. A value at position t of a `_BT` array belongs to the token at
position t (a log-probability at t was computed from the logits at t - 1). It is 0 where `response_mask_BT` is False.

Four policies have four prefixes: `sampler_` (vLLM), `old_` (the trainer's weights before the updates of the step),
`current_` (being updated), `reference_` (the anchor of the KL penalty).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reward.protocol import ScoreResult

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TokenIds = NDArray[np.int32] | IntArray
"""Token ids are sent between ranks in 32 bits, which is enough for every vocabulary."""

CORRECT = 1.0
"""A rollout with at least this score counts as solved."""

PARTS = "parts"
"""Key in a verdict's details: name -> value of each reward function and of the service."""


class Finish(StrEnum):
    """Why a rollout ended: `stop` at the end-of-sequence token, `length` because it ran out of tokens."""

    stop = "stop"
    length = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question, rendered and tokenised.

    Example: Prompt(uid="chain_sum/train/17#0", domain="logic", source="chain_sum", text="<user>3+4=?...",
                    token_ids=(5, 9, 2), task={"task": "chain_sum", "entry": {...}})
    """

    uid: str
    """Unique within a step: the row's uid and the epoch."""
    domain: str
    source: str
    text: str
    """Everything up to the beginning of the answer."""
    token_ids: tuple[int, ...]
    """Tokens of `text`, and behind them those of `begun`."""
    task: Mapping[str, Any]
    """The grader's input, such as the expected answer; sent to the reward service verbatim."""
    opens_thought: bool = False
    """Whether the text ends inside <think>, so that every response to it begins inside a thought."""
    begun: str = ""
    """The beginning of the answer, with which every response begins although the policy does not write it."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every column of the prompt's row, for reward functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTokens:
    """The tokens of a rollout, for a forward pass. Only the rank that sampled it and the replica that computes
    with it hold them."""

    prompt: Prompt
    token_ids: TokenIds
    """[R], including the end-of-sequence token if the rollout ended with one."""
    sampler_logprobs: FloatArray
    """[R], log-probability of each token under the sampling distribution (temperature applied)."""

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt.token_ids) + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(RolloutTokens):
    """One sampled response, held by the rank that sampled it. The token ids are the sampler's own: text is never
    tokenised again."""

    sibling: int
    """Index of this rollout in its group, 0 .. n - 1."""
    text: str
    """The whole answer: what the prompt has begun, and what the policy has added."""
    finish: Finish
    policy_version: int
    """Number of optimizer updates that made the weights that sampled it."""


Share = Mapping[int, Sequence[Rollout]]
"""Index of the prompt -> its rollouts that one engine has sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOutline:
    """The part of a rollout that every rank holds: everything except its tokens and text, which are large."""

    prompt: Prompt
    sibling: int
    num_tokens: int
    """Number of tokens of the response."""
    finish: Finish
    policy_version: int
    has_malformed_thought: bool
    """See `algorithm.shaping.is_malformed_thought`."""

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt.token_ids) + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRollout(RolloutTokens):
    """A rollout with the trainer's log-probabilities of its tokens."""

    old_logprobs: FloatArray | None
    """[R]; None until the step's first update has computed them, if the rollout is in it."""
    reference_logprobs: FloatArray | None
    """[R]; the same object as old_logprobs if the policy is its reference, or if the KL is not measured."""

    @property
    def logprobs(self) -> tuple[FloatArray, FloatArray]:
        """Returns the old and the reference's log-probabilities, which must be known."""
        assert self.old_logprobs is not None
        assert self.reference_logprobs is not None
        return self.old_logprobs, self.reference_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """The outline of a rollout with the grader's result (`verdict`) and the reward after shaping."""

    rollout: RolloutOutline
    verdict: ScoreResult
    reward: float
    in_loss: bool = True
    """False: the rollout counts in its group's statistics but not in the loss (shaping.overlong_filtering)."""
    shaped_by: tuple[str, ...] = ()
    """Names of the shaping rules that applied to it (`algorithm.shaping.SHAPINGS`)."""

    @property
    def parts(self) -> Mapping[str, float]:
        """Name -> value of the parts whose weighted sum is the score; empty without reward functions."""
        return self.verdict.details.get(PARTS, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroup:
    """All scored rollouts of one prompt, without those that could not be graded."""

    prompt: Prompt
    members: tuple[ScoredRollout, ...]
    num_failed: int = 0
    """Number of rollouts that were dropped because they could not be graded."""

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(member.reward for member in self.members)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all responses."""
        return sum(member.rollout.num_tokens for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Prompts and responses, padded on the right.

    Example: token_ids_BT=[[5, 9, 2, 7, 1], [5, 9, 2, 1, 0]], response_mask_BT=[[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]],
             lengths_B=[5, 4]
    """

    token_ids_BT: IntArray
    response_mask_BT: BoolArray
    lengths_B: IntArray

    def __len__(self) -> int:
        return len(self.lengths_B)

    def select(self, rows: Sequence[int]) -> TokenBatch:
        """Returns the given rows, truncated to the longest of them."""
        index = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths_B[index]
        width = int(lengths.max(initial=0))
        return TokenBatch(
            token_ids_BT=self.token_ids_BT[index, :width],
            response_mask_BT=self.response_mask_BT[index, :width],
            lengths_B=lengths,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The rows of one optimizer update that this replica trains on."""

    tokens: TokenBatch
    advantages_B: FloatArray
    sampler_logprobs_BT: FloatArray
    old_logprobs_BT: FloatArray | None
    """None: those of the policy that the update begins with, as in a step's first update."""
    reference_logprobs_BT: FloatArray | None
    """None: the old ones, which are None as well."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Response tokens, the unit of the loss."""
        return int(self.tokens.response_mask_BT.sum())

    def select(self, rows: Sequence[int]) -> TrainBatch:
        tokens = self.tokens.select(rows)
        index, width = np.asarray(rows, dtype=np.int64), tokens.token_ids_BT.shape[1]
        return TrainBatch(
            tokens=tokens,
            advantages_B=self.advantages_B[index],
            sampler_logprobs_BT=self.sampler_logprobs_BT[index, :width],
            old_logprobs_BT=None if self.old_logprobs_BT is None else self.old_logprobs_BT[index, :width],
            reference_logprobs_BT=None
            if self.reference_logprobs_BT is None
            else self.reference_logprobs_BT[index, :width],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Size of one optimizer update over all data-parallel ranks; the loss is divided by it."""

    num_tokens: int
    num_rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """Results of one optimizer update on this model replica."""

    loss: float
    """Loss of the whole update, summed over data-parallel ranks."""
    grad_norm: float
    """Norm of the gradient before clipping."""
    learning_rate: float
    current_logprobs_BT: FloatArray
    """Log-probabilities of this replica's rows, under the weights before the update."""
    entropy_BT: FloatArray
    """Entropy of the next-token distribution at the training temperature, in nats, for this replica's rows."""
    relative_change: Mapping[str, float] = field(default_factory=dict)
    """Low-rank training only: group of matrices -> norm of the difference to the reference over that of the weights,
    after the update."""


TOKEN_LIMITS = ("clipped_low", "clipped_high", "clipped_dual", "weight_truncated", "masked")
"""What bounds a token's part in the loss, by bit of `algorithm.metrics.token_limits`; masked: its weight is 0."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state in a checkpoint besides weights, optimizer and reference. JSON-serialisable."""

    stage: str
    step: int = 0
    """Steps of this run since the first stage began."""
    stage_step: int = 0
    """Steps of this stage."""
    num_updates: int = 0
    num_resets: int = 0
    last_reset_step: int = 0
    last_reset_update: int = 0
    """num_updates when the policy last became the reference; while both are equal, it is the reference."""
    last_reset_request: str = ""
    """Id of the user's request that led to the last requested reset: its file may still exist after a crash."""
    last_save_request: str = ""
    """The same of the last checkpoint that a user asked for."""
    prompts: dict[str, Any] = field(default_factory=dict)
    """Cursor of the data mix."""
    sampling_yield: float = 1.0
    """Informative share of the sampled prompts: a running average in which the newest step counts one half."""
    recent_prompts: float = 0.0
    """Prompts that the stage's recent steps have sampled: all of the newest step, half as many of each one before."""
    recent_informative: float = 0.0
    """Those of them that were informative."""
    highest_score: float = CORRECT
    """Highest score of a response in this stage, and at least CORRECT: what all of a prompt's responses score that the
    policy has learned."""
    num_attempts: int = 0
    """How often this step found too little to learn from. Each attempt samples other responses."""
    entropy: float = 0.0
    """Mean entropy of the last step, in nats per token."""
    entropy_coefficient: float | None = None
    """State of the adaptive entropy bonus; None if the last step had none."""
    validation: list[dict[str, Any]] = field(default_factory=list)
    """One record per validation by `measurement`: its step, and the results of `training.evaluation.summarise`."""
    measurement: dict[str, str] = field(default_factory=dict)
    """What the run's validations measure (`training.evaluation`); empty if there was none yet."""
    reward: dict[str, str] = field(default_factory=dict)
    """Name -> description (weight, identity of the file) of each part of the reward: functions and reward service."""
    controller: dict[str, Any] = field(default_factory=dict)
    """History of the reset controller."""
    num_records: int = 0
    """Number of lines of metrics.jsonl up to this checkpoint; a resumed run repeats the later ones."""
    outcome: str = ""
    """Why the stage ended; empty while it continues."""
    went_back_to: int = -1
    """Step of the checkpoint that the policy went back to, until the next record contains it; -1: none."""

    @property
    def steps_since_reset(self) -> int:
        """Steps since the last reset, or since the run's start. A stage that begins without one goes on counting."""
        return self.step - self.last_reset_step

    @property
    def policy_is_reference(self) -> bool:
        """Whether policy and reference have the same weights, and therefore the same log-probabilities."""
        return self.num_updates == self.last_reset_update
