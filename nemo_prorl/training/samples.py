"""What the policy writes: some rollouts of every validation as text, one JSONL file a validation in RUN/samples.

Numbers do not show that a policy has learned to please its grader in a way that nobody wanted; texts do. The prompts
are the same each time, so that a reader can follow one through the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.storage import replace_text
from nemo_prorl.training.step_files import StepFiles
from nemo_prorl.types import RolloutGroup, ScoredRollout


def sample_files(run_dir: Path) -> StepFiles:
    """Of a run: a file for every validation, by the step that it came after."""
    return StepFiles(run_dir / "samples", ".jsonl")


class SampleLog:
    """The main rank's; other ranks have none."""

    def __init__(self, run_dir: Path, *, num_kept: int, step: int) -> None:
        """`num_kept`: rollouts of a validation, 0 for none. `step`: the run goes on after it."""
        self._files = sample_files(run_dir)
        self._files.take_back(step)
        self._num_kept = num_kept

    def write(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """The rollouts of one validation."""
        lines = [json.dumps(_record(step, member), ensure_ascii=False) for member in self._chosen(groups)]
        if lines:
            replace_text(self._files.path(step), "\n".join(lines) + "\n")

    def _chosen(self, groups: Sequence[RolloutGroup]) -> Iterator[ScoredRollout]:
        """One rollout each of prompts spread evenly over all, and so over the files; then second ones, and so on."""
        num_left = self._num_kept
        for sibling in range(max((len(group.members) for group in groups), default=0)):
            here = [group.members[sibling] for group in groups if len(group.members) > sibling]
            num_taken = min(num_left, len(here))
            yield from (here[number * len(here) // num_taken] for number in range(num_taken))
            num_left -= num_taken


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Records of step, uid, domain, source, prompt, response, score, verdict, finish, num_tokens; with reward functions
    also parts, the value of each by name."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _record(step: int, member: ScoredRollout) -> dict[str, Any]:
    rollout, prompt = member.rollout, member.rollout.prompt
    return {
        "step": step,
        "uid": prompt.uid,
        "domain": prompt.domain,
        "source": prompt.source,
        "prompt": prompt.text,
        "response": rollout.text,
        "score": member.verdict.score,
        "verdict": member.verdict.verdict,
        "finish": rollout.finish.value,
        "num_tokens": len(rollout.token_ids),
        **({"parts": dict(member.parts)} if member.parts else {}),
    }
