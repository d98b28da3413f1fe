"""Gets facts from other processes. Whatever needs torch runs in a child, whose hang or crash becomes a refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

_Facts = TypeVar("_Facts")


def start_child(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts a module as a program that prints its facts as one line of JSON. environment: all of its variables, by
    default those of this process."""
    command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def facts_of_child(
    child: subprocess.Popen[str],
    facts: Callable[..., _Facts],
    *,
    limit_s: float,
    hung: str,
    failed: str,
) -> _Facts:
    """Returns the facts that a child has printed. hung: the refusal of one that takes longer than `limit_s`. failed:
    that of one that prints none; {code} stands for its exit code, {last} for the end of its error output."""
    try:
        output, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return facts(refusal=hung)
    last = " ".join(errors.split())[-200:]
    return parse_facts(output, facts, refusal=failed.format(code=child.returncode, last=last))


def parse_facts(text: str, facts: Callable[..., _Facts], *, refusal: str) -> _Facts:
    """Returns the facts in the last line of a text; with this refusal if there are none."""
    try:
        return facts(**json.loads(text.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return facts(refusal=refusal)
