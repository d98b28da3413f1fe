"""Asks the grader of mathematics as a service would, whatever module it lives in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from reward.graders.registry import BUILT_IN


def graded(answer: str, gold: str) -> Any:
    """Returns the grade of a boxed answer."""
    return import_module(BUILT_IN["math"].grader).grade(f"\\boxed{{{answer}}}", {"answer": gold})


def is_right(answer: str, gold: str) -> bool:
    return bool(graded(answer, gold).score == 1)
