"""Dynamic sampling (DAPO eq. 11, ProRL section 3.3): which groups carry a training signal."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import comb, exp, lgamma, log

from nemo_prorl.config import InformativeBy
from nemo_prorl.types import CORRECT, RolloutGroup


class Informativeness(StrEnum):
    """Why a group is kept or dropped; only `informative` groups are kept."""

    informative = "informative"
    all_right = "all_right"
    all_wrong = "all_wrong"
    all_equal = "all_equal"
    """All scores, or all shaped rewards, are equal, and the scores are neither all right nor at most 0. Examples are
    three rollouts that each pass half of the tests, and a right and a wrong one to which shaping gave the same
    reward."""
    all_filtered = "all_filtered"
    """Overlong filtering keeps every rollout of the group out of the loss."""
    service_failure = "service_failure"
    """Fewer than two rollouts were graded: there is nothing to compare, through no fault of the policy."""


def classify(group: RolloutGroup, by: InformativeBy, right: float = CORRECT) -> Informativeness:
    """Returns why a group is kept or dropped. DAPO eq. 11 keeps a prompt if some of its rollouts are right and some are
    wrong; with other scores it is kept if they differ.

    by: `score` judges by the task's score, as DAPO and ProRL (section 3.3) do: a group that is all right stays
    uninformative even if shaping lowers the reward of a member that ran out of tokens. `reward` judges by the shaped
    reward alone. Either way the rewards must differ as well, since equal rewards give advantages of 0.

    right: what all right answers score at least.

    Equality means max == min, never a floating-point standard deviation, which is not 0 for many groups of equal
    fractions.
    """
    if len(group.members) < 2:
        return Informativeness.service_failure
    if not any(member.in_loss for member in group.members):
        return Informativeness.all_filtered
    scores = {member.verdict.score or 0.0 for member in group.members}  # None if it is not graded
    rewards_differ = max(group.rewards) != min(group.rewards)
    if rewards_differ and (by is InformativeBy.reward or len(scores) > 1):
        return Informativeness.informative
    if min(scores) >= right:
        return Informativeness.all_right
    if max(scores) <= 0:
        return Informativeness.all_wrong
    return Informativeness.all_equal


def keep_first(
    kinds_in_prompt_order: Sequence[Informativeness], needed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the indices of the first `needed` informative groups, in the order in which their prompts were drawn, and
    of the further ones, whose sampling and grading were wasted.

    Prompt order is fixed before sampling, so it does not matter which group finished first: taking the first to finish
    would favour prompts with short answers. Returns fewer than `needed` if there are no more.
    """
    informative = [i for i, kind in enumerate(kinds_in_prompt_order) if kind is Informativeness.informative]
    return tuple(informative[:needed]), tuple(informative[needed:])


def known_to_be_kept(
    kinds_in_prompt_order: Sequence[Informativeness | None], needed: int
) -> list[bool | None]:
    """Returns for each group whether `keep_first` will keep it, as far as the groups known so far determine that.

    kinds_in_prompt_order: None for a group whose verdicts are still missing. The result is None where it depends on
    missing verdicts, of the group itself or of groups before it. A True or False is final, whatever the missing
    verdicts turn out to be.
    """
    decided: list[bool | None] = []
    num_informative = num_open = 0
    for kind in kinds_in_prompt_order:
        if num_informative >= needed or kind not in (None, Informativeness.informative):
            decided.append(False)
        elif kind is not None and num_informative + num_open < needed:
            decided.append(True)
        else:
            decided.append(None)
        num_informative += kind is Informativeness.informative
        num_open += kind is None
    return decided


def chance_of_so_few(num_found: int, num_prompts: int, found_before: float, prompts_before: float) -> float:
    """Returns the probability that at most `num_found` of `num_prompts` groups are informative, if `found_before` of
    `prompts_before` earlier ones were: the distribution function of the beta-binomial distribution, with the prior
    Beta(1/2, 1/2) (Jeffreys 1946). Without earlier groups hardly anything is improbable."""
    a, b = found_before + 0.5, prompts_before - found_before + 0.5

    def log_beta(x: float, y: float) -> float:
        return lgamma(x) + lgamma(y) - lgamma(x + y)

    ways = (log(comb(num_prompts, k)) + log_beta(a + k, b + num_prompts - k) for k in range(num_found + 1))
    return sum(exp(of_k - log_beta(a, b)) for of_k in ways)
