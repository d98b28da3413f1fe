"""The domain `palindrome`: the answer has to read the same backwards, and to contain the task's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reward.canaries import Canary
from reward.graders.grade import Grade, require

CANARIES = [
    Canary(response="<think>so</think>Never odd or even", task={"word": "odd"}, score=1.0),
    Canary(response="<think>so</think>Never even or odd", task={"word": "odd"}, score=0.0),
]


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask when the task makes no sense, whatever the response: nobody's score."""
    require(isinstance(task.get("word"), str), 'the task needs a "word"')


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """A pure function of the text after the thought."""
    letters = [letter for letter in text.lower() if letter.isalnum()]
    if task["word"].lower() not in text.lower():
        return Grade(score=0.0, verdict="no_word")
    is_palindrome = letters == letters[::-1]
    return Grade(score=float(is_palindrome), verdict="correct" if is_palindrome else "wrong")
