"""Finds the tests that start an engine, a service, a browser, Slurm or another process. tests/conftest.py marks them as
`live`; `make test-fast` leaves them out, and `make test` runs their files first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import pytest

STARTERS = frozenset(
    {
        *("subprocess", "multiprocessing", "PROCESSES", "ProcessPoolExecutor", "fork", "forkpty"),
        *("VllmSampler", "MegatronPolicy", "reward_service", "FunctionGrader", "FunctionProcess"),
        *("Service", "Pool", "Sandbox", "Judge"),  # of the reward service
    }
)
"""Names of what starts processes, and of our engines and services."""


def is_live(item: pytest.Item) -> bool:
    """Returns whether a test or one of its fixtures starts something, as far as the code in tests/ shows it."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return starts(item.function) or any(starts(fixture.func) for found in fixtures for fixture in found)


@cache
def starts(function: Callable[..., Any]) -> bool:
    """Returns whether a function names one of STARTERS, or names a function or class of tests/ that does, directly or
    through others."""
    waiting, seen = [function], set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        names = set(_names(function.__code__))
        if names & STARTERS:
            return True
        waiting += _functions(names, function.__globals__)
    return False


def _names(code: CodeType) -> Iterator[str]:
    """Yields the global names, attributes and imports of a function and of the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions(names: Iterable[str], scope: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """Yields the functions of tests/, and the methods of its classes, that these names stand for in a module."""
    for value in (scope[name] for name in names if name in scope):
        if inspect.ismodule(value):
            yield from _functions(names, vars(value)) if value.__name__.startswith("tests.") else ()
        elif isinstance(value, FunctionType | type) and str(value.__module__).startswith("tests."):
            yield from filter(inspect.isfunction, [value, *vars(value).values()])
