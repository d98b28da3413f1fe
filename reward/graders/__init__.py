"""The registry of graders: a domain, and the module that grades it.

A grader module has `check(task)`, which raises InvalidTask, and `grade(text, task) -> Grade`, a pure function of the
text after the last </think>. To add a domain: write such a file, add its line here and its name to protocol.DOMAINS.
`code` is graded by reward.sandbox.judge, which owns processes; its rules are in code_tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from reward.extract import is_open_thought, thinks, visible_text
from reward.graders.grade import Grade, require

GRADERS = {
    "math": "reward.graders.math_answer",
    "stem": "reward.graders.math_answer",
    "logic": "reward.graders.puzzle",
    "instruction": "reward.graders.constraints",
}


def grader(domain: str) -> ModuleType:
    """The module that grades a domain, imported when first asked for."""
    return import_module(GRADERS[domain])


def gate(response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> str | Grade:
    """The answer to grade, or the Grade of a response that has none because its thought never ended (the rule stands in
    reward.extract). `in_thought`: the response begins inside a thought. Raises InvalidTask."""
    require_think = task.get("require_think", False)
    require(isinstance(require_think, bool), 'the task\'s "require_think" must be true or false')
    if is_open_thought(response, in_thought):
        return Grade(score=0.0, verdict="open_thought")
    if require_think and not thinks(response):
        return Grade(score=0.0, verdict="no_think_end")
    return visible_text(response)


def grade(domain: str, response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> Grade:
    """Grades one response in this process, unguarded: only workers inside the sandbox call it. Raises InvalidTask."""
    module = grader(domain)
    module.check(task)
    text = gate(response, task, in_thought=in_thought)
    return text if isinstance(text, Grade) else module.grade(text, task)
