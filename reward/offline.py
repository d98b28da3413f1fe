"""The commands that need no server: grade a file, explain one response."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from reward import frames
from reward.extract import answer_tag, is_open_thought, last_box, thinks, visible_text
from reward.graders.code.blocks import code_blocks
from reward.graders.math.rules import TYPES, explained
from reward.graders.plugins import plugins
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult
from reward.requests import request_of
from reward.server import UserError
from reward.service import Service

_IN_FLIGHT_PER_WORKER = 4
_WIDTH = 80
"""Columns of an explanation; longer lines go on below."""
_MATHEMATICS = ("math", "stem")
VERDICTS: Mapping[str, str] = json.loads(files("reward").joinpath("data/verdicts.json").read_text("utf-8"))
"""Every verdict of a graded response, in words."""
_EXPLAINED = ("extracted", "gold", "answer_type", "gold_type", "rule")
"""Keys of a mathematical grade's details that have lines of their own."""


def read_requests(path: Path, only: int | None = None) -> list[ScoreRequest]:
    """Reads one request per line (request_id is optional): all of them, or line `only`, counted from 1. Raises
    UserError with the line's number."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or only not in (None, number):
            continue
        try:
            body = frames.decode(line.encode())
            requests.append(
                request_of({"request_id": str(number), **body} if isinstance(body, dict) else body)
            )
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    if not requests:
        raise UserError(f"{path} holds no request{'' if only is None else f' in line {only}'}")
    return requests


async def score_requests(service: Service, requests: list[ScoreRequest], output: Path | None) -> int:
    """Grades requests, writes one JSON result per line in their order, and prints a summary per domain.

    Returns 1 if any request was not graded, else 0."""
    slots = asyncio.Semaphore(_IN_FLIGHT_PER_WORKER * service.num_workers)

    async def score(request: ScoreRequest) -> ScoreResult:
        async with slots:
            return await service.score(request)

    await service.open()
    try:
        results = list(await asyncio.gather(*map(score, requests)))
    finally:
        await service.close()
    text = "".join(json.dumps(result.to_json()) + "\n" for result in results)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
    for line in summary(requests, results):
        print(line, file=sys.stderr)
    return int(any(result.status is not GradeStatus.graded for result in results))


def summary(requests: list[ScoreRequest], results: list[ScoreResult]) -> Iterator[str]:
    """Yields the lines of a table: domain, responses, mean score of the graded ones, verdicts."""
    by_domain: dict[str, list[ScoreResult]] = defaultdict(list)
    for request, result in zip(requests, results, strict=True):
        by_domain[request.domain].append(result)
    yield f"{'domain':<12} {'responses':>9} {'graded':>7} {'mean':>6}  verdicts"
    for domain, group in sorted(by_domain.items()):
        scores = [result.score for result in group if result.score is not None]
        mean = f"{sum(scores) / len(scores):.3f}" if scores else "-"
        verdicts = ", ".join(
            f"{name} {count}" for name, count in Counter(r.verdict for r in group).most_common()
        )
        yield f"{domain:<12} {len(group):>9} {len(scores):>7} {mean:>6}  {verdicts}"


async def explain(service: Service, request: ScoreRequest) -> int:
    """Prints what was extracted from one response, what it was compared with, and why it got its score."""
    await service.open()
    try:
        result = await service.score(request)
    finally:
        await service.close()
    for line in explanation(request, result):
        print(textwrap.fill(line, _WIDTH, subsequent_indent=" " * 11, break_on_hyphens=False))
    return int(result.status is not GradeStatus.graded)


def explanation(request: ScoreRequest, result: ScoreResult) -> Iterator[str]:
    """Yields the lines that `explain` prints."""
    is_open = is_open_thought(request.response, request.in_thought)
    text = "" if is_open else visible_text(request.response)
    kind, found, reference = _parts(text, request, result)
    yield f"domain     {request.domain}"
    begun = "begun in the prompt, " if request.in_thought else ""
    ended = "never ended" if is_open else "ended by </think>" if thinks(request.response) else "no </think>"
    yield f"reasoning  {begun}{ended}; {len(text)} characters are graded"
    details = result.details if request.domain in _MATHEMATICS else {}
    yield f"extracted  ({kind}) {_short(found)}"
    yield from _read_as(details.get("answer_type"))
    yield f"compared   {_short(reference)}"
    yield from _read_as(details.get("gold_type"))
    yield f"status     {result.status.value}"
    yield f"score      {'none' if result.score is None else f'{result.score:g}'}"
    yield f"verdict    {result.verdict}: {VERDICTS.get(result.verdict, 'see details')}"
    for sentence in explained(details):
        yield f"rule       {sentence}"
    for key, value in result.details.items():
        if key not in details or key not in _EXPLAINED:
            yield f"  {key:<18} {_short(value)}"
    yield f"version    {result.version}"


def _read_as(kind: str | None) -> Iterator[str]:
    if kind:
        yield f"{'':<10} which is {TYPES.get(kind, kind)}"


def _parts(text: str, request: ScoreRequest, result: ScoreResult) -> tuple[str, str | None, Any]:
    """Returns the kind of text that is graded, this text, and what it is compared with."""
    task = request.task
    if request.domain in plugins():
        return "whole text", text, dict(task)
    if request.domain == "instruction":
        return "whole text", text, task.get("instruction_id_list")
    if request.domain == "logic":
        return "last <answer>", answer_tag(text), task.get("entry", {}).get("answer")
    if request.domain == "code":
        blocks, place = code_blocks(text), result.details.get("block", 1)
        return "code block", blocks[place - 1].body if place <= len(blocks) else None, task.get("outputs")
    return "last box", last_box(text), task.get("answer")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
