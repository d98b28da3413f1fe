"""Questions with a short answer: competition mathematics, and multiple choice."""

from __future__ import annotations

import ast
import hashlib
import re
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.data.building.source import NoRow, Problem, Record, multiple_choice
from nemo_prorl.evaluation.benchmark import missing_column
from reward.extract import last_box
from reward.rows import BadLabel, NoAnswer, answer_text

QUESTION = "problem|question|Question|Problem|prompt"
ANSWER = "answer|Answer|final_answer|expected_answer"
OPTIONS = "choices|options|Choices|Options"
LETTERS = "ABCDEFGH"
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_LIST = re.compile(rf"\[\s*(?:{_QUOTED})(?:[\s,]+(?:{_QUOTED}))*\s*,?\s*\]")
"""A list of texts as JSON, Python or NumPy write it into a CSV file. `[1, 2]`, without quotes, is an interval."""


def convert(record: Record) -> Problem:
    """Reads the question from `problem` or `question`, and the answer from `answer`, from OlympiadBench's list
    `final_answer`, or, for Minerva and the original MATH, from the box that ends `solution`. Raises NoRow, and
    ConfigError for a file of another schema."""
    question = record.first(QUESTION)
    if not isinstance(question, str):
        raise missing_column(record, f"question ({QUESTION.replace('|', ', ')})")
    answer = record.first(ANSWER)
    if answer is None:
        solution = record.first("solution|Solution")
        if not isinstance(solution, str) and any(name in record.values for name in ANSWER.split("|")):
            raise NoRow("no_answer")
        if not isinstance(solution, str):
            raise missing_column(record, f"answer ({ANSWER.replace('|', ', ')}, or a solution with a box)")
        answer = last_box(solution)
    text = as_text(answer)
    if not text:
        raise NoRow("no_answer")
    context = record.values.get("context")
    if isinstance(context, str) and context.strip():
        question = f"{context.strip()}\n\n{question}"
    return Problem(question=question.strip(), task={"answer": text}, gold=f"\\boxed{{{text}}}")


def choices(record: Record) -> Problem:
    """Reads GPQA's own schema, with the options in an order that depends on the question alone; others as `convert`, if
    the question has its options. Raises NoRow, and ConfigError for a file of another schema."""
    if "Correct Answer" not in record.values:
        column = next((name for name in OPTIONS.split("|") if record.values.get(name)), None)
        if column is not None:
            # Only the question is asked, so it has to contain the options, and the answer has to be a letter.
            question, options = str(record.first(QUESTION)), record.values[column]
            is_asked = isinstance(options, list) and all(
                str(option).strip() in question for option in options
            )
            if not is_asked or str(record.first(ANSWER)).strip() not in tuple(LETTERS):
                raise ConfigError(
                    f"{record.origin} has its options in {column}, which are not asked: give GPQA's own file "
                    "(Question, Correct Answer, Incorrect Answer 1 to 3), or questions that end with their options, "
                    "and a letter as the answer."
                )
        return convert(record)
    question = record.text("Question", otherwise="no_question")
    right = record.text("Correct Answer", otherwise="no_answer")
    names = sorted(name for name in record.values if name.startswith("Incorrect Answer"))
    wrong = [record.text(name, otherwise="no_option") for name in names]
    options = sorted(
        [right, *wrong], key=lambda option: hashlib.sha256(f"{question}/{option}".encode()).digest()
    )
    if len(options) > len(LETTERS):
        raise NoRow("too_many_options")
    return multiple_choice(question, options, options.index(right))


def as_text(answer: Any) -> str:
    """Returns an answer as text: 27.0 is 27; a list, OlympiadBench's form of several answers, is its members, also as
    the text of a list of texts; "" for none. Raises NoRow for a value that cannot be an answer."""
    if isinstance(answer, str) and _LIST.fullmatch(answer.strip()):
        answer = [ast.literal_eval(text) for text in re.findall(_QUOTED, answer)]
    if isinstance(answer, list):
        members = [as_text(member) for member in answer]
        return ", ".join(members) if all(members) else ""
    try:
        return answer_text(answer).strip().strip("$").strip()
    except NoAnswer:
        return ""
    except BadLabel:
        raise NoRow("answer_not_text") from None
