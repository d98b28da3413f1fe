"""Graders, one module each, and the function that grades a response with its domain's grader.

A grader has `check(task)`, which raises InvalidTask, and `grade(text, task) -> Grade`, a pure function of the text
after the last </think>. registry.py lists them and says how to add one. `code` is graded by reward.sandbox.judge, which
owns processes; its rules are in code_tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from reward.extract import is_open_thought, thinks, visible_text
from reward.graders import plugins
from reward.graders.grade import Grade, require
from reward.graders.registry import domains


def grader(domain: str) -> plugins.Grader:
    """Returns the grader of a domain other than code, imported on first use. Raises PluginError."""
    module = domains()[domain].grader
    return cast(plugins.Grader, import_module(module)) if module else plugins.loaded(domain)


def gate(response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> str | Grade:
    """Returns the answer to grade, or the Grade of a response that has none because its thought never ended (see
    reward.extract). `in_thought`: the response begins inside a thought. Raises InvalidTask."""
    require_think = task.get("require_think", False)
    require(isinstance(require_think, bool), 'the task\'s "require_think" must be true or false')
    if is_open_thought(response, in_thought):
        return Grade(score=0.0, verdict="open_thought")
    if require_think and not thinks(response):
        return Grade(score=0.0, verdict="no_think_end")
    return visible_text(response)


def grade(domain: str, response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> Grade:
    """Grades one response in this process, without a sandbox: only confined workers may call it. Raises InvalidTask."""
    module = grader(domain)
    module.check(task)
    text = gate(response, task, in_thought=in_thought)
    return text if isinstance(text, Grade) else module.grade(text, task)
