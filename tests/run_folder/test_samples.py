"""Texts of every validation are kept by step: the same files whether or not the run was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_prorl.run_folder.metrics_file import read_metrics
from nemo_prorl.run_folder.samples import (
    GradedText,
    as_record,
    gather_samples,
    write_samples,
)
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.types import Rollout, RolloutGroup
from tests.training.conftest import MIXED, SINGLE, make_group, make_prompt, make_rollout
from tests.training.scripted_run import Run
from tests.training.thread_ranks import ThreadRanks, run_as_ranks


def kept(run_dir: Path) -> dict[int, list[dict[str, object]]]:
    return {step: read_metrics(path) for step, path in step_files(run_dir, "samples").all()}


def share_of(groups: Sequence[RolloutGroup]) -> dict[int, list[Rollout]]:
    """Returns the share of a rank that has sampled all rollouts."""
    return {i: [make_rollout(g.prompt, m.rollout.sibling) for m in g.members] for i, g in enumerate(groups)}


def write(folder: Path, num_prompts: int, *, num_kept: int, num_rollouts: int = 2) -> list[str]:
    """Returns the uids that a validation of this many prompts keeps."""
    groups = [make_group(f"p{number}", [1.0] * num_rollouts) for number in range(num_prompts)]
    write_samples(folder, "main", 4, gather_samples(groups, share_of(groups), SINGLE, num_kept=num_kept))
    return [str(record["uid"]) for records in kept(folder).values() for record in records]


def test_a_record_tells_what_was_asked_what_was_answered_and_what_it_was_worth(tmp_path: Path) -> None:
    group = make_group("sums/a#0", [0.5])
    member = group.members[0]
    text = 'two\u2028lines\x85of "text"\n'
    write_samples(tmp_path, "main", 4, [GradedText(member=member, text=text)])
    begun = replace(member, rollout=replace(member.rollout, prompt=replace(group.prompt, begun="two")))
    assert as_record(GradedText(member=begun, text=text))["begun"] == "two"
    assert kept(tmp_path) == {
        4: [
            {
                "step": 4, "uid": "sums/a#0", "domain": "math", "source": "script", "sibling": 0,
                "prompt": group.prompt.text,
                "response": text, "score": 0.5, "verdict": member.verdict.verdict,
                "finish": member.rollout.finish.value, "num_tokens": member.rollout.num_tokens,
            }
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("num_prompts", "num_kept", "wanted"),
    [
        (8, 4, ["p0", "p2", "p4", "p6"]),  # of every file, as files stand one after the other
        (3, 3, ["p0", "p1", "p2"]),
        (3, 4, ["p0", "p1", "p2", "p0"]),  # a second rollout only when every prompt has one
        (2, 99, ["p0", "p1", "p0", "p1"]),
        (2, 0, []),
        (0, 4, []),
    ],
)
def test_rollouts_are_taken_evenly_from_the_prompts(
    num_prompts: int, num_kept: int, wanted: list[str], tmp_path: Path
) -> None:
    assert write(tmp_path, num_prompts, num_kept=num_kept) == wanted


@pytest.mark.parametrize("num_kept", [3, None])
def test_every_rank_gets_the_texts_that_are_kept_and_no_others(num_kept: int | None) -> None:
    groups = [make_group(f"p{number}", [1.0, None, 0.0]) for number in range(4)]
    whole = share_of(groups)

    def gather(ranks: ThreadRanks) -> list[tuple[str, int, str]]:
        """Gathers samples of which rank 1 has the first siblings, rank 2 the others, and rank 0 none."""
        rank = ranks.layout.rank
        mine = {i: [r for r in rollouts if (r.sibling == 0) == (rank == 1)] for i, rollouts in whole.items()}
        found = gather_samples(groups, mine if rank else {}, ranks, num_kept=num_kept)
        return [(s.member.rollout.prompt.uid, s.member.rollout.sibling, s.text) for s in found]

    results = run_as_ranks(gather, 3, 1, 1)
    places = (
        [("p0", 0), ("p1", 0), ("p2", 0)] if num_kept else [(f"p{i}", s) for i in range(4) for s in (0, 2)]
    )
    assert results == [[(uid, sibling, str(sibling)) for uid, sibling in places]] * 3


def test_a_stage_and_the_next_keep_their_texts_of_the_step_between_them(tmp_path: Path) -> None:
    run = Run(tmp_path, num_steps=2, every=1)
    run.fit()
    parents = {path: path.read_text() for _, path in step_files(tmp_path, "samples").all()}
    child = run.resume(num_steps=3)
    child.state.stage, child.state.stage_step = "second", 0
    child.held_out = [make_prompt("other", MIXED, domain="code")]
    child.fit()
    found = {path.name: path for _, path in step_files(tmp_path, "samples").all()}
    assert {path: path.read_text() for path in parents} == parents
    assert [step for step, _ in step_files(tmp_path, "samples").all()] == [0, 2, 2, 5]
    assert read_metrics(found["step-00000002-second.jsonl"])[0]["uid"] == "other"
