"""Writes every sample and every score to disk at once, so that nothing has to be repeated after a kill.

OUT/samples/BENCHMARK.rankN.jsonl has two kinds of lines:

    {"sample": 3, "uid": ..., "key": ..., "response": ..., "num_tokens": 812, "finish": "stop"}
    {"sample": 3, "uid": ..., "key": ..., "score": 1.0, "verdict": "correct", "version": ..., "grading": ...}

`key` identifies the model's files and the sampling settings; lines with another key belong to another evaluation and
are ignored. `grading` identifies everything that determines a score beside the response (`grading_of`); if it differs,
the score does not count, and the response is graded again. A rank appends to its own file and reads the files of all
ranks, so the number of ranks may change between two runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from nemo_prorl.run_folder.metrics_file import read_lines
from nemo_prorl.run_folder.storage import fingerprint
from nemo_prorl.types import Prompt, Rollout
from reward.protocol import ScoreResult

SampleId = tuple[str, int]
"""The prompt's uid and the number of the sample."""
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One sample, without its text."""

    num_tokens: int
    finish: str
    score: float | None
    """None if it is not graded yet."""
    verdict: str = ""


@dataclass(slots=True, kw_only=True)
class Known:
    """The journal's content for one benchmark."""

    samples: dict[SampleId, SampleRecord] = field(default_factory=dict)
    ungraded: dict[SampleId, str] = field(default_factory=dict)
    """Responses that still have to be graded."""
    num_outdated: int = 0
    """How many of the ungraded have a score from another grading."""
    num_damaged: int = 0
    """Lines that are left out; what they held is sampled or graded again."""


def key_of(model: Path, settings: Mapping[str, Any]) -> str:
    """Returns a hash of the model folder's content, including tokenizer and template, and of the sampling settings.
    Reads every file, at about a gigabyte per second."""
    files = sorted({path for pattern in MODEL_FILES for path in model.glob(pattern) if path.is_file()})
    told = {path.name: fingerprint(path).digest for path in files}
    return _hash({"model": told, "settings": dict(settings)})


def grading_of(prompt: Prompt, grader_version: str) -> str:
    """Returns a hash of the graders' version and of their input for this prompt: domain, task (right answer, tests,
    time limits), and whether a response begins inside a thought."""
    return _hash([grader_version, prompt.domain, prompt.opens_thought, dict(prompt.task)])


def _hash(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def read(folder: Path, benchmark: str, key: str, gradings: Mapping[str, str]) -> Known:
    """Returns the content of all whole lines with this key, from all ranks, without scores from other gradings than
    `gradings` has by uid. A score may be in an earlier file than its sample, because other ranks than those that
    sampled grade what a kill left."""
    known, verdicts, outdated = Known(), dict[SampleId, tuple[float, str]](), set[SampleId]()
    paths = sorted(folder.glob(f"{benchmark}.rank*.jsonl"))
    for line in chain.from_iterable(read_lines(path, _is_whole) for path in paths):
        if line is None:
            known.num_damaged += 1
        if line is None or line.get("key") != key:
            continue
        where = (line["uid"], line["sample"])
        if "response" not in line and line.get("grading") != gradings.get(line["uid"]):
            outdated.add(where)
        elif "response" not in line:
            verdicts[where] = line["score"], line["verdict"]
        elif where not in known.samples:
            known.samples[where] = SampleRecord(
                num_tokens=line["num_tokens"], finish=line["finish"], score=None
            )
            known.ungraded[where] = line["response"]
    for where in known.samples.keys() & verdicts:
        score, verdict = verdicts[where]
        known.samples[where] = replace(known.samples[where], score=score, verdict=verdict)
        del known.ungraded[where]
    known.num_outdated = len(known.ungraded.keys() & outdated)
    return known


class Writer:
    """This rank's file for one benchmark."""

    def __init__(self, folder: Path, benchmark: str, key: str, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key, self._file = key, (folder / f"{benchmark}.rank{rank}.jsonl").open("ab+")
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read() != b"\n":  # a kill cut the last line off
                self._file.write(b"\n")

    def sample(self, where: SampleId, rollout: Rollout) -> None:
        num_tokens, finish = len(rollout.token_ids), rollout.finish.value
        self._write(where, response=rollout.text, num_tokens=num_tokens, finish=finish)

    def verdict(self, where: SampleId, result: ScoreResult, grading: str) -> None:
        told = {"score": result.score, "verdict": result.verdict, "version": result.version}
        self._write(where, **told, grading=grading)

    def close(self) -> None:
        self._file.close()

    def _write(self, where: SampleId, **content: Any) -> None:
        record = {"uid": where[0], "sample": where[1], "key": self._key, **content}
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()


def _is_whole(line: Any) -> bool:
    if not isinstance(line, dict):
        return False
    content = {"response", "num_tokens", "finish"} if "response" in line else {"score", "verdict"}
    return isinstance(line.get("uid"), str) and isinstance(line.get("sample"), int) and content <= line.keys()
