"""Whether a step that finds too few informative groups may be chance, and what to do about one that is not.

A small step often finds few by chance: at a share of 0.11, one step in 40 has none among 32 prompts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nemo_prorl.algorithm.selection import Informativeness, chance_of_so_few
from nemo_prorl.types import RunState

IMPROBABLE = 1e-6
"""What is less probable is no chance: of 1,000 healthy runs of 5,000 steps, about 5 end for nothing."""
LEAST_SHARE = 0.05
"""Below this share of informative groups more than 20 prompts are sampled for each that is trained on, and a step that
finds too few ends the stage."""
SUDDEN_SHARE = 0.2
"""At least so large a share of informative groups does not fall to nothing because the data are learned."""
MOST = 0.9
"""Share of the responses that shows a cause."""
LEARNED = 0.9
"""Share of groups that are all right in data that the policy has learned. A policy that has collapsed, and answers
always alike, gets some prompts all wrong as well."""


def may_be_chance(num_found: int, num_prompts: int, state: RunState) -> bool:
    """Returns whether so few informative groups are probable enough at the share of the stage's recent steps, and at
    LEAST_SHARE. state: before the step."""
    recent, certain = (state.recent_informative, state.recent_prompts), (1e6 * LEAST_SHARE, 1e6)
    return min(chance_of_so_few(num_found, num_prompts, *of) for of in (recent, certain)) >= IMPROBABLE


def is_done(kinds: Counter[Informativeness], state: RunState) -> bool:
    """Returns whether the data of a stage is exhausted in which a step finds too few groups. Not in its first step, or
    if the share was high before: data does not run out within a step, so the reward may have broken."""
    is_learned = kinds[Informativeness.all_right] >= LEARNED * kinds.total()
    return state.stage_step > 0 and is_learned and _chance_as_before(kinds, state) >= IMPROBABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a step's responses have in common."""

    example: str
    """Says what score a response got."""
    cut_share: float
    """Share that the token limit ended."""
    no_box_share: float
    """Share in which the service found no answer."""


def advice(kinds: Counter[Informativeness], state: RunState, functions: list[str], seen: Seen) -> str:
    """Returns what to do about a step that found too few groups, in a stage that is not done: the most probable cause
    first. functions: the user's reward functions."""
    most = next((kind for kind, count in kinds.items() if count > kinds.total() / 2), None)
    before = f"their share was {state.sampling_yield:.2f} until now"
    harder = "train on easier ones, or sample more rollouts of each (sampler.num_rollouts)"
    collapsed = (
        f"the policy may have collapsed (its entropy is {state.entropy:.2g}): go back by `rewind`, and lower "
        "trainer.learning_rate"
    )
    if most is Informativeness.all_filtered:
        text = (
            "most groups have no response that ends within the token limit, and overlong filtering leaves out all "
            "others. Let responses be longer (sampler.max_response_tokens), or write shaping.overlong_filtering=false"
        )
    elif (chance := _chance_as_before(kinds, state)) < IMPROBABLE:
        text = (
            f"{before}, which makes this a chance of {chance:.0e}, so something has changed. Look at the reward first: "
            f"{seen.example}; `evaluate data=FILE --samples OUT.jsonl` writes more. If it is right, {collapsed}"
        )
    elif state.stage_step:
        hard = f"what is left is too hard: {harder}"
        causes = (hard, collapsed) if state.sampling_yield < SUDDEN_SHARE else (collapsed, hard)
        text = f"{before}, and now nearly all responses to a prompt get the same score. Either {'; or '.join(causes)}"
    elif most is Informativeness.all_right:
        gives = f", or {functions[0]} pays all alike: {seen.example}" if functions else ""
        text = (
            f"the policy already solves most of these prompts{gives}. Train on harder ones, or leave this stage out: "
            "begin the next one with this one's stage.parent"
        )
    else:
        cut = f"{seen.cut_share:.0%} of the responses are cut off: raise sampler.max_response_tokens. "
        check = (
            f"{functions[0]} (`train --check` shows what right answers get)" if functions else "the grader"
        )
        suspect = f"{check}, then whether answers have the form that it expects"
        if seen.no_box_share > MOST and not functions:
            suspect = (
                f"the form of answers: {seen.no_box_share:.0%} have no \\boxed{{}}, where the grader looks for the "
                "answer. Let the prompts ask for it, or grade another form by a function (reward.function)"
            )
        text = (
            f"all responses to a prompt get the same score: {seen.example}. {cut if seen.cut_share > MOST else ''}"
            f"Look first at {suspect}. Else the prompts are too hard: {harder}, or let responses be longer "
            "(sampler.max_response_tokens)"
        )
    if kinds[Informativeness.informative]:
        text += (
            ". A lower trainer.prompts_per_step needs fewer, more dynamic_sampling.max_rounds may find more"
        )
    return f"{text}."


def _chance_as_before(kinds: Counter[Informativeness], state: RunState) -> float:
    """Returns the probability of so few informative groups at the share of the stage's recent steps; 1 if that was
    below LEAST_SHARE already."""
    if state.sampling_yield < LEAST_SHARE:
        return 1.0
    recent = state.recent_informative, state.recent_prompts
    return chance_of_so_few(kinds[Informativeness.informative], kinds.total(), *recent)
