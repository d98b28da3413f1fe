"""Questions with a short answer: competition mathematics, and multiple choice."""

from __future__ import annotations

import hashlib
from typing import Any

from nemo_prorl.data.building.source import Dropped, Problem, Record
from nemo_prorl.evaluation.benchmark import missing_column
from reward.extract import last_box

QUESTION = "problem|question|Question|Problem|prompt"
ANSWER = "answer|Answer|final_answer|expected_answer"
LETTERS = "ABCDEFGH"


def convert(record: Record) -> Problem:
    """Reads the question from `problem` or `question`, and the answer from `answer`, from OlympiadBench's list
    `final_answer`, or, for Minerva and the original MATH, from the box that ends `solution`. Raises Dropped, and
    ConfigError for a file of another schema."""
    question = record.first(QUESTION)
    if not isinstance(question, str):
        raise missing_column(record, f"question ({QUESTION.replace('|', ', ')})")
    answer = record.first(ANSWER)
    if answer is None:
        solution = record.first("solution|Solution")
        if not isinstance(solution, str):
            raise missing_column(record, f"answer ({ANSWER.replace('|', ', ')}, or a solution with a box)")
        answer = last_box(solution)
    text = as_text(answer)
    if not text:
        raise Dropped("no_answer")
    context = record.values.get("context")
    if isinstance(context, str) and context.strip():
        question = f"{context.strip()}\n\n{question}"
    return Problem(question=question.strip(), task={"answer": text}, gold=f"\\boxed{{{text}}}")


def choices(record: Record) -> Problem:
    """Reads GPQA's own schema, with the options in an order that depends on the question alone; others as `convert`."""
    values = record.values
    right = values.get("Correct Answer")
    if right is None:
        return convert(record)
    question = record.text("Question", otherwise="no_question")
    wrong = [str(values[name]).strip() for name in sorted(values) if name.startswith("Incorrect Answer")]
    options = sorted(
        [str(right).strip(), *wrong],
        key=lambda option: hashlib.sha256(f"{question}/{option}".encode()).digest(),
    )
    letter = LETTERS[options.index(str(right).strip())]
    listed = "\n".join(f"{name}. {option}" for name, option in zip(LETTERS, options, strict=False))
    return Problem(
        question=f"{question}\n\n{listed}\n\nThe final answer is the letter of the right option.",
        task={"answer": letter},
        gold=f"\\boxed{{{letter}}}",
    )


def as_text(answer: Any) -> str:
    """Returns an answer as text: 27.0 is 27; a list, OlympiadBench's form of several answers, is its members; "" for
    none."""
    if isinstance(answer, list):
        return ", ".join(filter(None, map(as_text, answer)))
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    return "" if answer is None else str(answer).strip().strip("$").strip()
