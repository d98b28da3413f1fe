"""Graders, one module each, and the function that grades a response with its domain's grader.

A grader has `check(task)`, which raises InvalidTask, and `grade(text, task) -> Grade`, a pure function of the text
after the last </think>. registry.py lists them and says how to add one. The grader of `code` also takes the sandbox in
which programs run, and only a judge (reward.judge) calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from reward.graders import plugins
from reward.graders.grade import Grade, gate
from reward.graders.registry import domains


def grader(domain: str) -> plugins.DomainGrader:
    """Returns the grader of a domain, imported on first use. Raises PluginError."""
    module = domains()[domain].grader
    return cast(plugins.DomainGrader, import_module(module)) if module else plugins.loaded(domain)


def grade(domain: str, response: str, task: Mapping[str, Any], *, in_thought: bool = False) -> Grade:
    """Grades one response in this process, without a sandbox: only confined workers may call it. Raises InvalidTask."""
    module = grader(domain)
    module.check(task)
    text = gate(response, task, in_thought=in_thought)
    return text if isinstance(text, Grade) else module.grade(text, task)
