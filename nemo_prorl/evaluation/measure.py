"""Samples and grades what the journal still lacks of a benchmark, on all ranks, with validation's code.

Here each sample is a prompt of its own, named `uid@number`. Its random stream is a function of that name and the seed,
so it is the same whatever else is sampled with it, on any number of ranks, before or after a kill, and 256 samples
begin with the 16 that existed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Grader, SamplingSettings
from nemo_prorl.evaluation import journal
from nemo_prorl.evaluation.journal import Known, SampleId, Writer
from nemo_prorl.training.evaluation import drain, sample_and_grade
from nemo_prorl.training.sampling.fleet import SamplerFleet
from nemo_prorl.training.sampling.grading import GradingInFlight, check_failures, was_graded
from nemo_prorl.types import Finish, Prompt, Rollout
from reward.protocol import ScoreResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """The objects that sample and grade, shared by all benchmarks."""

    fleet: SamplerFleet
    grader: Grader
    grader_version: str
    """The same on all ranks: equal versions give equal scores."""
    ranks: Ranks
    max_failed_share: float
    chunk_samples: int
    """Samples that an engine gets at a time."""
    say: Callable[[str], None] = lambda text: None


def measure(
    benchmark: str,
    prompts: Sequence[Prompt],
    num_samples: int,
    settings: SamplingSettings,
    *,
    folder: Path,
    key: str,
    machinery: Machinery,
    tick: Callable[[], object] = lambda: None,
) -> Known:
    """Returns all `num_samples` samples of every prompt with their scores, from the journal after it is complete.
    Stored responses that were graded by other graders, or with another task, are graded again.

    `tick` is called on this rank for each score. Raises RewardServiceFailing if the service failed on more than
    machinery.max_failed_share of what was graded now; everything else is kept, and the next call continues from there.
    """
    ranks, settings = machinery.ranks, replace(settings, num_rollouts=1)
    gradings = {prompt.uid: journal.grading_of(prompt, machinery.grader_version) for prompt in prompts}

    stored = partial(journal.read, folder, benchmark, key, gradings)
    known = ranks.on_main(stored)
    if known.num_damaged and ranks.layout.is_main:
        machinery.say(
            f"{benchmark}: {known.num_damaged:,} damaged line(s) in {folder} are left out, and what they held is "
            "sampled or graded again"
        )
    if known.num_outdated and ranks.layout.is_main:
        machinery.say(
            f"{benchmark}: {known.num_outdated:,} stored responses are graded again, because the graders or the "
            "problems have changed since"
        )
    wanted = {(prompt.uid, number): prompt for prompt in prompts for number in range(num_samples)}
    writer = Writer(folder, benchmark, key, ranks.layout.rank)
    verdicts: list[ScoreResult] = []

    def keep(where: SampleId, verdict: ScoreResult) -> None:
        verdicts.append(verdict)
        if was_graded(verdict):  # otherwise the service failed, and the next call tries again
            writer.verdict(where, verdict, gradings[where[0]])
        tick()

    try:
        again = [where for where in known.ungraded if where in wanted]
        in_flight = GradingInFlight(machinery.grader, say=machinery.say)
        for place in range(ranks.layout.rank, len(again), ranks.layout.world_size):
            where = again[place]
            in_flight.submit((place, 0), _remembered(wanted[where], where, known))
        drain(in_flight, lambda place, verdict: keep(again[place[0]], verdict))
        todo = [where for where in wanted if where not in known.samples]
        size = machinery.chunk_samples * machinery.fleet.num_engines
        for start in range(0, len(todo), size):
            chunk = todo[start : start + size]
            sample_and_grade(
                [replace(wanted[where], uid=f"{where[0]}@{where[1]}") for where in chunk],
                settings,
                fleet=machinery.fleet,
                in_flight=in_flight,
                on_rollout=lambda place, rollout, chunk=chunk: writer.sample(chunk[place], rollout),  # type: ignore[misc]
                on_verdict=lambda place, verdict, chunk=chunk: keep(chunk[place[0]], verdict),  # type: ignore[misc]
            )
            ranks.barrier()
    finally:
        writer.close()
    check_failures(
        [verdict for part in ranks.gather(verdicts) for verdict in part], machinery.max_failed_share
    )
    known = ranks.on_main(stored)
    return Known(samples={where: known.samples[where] for where in wanted if where in known.samples})


def _remembered(prompt: Prompt, where: SampleId, known: Known) -> Rollout:
    """Rebuilds a rollout from the journal, with the fields that a grader uses."""
    return Rollout(
        prompt=prompt,
        sibling=where[1],
        token_ids=np.zeros(0, dtype=np.int64),
        sampler_logprobs=np.zeros(0, dtype=np.float32),
        text=known.ungraded[where],
        finish=Finish(known.samples[where].finish),
        policy_version=0,
    )
