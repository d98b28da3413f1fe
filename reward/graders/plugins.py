"""Graders from other distributions, found by entry point, so that a new domain needs no change here.

A distribution names its graders in the group `prorl_reward.graders`, in pyproject.toml:

    [project.entry-points."prorl_reward.graders"]
    last_number = "last_number_grader"      # domain = "module", or "module:object"

The module, object, or class (which is called without arguments) has `check(task)` and `grade(text, task) -> Grade`, as
the modules of reward/graders/ have. It may have `warm_up()` and KNOWN_ANSWERS, a sequence of
reward.known_answers.KnownAnswer that must get their scores before the service is ready. docs/custom_rewards.md has a
complete example. Only the grading processes import it, never the server.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from reward.graders.grade import Grade, InvalidTask, is_number
from reward.known_answers import KnownAnswer
from reward.protocol import DOMAINS

GROUP = "prorl_reward.graders"
_MAX_TRACEBACK = 8_000
"""Characters of a traceback that are kept, counted from its end."""


class PluginError(RuntimeError):
    """A plug-in cannot be used; the message is one sentence."""


class PluginFailed(RuntimeError):
    """A plug-in failed to grade a response, which is not a score of 0. `traceback` is from the plug-in's code; empty if
    it raised nothing."""

    def __init__(self, sentence: str, traceback: str = "") -> None:
        super().__init__(sentence)
        self.traceback = traceback


class DomainGrader(Protocol):
    """The interface of a grader: a module of reward/graders/, or what a plug-in names."""

    def check(self, task: Mapping[str, Any], /) -> None:
        """Raises InvalidTask."""

    def grade(self, text: str, task: Mapping[str, Any], /) -> Grade:
        """Grades the text after the last </think>; a pure function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """An installed plug-in.

    Example: Plugin(domain="last_number", value="last_number_grader", distribution="last-number-grader==1.0")"""

    domain: str
    value: str
    """The entry point's value: module, or module:object."""
    distribution: str

    def __str__(self) -> str:
        return f"the grader plug-in {self.domain} ({self.distribution})"

    def load(self) -> DomainGrader:
        """Imports the grader. Raises PluginError."""
        try:
            found = metadata.EntryPoint(self.domain, self.value, GROUP).load()
            grader: DomainGrader = found() if isinstance(found, type) else found
        except BaseException as error:
            traceback.print_exc()
            raise PluginError(f"{self} cannot be loaded: {in_words(error)}") from error
        for name in ("check", "grade"):
            if not callable(getattr(grader, name, None)):
                raise PluginError(
                    f"{self} has no function {name}, which every grader has (docs/custom_rewards.md)"
                )
        known = getattr(grader, "KNOWN_ANSWERS", ())
        if not isinstance(known, list | tuple) or not all(isinstance(one, KnownAnswer) for one in known):
            raise PluginError(f"KNOWN_ANSWERS of {self} must be a list of reward.known_answers.KnownAnswer")
        return grader

    def sources(self) -> list[Path]:
        """Returns the Python files of its top-level module or package, found without importing it."""
        name = self.value.partition(":")[0].partition(".")[0]
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return []
        folders = spec.submodule_search_locations
        if folders is None:
            return [Path(spec.origin)] if spec.origin and spec.has_location else []
        return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))


@cache
def plugins() -> dict[str, Plugin]:
    """Returns all plug-ins of this environment, by domain. Raises PluginError."""
    found: dict[str, Plugin] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        distribution = f"{entry.dist.name}=={entry.dist.version}" if entry.dist else "of no distribution"
        plugin = Plugin(domain=entry.name, value=entry.value, distribution=distribution)
        if re.fullmatch(r"[a-z][a-z0-9_]*", entry.name) is None:
            raise PluginError(f"{plugin} must have a name of lower-case letters, digits and underscores")
        if entry.name in DOMAINS:
            raise PluginError(
                f"{plugin} has the name of a domain that the service grades itself: give it another one"
            )
        if entry.name in found:
            raise PluginError(f"{plugin} has the same name as {found[entry.name]}: uninstall one of them")
        found[entry.name] = plugin
    return found


class Guarded:
    """Wraps a plug-in's grader. An exception, or a result that is not a Grade, becomes PluginFailed: the response is
    not graded. Running out of CPU time or crashing the worker gives 0, as with every other grader."""

    def __init__(self, plugin: Plugin, grader: DomainGrader) -> None:
        self._plugin, self._grader = plugin, grader
        self.known_answers: tuple[KnownAnswer, ...] = tuple(getattr(grader, "KNOWN_ANSWERS", ()))

    def warm_up(self) -> None:
        """Raises PluginError."""
        try:
            getattr(self._grader, "warm_up", lambda: None)()
        except BaseException as error:
            traceback.print_exc()
            raise PluginError(f"{self._plugin} cannot warm up: {in_words(error)}") from error

    def check(self, task: Mapping[str, Any], /) -> None:
        """Raises InvalidTask or PluginFailed."""
        self._call(self._grader.check, task)

    def grade(self, text: str, task: Mapping[str, Any], /) -> Grade:
        """Raises InvalidTask or PluginFailed."""
        grade = self._call(self._grader.grade, text, task)
        if not isinstance(grade, Grade):
            raise PluginFailed(f"{self._plugin} returned a value of type {type(grade).__name__}, not a Grade")
        if not is_number(grade.score) or not 0 <= grade.score <= 1:
            raise PluginFailed(
                f"{self._plugin} returned the score {grade.score!r}, which is no number from 0 to 1"
            )
        return grade

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except InvalidTask:
            raise
        except Exception as error:
            text = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]
            raise PluginFailed(f"{self._plugin} raised {in_words(error)}", text) from error


@cache
def loaded(domain: str) -> Guarded:
    """Returns a plug-in's grader, imported on first use. Raises PluginError."""
    plugin = plugins()[domain]
    return Guarded(plugin, plugin.load())


def fingerprint() -> Iterator[bytes]:
    """Yields everything that determines plug-ins' results: their distributions with versions, and their sources."""
    for plugin in plugins().values():
        yield f"{plugin.domain}={plugin.value} of {plugin.distribution}\0".encode()
        for path in plugin.sources():
            yield path.name.encode() + b"\0" + path.read_bytes() + b"\0"


def folders() -> tuple[str, ...]:
    """Returns the folders of the plug-ins' sources, which grading processes must be able to read."""
    return tuple(
        dict.fromkeys(str(path.parent) for plugin in plugins().values() for path in plugin.sources())
    )


def in_words(error: BaseException) -> str:
    """Returns an exception in one line, with its own last line of code."""
    text = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(("<frozen", sys.prefix, sys.base_prefix))
    ]
    last = (own or list(frames))[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
