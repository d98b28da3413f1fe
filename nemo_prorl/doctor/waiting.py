"""Waits for what other processes find out. Whatever needs torch runs in a child, whose hang or crash is a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

_Facts = TypeVar("_Facts")


def start_child(module: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a module of this package as a program that prints its facts as one line of JSON."""
    command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
    environment = {**os.environ, **environment}
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def facts_of_child(
    child: subprocess.Popen[str],
    facts: Callable[..., _Facts],
    *,
    limit_s: float,
    hung: str,
    failed: str,
    said: str = "",
) -> _Facts:
    """Returns the facts that a child has printed after it got `said` on its standard input.

    hung: the refusal of a child that takes longer than `limit_s`. failed: that of one that prints no facts, in which
    {code} stands for its exit code, {last} for the end of its error output.
    """
    try:
        output, errors = child.communicate(said, timeout=limit_s)
        return facts(**json.loads(output.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        child.kill()
        return facts(refusal=hung)
    except (IndexError, ValueError, TypeError):
        return facts(refusal=failed.format(code=child.returncode, last=" ".join(errors.split())[-200:]))


def wait_until(is_there: Callable[[], bool], timeout_s: float) -> bool:
    """Returns True as soon as `is_there` does, and False after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not is_there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
