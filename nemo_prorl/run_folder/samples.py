"""Texts of some rollouts of every validation, one JSONL file per validation in RUN/samples.

Metrics do not show reward hacking; texts do. The prompts are the same each time, so that a reader can follow one
through the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.run_folder.storage import replace_text, step_files
from nemo_prorl.types import RolloutGroup, ScoredRollout, Share

if TYPE_CHECKING:  # they import torch, which takes seconds; `status` and `report` only read files
    from nemo_prorl.distributed import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedText:
    """A graded rollout and its text."""

    member: ScoredRollout
    text: str


def gather_samples(
    groups: Sequence[RolloutGroup], share: Share, ranks: Ranks, *, num_kept: int | None = None
) -> list[GradedText]:
    """Returns `num_kept` rollouts of a validation (None: all) with their texts, on every rank. Collective.

    share: what this rank has sampled of the validation.
    """
    if num_kept is None:
        chosen = [(index, member) for index, group in enumerate(groups) for member in group.members]
    else:
        # The first rollouts of groups that are spread evenly over all, and so over the prompt files; if there are not
        # enough, second rollouts, and so on.
        chosen = []
        for place in range(max((len(group.members) for group in groups), default=0)):
            here = [(i, group.members[place]) for i, group in enumerate(groups) if len(group.members) > place]
            num_taken = min(num_kept - len(chosen), len(here))
            chosen += [here[number * len(here) // num_taken] for number in range(num_taken)]
    wanted = {(index, member.rollout.sibling) for index, member in chosen}
    mine = {(i, r.sibling): r.text for i, group in share.items() for r in group if (i, r.sibling) in wanted}
    texts = {key: text for part in ranks.gather(mine) for key, text in part.items()}
    return [GradedText(member=member, text=texts[index, member.rollout.sibling]) for index, member in chosen]


def write_samples(run_dir: Path, stage: str, step: int, samples: Sequence[GradedText]) -> None:
    """Writes the samples of a stage's validation, which followed `step`."""
    lines = [json.dumps({"step": step, **as_record(sample)}, ensure_ascii=False) for sample in samples]
    if lines:
        replace_text(step_files(run_dir, "samples").path(step, stage), "\n".join(lines) + "\n")


def as_record(sample: GradedText) -> dict[str, Any]:
    """Returns a line of RUN/samples and of `evaluate --samples`; with reward functions it has `parts`, which maps their
    names to values."""
    member, rollout, prompt = sample.member, sample.member.rollout, sample.member.rollout.prompt
    return {
        "uid": prompt.uid,
        "domain": prompt.domain,
        "source": prompt.source,
        "sibling": rollout.sibling,
        "prompt": prompt.text,
        **({"begun": prompt.begun} if prompt.begun else {}),
        "response": sample.text,
        "score": member.verdict.score,
        "verdict": member.verdict.verdict,
        "finish": rollout.finish.value,
        "num_tokens": rollout.num_tokens,
        **({"parts": dict(member.parts)} if member.parts else {}),
    }
