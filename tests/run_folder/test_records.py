"""Rollouts and digests of a step: what is read is what was written, and half of a write is nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.records import (
    DIGESTS,
    DigestLog,
    read_digests,
    read_remeasured,
    read_rollouts,
    write_remeasured,
    write_rollouts,
    write_trained,
)
from nemo_prorl.run_folder.storage import step_files
from nemo_prorl.types import Finish, Rollout, RunState
from reward.protocol import GradeStatus, ScoreResult
from tests.training.conftest import make_prompt


def a_rollout(uid: str, sibling: int) -> Rollout:
    rng = np.random.default_rng(sibling)
    return Rollout(
        prompt=make_prompt(uid),
        sibling=sibling,
        token_ids=rng.integers(0, 2**31 - 1, 5).astype(np.int32),
        sampler_logprobs=rng.normal(size=5).astype(np.float32),
        text="π ≈ 3\x00\ud7ff",
        finish=Finish.length if sibling else Finish.stop,
        policy_version=7,
    )


VERDICTS = [
    ScoreResult(
        request_id="a", status=GradeStatus.graded, score=0.1 + 0.2, verdict="right", details={"x": [1]}
    ),
    ScoreResult(
        request_id="b", status=GradeStatus.infra_error, score=None, verdict="", details={"reason": "gone"}
    ),
]


def test_rollouts_and_verdicts_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [(f"id{sibling}", a_rollout("p", sibling), VERDICTS[sibling]) for sibling in (0, 1)]
    write_rollouts(tmp_path, 4, 0, rows[:1])
    write_rollouts(tmp_path, 4, 1, rows[1:])
    write_rollouts(tmp_path, 5, 0, [])
    found = read_rollouts(tmp_path, 4)
    assert sorted(found) == [("p", 0), ("p", 1)]
    assert read_rollouts(tmp_path, 5) == {}
    for request_id, rollout, verdict in rows:
        row = found[rollout.prompt.uid, rollout.sibling]
        written = (request_id, rollout.text, rollout.finish, rollout.policy_version, verdict)
        assert (row.request_id, row.text, row.finish, row.policy_version, row.verdict) == written
        assert row.token_ids.tobytes() == rollout.token_ids.tobytes()
        assert row.logprobs.tobytes() == rollout.sampler_logprobs.tobytes()


def test_a_damaged_file_of_rollouts_is_named(tmp_path: Path) -> None:
    write_rollouts(tmp_path, 4, 0, [("id0", a_rollout("p", 0), VERDICTS[0])])
    ((_, path),) = step_files(tmp_path, "rollouts").all()
    whole = path.read_bytes()
    middle = whole[: len(whole) // 2]
    at = whole.index(a_rollout("p", 0).sampler_logprobs.tobytes())
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for damaged in (
        b"",
        middle,
        bytes(len(whole)),
        middle + bytes(len(whole) - len(middle)),
        b"[1]",
        flipped,
    ):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=f"{path} cannot be read .* or write --sample-again"):
            read_rollouts(tmp_path, 4)
    pq.write_table(pa.table({"uid": ["p"]}), path)
    with pytest.raises(ConfigError, match=f"{path} cannot be read"):
        read_rollouts(tmp_path, 4)


def test_what_updates_made_of_rollouts_is_read_as_it_was_written(tmp_path: Path) -> None:
    logprobs, limits = np.array([-0.1, -30, -np.inf], np.float32), np.array([0, 31, 2], np.uint8)
    row = {"uid": "p#1", "sibling": 2, "advantage": -0.25, "old_logprobs": logprobs, "limits": limits}
    write_trained(tmp_path, 4, 1, [row])
    write_trained(tmp_path, 5, 1, [])
    ((step, path),) = step_files(tmp_path, "rollouts/trained").all()
    (found,) = pq.read_table(path).to_pylist()
    assert (step, found["uid"], found["sibling"], found["advantage"]) == (4, "p#1", 2, -0.25)
    assert (found["old_logprobs"], found["limits"]) == (logprobs.tolist(), [0, 31, 2])
    assert step_files(tmp_path, "rollouts").all() == []


def test_a_resume_deletes_later_lines_and_a_torn_one_and_notes_new_inputs_once(tmp_path: Path) -> None:
    log, state = DigestLog(tmp_path, 0), RunState(stage="main")
    log.begin(state, {"options": {"a": 1}})
    for step in (1, 2, 3):
        state.step = step
        log.add(state, {"phases": {"prompts": {"p": f"{step:04x}"}}})
    path = tmp_path / DIGESTS
    with path.open("a") as file:
        file.write('{"step": 4, "stage": "main", "pha')
    assert sorted(read_digests(tmp_path).steps) == [1, 2, 3]
    again = DigestLog(tmp_path, 2)
    state.step = 2
    again.begin(state, {"options": {"a": 1}})
    found = read_digests(tmp_path)
    assert (sorted(found.steps), len(found.inputs), found.damaged) == ([1, 2], 1, frozenset())
    again.begin(state, {"options": {"a": 2}})
    state.step = 3
    again.add(state, {"phases": {}})
    found = read_digests(tmp_path)
    assert len(found.inputs) == 2
    assert found.inputs[found.steps[3]["of_inputs"]] == {"options": {"a": 2}}
    assert found.inputs[found.steps[2]["of_inputs"]] == {"options": {"a": 1}}


def test_what_was_measured_afterwards_is_kept_by_step_and_taken_back_with_it(tmp_path: Path) -> None:
    for steps, value in (((1, 2, 3), 0.5), ((2,), 0.25)):
        write_remeasured(tmp_path, "ess", [{"step": step, "stage": "main", "ess": value} for step in steps])
    assert list(read_remeasured(tmp_path)) == [(1, "ess", 0.5), (2, "ess", 0.25), (3, "ess", 0.5)]
    DigestLog(tmp_path, 2)
    assert [step for step, _, _ in read_remeasured(tmp_path)] == [1, 2]
