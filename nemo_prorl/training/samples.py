"""What the policy writes: some rollouts of every validation as text, one JSONL file a validation in RUN/samples.

Numbers do not show that a policy has learned to please its grader in a way that nobody wanted; texts do. The prompts
are the same each time, so that a reader can follow one through the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.storage import replace_text
from nemo_prorl.training.step_files import StepFiles
from nemo_prorl.types import RolloutGroup, ScoredRollout

if TYPE_CHECKING:  # torch behind them takes seconds; `status` and `report` only read texts here
    from nemo_prorl.distributed import Ranks
    from nemo_prorl.training.fleet import Share


def sample_files(run_dir: Path) -> StepFiles:
    """Of a run: a file for every validation, by the step that it came after."""
    return StepFiles(run_dir / "samples", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A graded rollout and what it says."""

    member: ScoredRollout
    text: str


def gather_samples(
    groups: Sequence[RolloutGroup], share: Share, ranks: Ranks, *, num_kept: int | None = None
) -> list[Sample]:
    """So many rollouts of a validation with their texts, on every rank; None: all. Collective; `share` is what this
    rank has sampled of it."""
    chosen = list(_chosen(groups, num_kept))
    wanted = {(index, member.rollout.sibling) for index, member in chosen}
    mine = {(i, r.sibling): r.text for i, group in share.items() for r in group if (i, r.sibling) in wanted}
    texts = {key: text for part in ranks.gather(mine) for key, text in part.items()}
    return [Sample(member=member, text=texts[index, member.rollout.sibling]) for index, member in chosen]


def _chosen(groups: Sequence[RolloutGroup], num_kept: int | None) -> Iterator[tuple[int, ScoredRollout]]:
    """(index of the group, member): all in order, or one rollout each of prompts spread evenly over all, and so over
    the files; then second ones, and so on."""
    if num_kept is None:
        yield from ((index, member) for index, group in enumerate(groups) for member in group.members)
        return
    num_left = num_kept
    for place in range(max((len(group.members) for group in groups), default=0)):
        here = [(i, group.members[place]) for i, group in enumerate(groups) if len(group.members) > place]
        num_taken = min(num_left, len(here))
        yield from (here[number * len(here) // num_taken] for number in range(num_taken))
        num_left -= num_taken


class SampleLog:
    """The main rank's; other ranks have none."""

    def __init__(self, run_dir: Path, *, step: int) -> None:
        """`step`: the run goes on after it."""
        self._files = sample_files(run_dir)
        self._files.take_back(step)

    def write(self, step: int, samples: Sequence[Sample]) -> None:
        """Rollouts of one validation."""
        lines = [json.dumps(_record(step, sample), ensure_ascii=False) for sample in samples]
        if lines:
            replace_text(self._files.path(step), "\n".join(lines) + "\n")


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Records of step, uid, domain, source, prompt, response, score, verdict, finish, num_tokens; with reward functions
    also parts, the value of each by name."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _record(step: int, sample: Sample) -> dict[str, Any]:
    member, rollout, prompt = sample.member, sample.member.rollout, sample.member.rollout.prompt
    return {
        "step": step,
        "uid": prompt.uid,
        "domain": prompt.domain,
        "source": prompt.source,
        "prompt": prompt.text,
        "response": sample.text,
        "score": member.verdict.score,
        "verdict": member.verdict.verdict,
        "finish": rollout.finish.value,
        "num_tokens": rollout.num_tokens,
        **({"parts": dict(member.parts)} if member.parts else {}),
    }
