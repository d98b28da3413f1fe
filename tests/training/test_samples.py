"""Texts of every validation are kept by step: the same files whether or not the run was interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.training.samples import SampleLog, read_samples, sample_files
from tests.training.conftest import FAILED, make_group
from tests.training.scripted_run import Run


def kept(run_dir: Path) -> dict[int, list[dict[str, object]]]:
    return {step: read_samples(path) for step, path in sample_files(run_dir).all()}


def write(folder: Path, num_prompts: int, *, num_kept: int, num_rollouts: int = 2) -> list[str]:
    """The uids that a validation of so many prompts leaves."""
    groups = [make_group(f"p{number}", [1.0] * num_rollouts) for number in range(num_prompts)]
    SampleLog(folder, num_kept=num_kept, step=0).write(4, groups)
    return [str(record["uid"]) for records in kept(folder).values() for record in records]


def test_a_record_tells_what_was_asked_what_was_answered_and_what_it_was_worth(tmp_path: Path) -> None:
    group = make_group("sums/a#0", [0.5])
    SampleLog(tmp_path, num_kept=8, step=0).write(4, [group])
    member = group.members[0]
    assert kept(tmp_path) == {
        4: [
            {
                "step": 4, "uid": "sums/a#0", "domain": "math", "source": "script", "prompt": group.prompt.text,
                "response": member.rollout.text, "score": 0.5, "verdict": member.verdict.verdict,
                "finish": member.rollout.finish.value, "num_tokens": len(member.rollout.token_ids),
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


def test_nothing_is_written_for_rollouts_that_the_service_failed_on(tmp_path: Path) -> None:
    SampleLog(tmp_path, num_kept=8, step=0).write(4, [make_group("a", FAILED)])
    assert kept(tmp_path) == {}


def test_a_resumed_run_leaves_the_texts_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole, first = (
        Run(tmp_path / name, num_steps=steps, interval=1) for name, steps in (("whole", 4), ("parts", 2))
    )
    whole.fit()
    first.fit()
    lost = first.folder / "samples" / "step-00000099.jsonl"  # it had gone on after its last checkpoint
    lost.write_text("{}\n")
    first.resume(num_steps=4).fit()
    assert kept(whole.folder).keys() == {0, 1, 2, 3, 4}
    assert kept(first.folder) == kept(whole.folder)
