"""All domains that this service grades.

To add a grader: a module beside this one with `check(task)` and `grade(text, task) -> Grade`, its row in BUILT_IN, its
name in protocol.DOMAINS, and two responses in known_answers.KNOWN_ANSWERS (tests/reward/test_registry.py says what is
missing). A plug-in needs no change here, see plugins.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from reward.graders.plugins import plugins

PLUGIN_POOL = "plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """pool: the worker pool that grades it. grader: the grading module; empty for a plug-in."""

    pool: str
    grader: str = ""


BUILT_IN = {
    "math": Domain(pool="math", grader="reward.graders.math.grader"),
    "stem": Domain(pool="math", grader="reward.graders.math.grader"),
    "code": Domain(pool="code", grader="reward.graders.code.grader"),
    "logic": Domain(pool="rules", grader="reward.graders.puzzle"),
    "instruction": Domain(pool="rules", grader="reward.graders.constraints"),
}


@cache
def domains() -> dict[str, Domain]:
    """Returns the service's own domains and those of plug-ins, by name. Raises PluginError."""
    return BUILT_IN | {name: Domain(pool=PLUGIN_POOL) for name in plugins()}
