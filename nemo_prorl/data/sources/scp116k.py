"""STEM: the problems of SCP-116K whose book solution and DeepSeek-R1's response agree, with a short answer.

A record has `domain`, `problem`, the solution from the book, and a model's response (R1's in the version of 274k
records that ProRL used; o1-mini's and QwQ's in the first one of 117k). As in the papers, records without a solution are
dropped, and the others are kept if book and response agree on the answer:

1. A model extracts a short answer from the book's solution; solutions without one (proofs, drawings, several parts) are
   dropped.
2. The rule scorer compares the response's boxed answer with it. That is free, and reliable when it says yes.
3. Otherwise the model judges twice, with the answers in both orders. Two yes: kept; two no: dropped.
4. Undecided records (contradictory judgements, a reply in another form) go to undecided.parquet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from nemo_prorl.config import ConfigError, DataBuildConfig
from nemo_prorl.data.building.chat import ask_all
from nemo_prorl.data.building.source import (
    BOX_SUFFIX,
    Candidate,
    Ledger,
    NoRow,
    Problem,
    Record,
    Source,
    Submit,
)
from nemo_prorl.data.building.verify import graded
from reward.extract import last_box, visible_text
from reward.rows import BadLabel, answer_text

SOLUTION = "extracted_solution|extract_solution|matched_solution|solution"
RESPONSE = "r1_response|r1_solution|o1_solution|qwq_solution"
MAX_ANSWER, MAX_SOLUTION, TAIL = 200, 12_000, 800
"""Lengths in characters: of a short answer; of a solution that is shown to the model; of the end of a response that
never boxes an answer."""

_PROMPTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def convert(record: Record) -> Problem:
    """Turns a record into a problem. The task's answer is still missing; `agreeing` adds it."""
    solution = record.first(SOLUTION)
    if not isinstance(solution, str) or not solution.strip():
        raise NoRow("no_solution")
    response = record.first(RESPONSE)
    if not isinstance(response, str) or not response.strip():
        raise NoRow("no_response")
    # The part that is compared: the last box, else the end of the response.
    visible = visible_text(response)
    box = last_box(visible)
    compared = f"\\boxed{{{box}}}" if box else visible.strip()[-TAIL:]
    return Problem(
        question=record.text("problem", otherwise="no_problem"),
        task={},
        suffix=BOX_SUFFIX,
        kind=str(record.values.get("domain") or ""),
        extra={"solution": solution.strip(), "response": compared},
    )


def check_options(options: DataBuildConfig) -> None:
    """Raises ConfigError if no model to ask is configured."""
    if not options.endpoint or not options.model:
        raise ConfigError(
            "scp116k needs a model that extracts and compares answers: write endpoint=URL and model=NAME of an "
            "OpenAI-compatible server, such as endpoint=http://127.0.0.1:8000/v1."
        )


def agreeing(
    candidates: Sequence[Candidate], options: DataBuildConfig, submit: Submit, ledger: Ledger
) -> Iterator[Candidate]:
    """Yields the candidates whose solution and response agree, with their short answers, and rejects the others."""
    cache = Path(options.out) / "cache" / "scp116k.sqlite"
    questions = [
        _PROMPTS["extract"].format(problem=one.question, solution=one.extra["solution"][-MAX_SOLUTION:])
        for one in (candidate.problem for candidate in candidates)
    ]
    replies = ask_all(questions, options, cache, "extracting")
    found = (_with_answer(*pair, ledger) for pair in zip(candidates, replies, strict=True))
    answered = [candidate for candidate in found if candidate is not None]
    requests = [candidate.request(str(candidate.problem.extra["response"])) for candidate in answered]
    unsure: list[Candidate] = []
    for candidate, result in zip(answered, graded(requests, submit), strict=True):
        if result.score == 1.0:
            yield candidate
        else:
            unsure.append(candidate)
    # Each is judged with the answers in both orders, so that a judge with a position bias contradicts itself.
    questions = []
    for candidate in unsure:
        problem, book = candidate.problem.question, str(candidate.row.task["answer"])
        response = str(candidate.problem.extra["response"])
        for a, b in ((book, response), (response, book)):
            questions.append(_PROMPTS["judge"].format(problem=problem, a=a, b=b))
    judged = ask_all(questions, options, cache, "judging")
    for candidate, reply, swapped in zip(unsure, judged[::2], judged[1::2], strict=True):
        one, other = _says_equal(reply), _says_equal(swapped)
        if one is None or one is not other:
            ledger.reject(candidate, "undecided_judgement", f"{one}, {other}", file="undecided")
        elif one:
            yield replace(candidate, by_judge_only=True)
        else:
            detail = f"{candidate.row.task['answer']} / {candidate.problem.extra['response']}"
            ledger.reject(candidate, "disagrees", detail)


def _with_answer(candidate: Candidate, reply: str | None, ledger: Ledger) -> Candidate | None:
    found = _json_reply(reply)
    if found is None:
        ledger.reject(candidate, "undecided_extraction", reply or "no reply", file="undecided")
        return None
    try:
        text = answer_text(found.get("answer")).strip()
    except BadLabel:
        text = ""
    if not text or len(text) > MAX_ANSWER:
        ledger.reject(candidate, "no_short_answer", text)
        return None
    gold = f"\\boxed{{{text}}}"
    return replace(
        candidate,
        row=replace(candidate.row, task={"answer": text}),
        problem=replace(candidate.problem, task={"answer": text}, gold=gold),
    )


def _json_reply(reply: str | None) -> dict[str, object] | None:
    """Returns the last JSON object of a reply that has an answer; None without one."""
    for text in reversed(re.findall(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", visible_text(reply or ""))):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("answer", []), str | int | float | None):
            return value
    return None


def _says_equal(reply: str | None) -> bool | None:
    marks = re.findall(r"\[\[A(!?=)B\]\]", visible_text(reply or ""))
    return marks[-1] == "=" if marks else None


SOURCE = Source(
    name="scp116k",
    domain="stem",
    summary="274k problems from science books, kept where book and DeepSeek-R1 agree; ProRL kept 25k",
    hub_id="EricLu/SCP-116K",
    licence="CC-BY-NC-SA-4.0 (dataset card; its first version said MIT): not for commercial use",
    columns=("problem", SOLUTION, RESPONSE),
    convert=convert,
    paper_rows=25_000,
    check_options=check_options,
    refine=agreeing,
)
