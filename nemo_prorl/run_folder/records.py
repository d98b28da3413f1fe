"""What a run keeps so that its steps can be computed again: hashes of every step, and rollouts of some. And what was
measured when they were.

    RUN/digests.jsonl                          a line per step, and one with the inputs whenever they have changed
    RUN/rollouts/step-00000040-rank0.parquet   rollouts and verdicts of a step, from the rank that sampled them
    RUN/rollouts/trained/step-[...].parquet    what the updates made of them, from the replica that trained on them
    RUN/rollouts/tokenizer.json                the policy's, to show them token by token
    RUN/remeasured/NAME.jsonl                  a line per step with the metrics of `verify --metric FILE.py:NAME`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.run_folder.metrics_file import METRICS_FILE, append_metrics, read_records, rewind_metrics
from nemo_prorl.run_folder.storage import read_or_refuse, replace_text, step_files
from nemo_prorl.run_folder.tables import read_table, write_rows
from nemo_prorl.types import Finish, FloatArray, Rollout, RunState, TokenIds
from reward.protocol import GradeStatus, ScoreResult

DIGESTS = "digests.jsonl"
REMEASURED = "remeasured"
CHECK = "check"
"""Key of a line's own hash, which shows whether the line is what was written."""
TOKENIZER = Path("rollouts", "tokenizer.json")


class DigestLog:
    """Writes digests.jsonl. Only the main rank has one."""

    def __init__(self, run_dir: Path, step: int) -> None:
        """Deletes what was written about steps after `step`, where the run begins or resumes."""
        self._path = run_dir / DIGESTS
        for path in measured_files(run_dir):
            rewind_metrics(path, sys.maxsize, step)
        kept = rewind_metrics(self._path, sys.maxsize, step)
        inputs = [record for record in kept if "inputs" in record and "phases" not in record]
        self._inputs = inputs[-1] if inputs else {}

    def begin(self, state: RunState, inputs: Mapping[str, Any]) -> None:
        """Notes what the steps after `state` are computed with, unless the steps before had the same."""
        if self._inputs.get("inputs") != json.loads(json.dumps(inputs)):
            self._inputs = _checked({"step": state.step + 1, "stage": state.stage, "inputs": inputs})
            append_metrics(self._path, self._inputs)

    def add(self, state: RunState, digest: Mapping[str, Any]) -> None:
        """Writes the line of the step that `state` has counted last."""
        position = {"step": state.step, "stage": state.stage, "num_attempts": state.num_attempts}
        append_metrics(self._path, _checked({**position, "of_inputs": self._inputs.get(CHECK, ""), **digest}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """The lines of digests.jsonl."""

    steps: Mapping[int, Mapping[str, Any]]
    """Step -> its line."""
    inputs: Mapping[str, Mapping[str, Any]]
    """Hash of a line with inputs (`of_inputs` of a step's line) -> what it holds: options, versions, ranks, machine."""
    damaged: frozenset[int]
    """Steps whose line is not what was written."""


def read_digests(run_dir: Path) -> Digests:
    """Returns what a run recorded about its steps; empty if it has no digests.jsonl."""
    path = run_dir / DIGESTS
    records = read_records(path)[0] if path.is_file() else []
    whole = [record for record in records if record.get(CHECK) == _check(record)]
    return Digests(
        steps={record["step"]: record for record in whole if "phases" in record},
        inputs={record[CHECK]: record["inputs"] for record in whole if "inputs" in record},
        damaged=frozenset(record["step"] for record in records if record.get(CHECK) != _check(record)),
    )


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, CHECK: _check(record)}


def _check(record: Mapping[str, Any]) -> str:
    content = {key: value for key, value in record.items() if key != CHECK}
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout:
    """A rollout and its verdict, as a step recorded them."""

    request_id: str
    """Id under which it was graded."""
    token_ids: TokenIds
    logprobs: FloatArray
    text: str
    finish: Finish
    policy_version: int
    verdict: ScoreResult


def write_tokenizer(run_dir: Path, tokenizer: Any) -> None:
    """Keeps the tokenizer for readers of recorded rollouts, if it is of the tokenizers library, as nearly all are."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        replace_text(run_dir / TOKENIZER, backend.to_str())


def write_rollouts(
    run_dir: Path, step: int, rank: int, rows: Iterable[tuple[str, Rollout, ScoreResult]]
) -> None:
    """Writes the rollouts that this rank sampled in a step, each with the id under which it was graded and with its
    verdict. The file is complete or absent."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("request_id", pa.string()), ("uid", pa.string()), ("sibling", pa.int32()),
            ("domain", pa.string()), ("source", pa.string()), ("prompt", pa.string()), ("begun", pa.string()),
            ("num_tokens", pa.int32()),
            ("token_ids", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32())), ("text", pa.string()),
            ("finish", pa.string()), ("policy_version", pa.int64()), ("verdict", pa.string()),
        ]
    )  # fmt: skip
    listed = [
        {
            "request_id": request_id,
            "uid": rollout.prompt.uid,
            "sibling": rollout.sibling,
            "domain": rollout.prompt.domain,
            "source": rollout.prompt.source,
            "prompt": rollout.prompt.text,
            "begun": rollout.prompt.begun,
            "num_tokens": len(rollout.token_ids),
            "token_ids": np.asarray(rollout.token_ids, np.int32),
            "logprobs": rollout.sampler_logprobs,
            "text": rollout.text,
            "finish": rollout.finish.value,
            "policy_version": rollout.policy_version,
            "verdict": json.dumps(verdict.to_json()),
        }
        for request_id, rollout, verdict in rows
    ]
    write_rows(step_files(run_dir, "rollouts").path(step, f"rank{rank}"), listed, schema)


def write_trained(run_dir: Path, step: int, rank: int, rows: list[dict[str, Any]]) -> None:
    """Writes what this rank's replica trained on in a step: of each rollout uid, sibling, advantage, old_logprobs [R]
    and limits [R] (bits of TOKEN_LIMITS). The file is complete or absent."""
    write_rows(step_files(run_dir, "rollouts/trained").path(step, f"rank{rank}"), rows)


def read_rollouts(run_dir: Path, step: int) -> dict[tuple[str, int], RecordedRollout]:
    """Returns (uid, sibling) -> what the step recorded, of all ranks; empty if it recorded none. Raises ConfigError for
    a file that cannot be read."""
    paths = [path for of_step, path in step_files(run_dir, "rollouts").all() if of_step == step]
    parts = [read_or_refuse(path, _rollouts_of, "write --sample-again") for path in paths]
    return {key: rollout for part in parts for key, rollout in part.items()}


def _rollouts_of(path: Path) -> dict[tuple[str, int], RecordedRollout]:
    found = {}
    for row in read_table(path).to_pylist():
        verdict = json.loads(row["verdict"])
        found[row["uid"], row["sibling"]] = RecordedRollout(
            request_id=row["request_id"],
            token_ids=np.array(row["token_ids"], np.int32),
            logprobs=np.array(row["logprobs"], np.float32),
            text=row["text"],
            finish=Finish(row["finish"]),
            policy_version=row["policy_version"],
            verdict=ScoreResult(**{**verdict, "status": GradeStatus(verdict["status"])}),
        )
    return found


def measured_files(run_dir: Path) -> list[Path]:
    """Returns the files of all metrics that others have measured: `verify --metric`, and `evaluate --follow`."""
    return [*_remeasured_files(run_dir), *run_dir.glob(f"validations/*/{METRICS_FILE}")]


def _remeasured_files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / REMEASURED).glob("*.jsonl"))


def write_remeasured(run_dir: Path, name: str, lines: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the metrics of some steps, each with its step and stage, and keeps those of other steps. Returns the
    file, which is replaced as a whole."""
    path = run_dir / REMEASURED / f"{name}.jsonl"
    before = read_records(path)[0] if path.is_file() else []
    merged = {line["step"]: line for line in [*before, *lines]}
    text = "".join(json.dumps(merged[step]) + "\n" for step in sorted(merged))
    path.parent.mkdir(exist_ok=True)
    replace_text(path, text)
    return path


def read_remeasured(run_dir: Path) -> Iterator[tuple[int, str, float]]:
    """Yields (step, name, value) of every metric that was measured afterwards."""
    for path in _remeasured_files(run_dir):
        for line in read_records(path)[0]:
            yield from ((line["step"], key, value) for key, value in line.items() if isinstance(value, float))
