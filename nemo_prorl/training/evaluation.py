"""Validation: samples and grades held-out prompts with the same sampler and graders as training.

Values of two validations compare only if they measure the same (`measurement`).
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nemo_prorl.algorithm.pass_at_k import mean_pass_at_k
from nemo_prorl.algorithm.shaping import unshaped
from nemo_prorl.config import RunConfig
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, SamplingSettings
from nemo_prorl.run_folder.validation_metrics import domain_mean
from nemo_prorl.training.sampling.fleet import Key, SamplerFleet
from nemo_prorl.training.sampling.grading import GradingInFlight, check_failures, for_all_ranks, graded_group
from nemo_prorl.types import CORRECT, Finish, Prompt, Rollout, RolloutGroup, RunState, ScoredRollout, Share
from reward.protocol import ScoreResult

_POLL_S = 0.05


def validation_settings(config: RunConfig) -> SamplingSettings:
    """Returns the settings of every validation. They share one seed, so that differences come from the weights."""
    return SamplingSettings(
        num_rollouts=config.validation.num_rollouts,
        temperature=config.validation.temperature,
        top_p=config.validation.top_p,
        max_response_tokens=config.sampler.max_response_tokens,
        seed=config.seed,
    )


def measurement(config: RunConfig, prompts: Sequence[Prompt], grader_version: str) -> dict[str, str]:
    """Returns name -> value of all that decides what a validation measures, apart from the weights; empty without
    prompts. The seed is not part of it: another one gives other samples of the same policy."""
    if not prompts:
        return {}
    settings = validation_settings(config)
    asked = hashlib.sha256()
    for prompt in prompts:
        content = [prompt.uid, prompt.text, prompt.task, prompt.columns]
        asked.update(json.dumps(content, sort_keys=True, default=str).encode())
    return {
        "validation.num_rollouts": f"{settings.num_rollouts}",
        "validation.temperature": f"{settings.temperature:g}",
        "validation.top_p": f"{settings.top_p:g}",
        "sampler.max_response_tokens": f"{settings.max_response_tokens}",
        "held-out prompts": f"{len(prompts)} (hash {asked.hexdigest()[:8]})",
        "graders": grader_version,
    }


def begin_measuring(state: RunState, now: Mapping[str, str]) -> str:
    """Makes `now` what the run's validations measure from here on; an empty one, without prompts, changes nothing.

    Forgets the validations so far if they measured something else, and returns a sentence about it. Returns an empty
    string if nothing has changed, or if it is not known what they measured.
    """
    before = state.measurement
    if not now or before == now:
        return ""
    state.measurement = dict(now)
    if not before:
        return ""
    state.validation = []
    changes = [
        f"{name} {before.get(name)} -> {value}" for name, value in now.items() if before.get(name) != value
    ]
    return (
        f"validation measures something else from here on ({', '.join(changes)}): the reset controller, the best score "
        "and save_top_k do not compare it with earlier validations"
    )


def evaluate(
    prompts: Sequence[Prompt],
    settings: SamplingSettings,
    *,
    fleet: SamplerFleet,
    grader: Grader,
    ranks: Ranks,
    max_failed_share: float,
    say: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[], None] = lambda: None,
) -> tuple[list[RolloutGroup], Share]:
    """Returns (one group per prompt, in order, on every rank; the rollouts that this rank has sampled). Collective. The
    reward of a rollout is its score, without shaping. say, on_progress: see GradingInFlight.

    Raises RewardServiceFailing if grading failed on more than `max_failed_share` of the rollouts.
    """
    verdicts: dict[Key, ScoreResult] = {}
    share = sample_and_grade(
        prompts,
        settings,
        fleet=fleet,
        in_flight=GradingInFlight(grader, say=say, on_progress=on_progress),
        on_rollout=lambda index, rollout: None,
        on_verdict=verdicts.__setitem__,
    )
    rollouts = fleet.outlines(share, prompts, settings.num_rollouts)
    for part in ranks.gather({key: for_all_ranks(verdict) for key, verdict in verdicts.items()}):
        verdicts |= part
    check_failures(list(verdicts.values()), max_failed_share)
    groups = [
        graded_group(prompt, group, [verdicts[index, r.sibling] for r in group], unshaped)
        for index, (prompt, group) in enumerate(zip(prompts, rollouts, strict=True))
    ]
    return groups, share


def sample_and_grade(
    prompts: Sequence[Prompt],
    settings: SamplingSettings,
    *,
    fleet: SamplerFleet,
    in_flight: GradingInFlight,
    on_rollout: Callable[[int, Rollout], None],
    on_verdict: Callable[[Key, ScoreResult], None],
) -> Share:
    """Samples and grades this rank's share. Returns its rollouts. Calls `on_rollout` as soon as a rollout ends, and
    `on_verdict` as soon as a verdict arrives.

    Only the ranks of one engine sample together; nothing else is collective, so ranks return at different times.
    """

    def finished(index: int, rollout: Rollout) -> None:
        on_rollout(index, rollout)
        in_flight.submit((index, rollout.sibling), rollout)
        deliver(in_flight, on_verdict)

    share = fleet.sample_share(prompts, settings, finished)
    drain(in_flight, on_verdict)
    return share


def drain(in_flight: GradingInFlight, on_verdict: Callable[[Key, ScoreResult], None]) -> None:
    """Waits for all verdicts that are still missing, and passes them on."""
    deliver(in_flight, on_verdict)
    while in_flight.num_pending:
        in_flight.wait(_POLL_S)
        deliver(in_flight, on_verdict)


def deliver(in_flight: GradingInFlight, on_verdict: Callable[[Key, ScoreResult], None]) -> None:
    """Passes on the verdicts that have arrived since the last call."""
    for key, verdict in in_flight.take_finished().items():
        on_verdict(key, verdict)


def summarise(groups: Sequence[RolloutGroup], ks: Sequence[int]) -> dict[str, float]:
    """Returns mean and standard deviation of the rewards, pass@k for each k, response length, and the share of
    responses that ran out of tokens, over all groups and per domain.

    `score` is the mean over prompts of the mean over rollouts, so that prompts count equally; `domain_mean_score` is
    the mean of the domains' rewards, so that domains count equally. pass@k leaves out groups of which fewer than k
    rollouts were graded.
    """
    summary = _summarise(groups, ks)
    by_domain: Mapping[str, list[RolloutGroup]] = defaultdict(list)
    for group in groups:
        by_domain[group.prompt.domain].append(group)
    for domain, members in sorted(by_domain.items()):
        summary |= {f"{domain}/{name}": value for name, value in _summarise(members, ks).items()}
    mean = domain_mean(summary)
    return summary if mean is None else summary | {"domain_mean_score": mean}


def source_scores(groups: Sequence[RolloutGroup], sources: Mapping[str, str]) -> dict[str, float]:
    """Returns the mean over prompts of the mean over rollouts, per source. sources: as in StepContext."""
    scores: Mapping[str, list[float]] = defaultdict(list)
    for group in groups:
        if group.members and group.prompt.source in sources:
            scores[sources[group.prompt.source]].append(float(np.mean(group.rewards)))
    return {f"source/{name}/held_out_score": float(np.mean(found)) for name, found in sorted(scores.items())}


def part_means(members: Sequence[ScoredRollout]) -> dict[str, float]:
    """Returns the mean value of each reward function, and of the service's score if both are used, over the rollouts
    that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for member in members:
        for name, value in member.parts.items():
            values[name].append(value)
    return {name: float(np.mean(found)) for name, found in sorted(values.items())}


def _summarise(groups: Sequence[RolloutGroup], ks: Sequence[int]) -> dict[str, float]:
    graded = [group for group in groups if group.members]
    if not graded:
        return {"num_prompts": 0.0}
    rollouts = [member.rollout for group in graded for member in group.members]
    summary = {
        "num_prompts": float(len(graded)),
        "num_rollouts": float(len(rollouts)),
        "score": float(np.mean([np.mean(group.rewards) for group in graded])),
        "score_std": float(np.std([reward for group in graded for reward in group.rewards])),
        "response_tokens": float(np.mean([rollout.num_tokens for rollout in rollouts])),
        "no_eos_share": float(np.mean([rollout.finish is Finish.length for rollout in rollouts])),
    }
    for name, value in part_means([member for group in graded for member in group.members]).items():
        summary[f"part_{name}"] = value
    for k in ks:
        counts = [
            (len(group.members), sum(member.reward >= CORRECT for member in group.members))
            for group in graded
            if len(group.members) >= k
        ]
        if counts:
            summary[f"pass_at_{k}"] = mean_pass_at_k(counts, k)
    return summary
