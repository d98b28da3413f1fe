"""A grading process: confined, single-threaded, one message at a time, killed from outside if it takes too long.

It is forked by a fork server that has imported all grading libraries (`preload`), and answers each message on a socket,
{"requests": [request, ...]}, with a Reply (reward.answers): the answers to the first requests, in order. A request is

    {"domain", "response", "in_thought", "task"}    -> Grade | Invalid | PluginRaised | Retry
    {"known_answers": domain}                       -> as above
    {"hang": [names of modules]}                    -> Retry if one cannot be imported, else nothing: computes forever

If a message takes longer than 0.1 s, the requests that follow are not answered. The worker asks for a replacement if it
has grown, has served long enough, or could not import a module, for which the response is not to blame (Retry).
"""

from __future__ import annotations

import os
import pkgutil
import resource
import sys
import time
from collections.abc import Collection, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

from reward import frames, graders
from reward.answers import Invalid, PluginRaised, Reply, Retry, Sent, to_known_answers
from reward.graders import plugins
from reward.graders.grade import Grade, InvalidTask
from reward.graders.registry import BUILT_IN, domains
from reward.known_answers import KNOWN_ANSWERS
from reward.sandbox.cell import CellLimits, PreparedLevel

_LIMITS = CellLimits(memory=3 << 30, file_size=0, stack=64 << 20)
_MAX_REQUESTS = 5_000
_MAX_GROWTH_KIB = 200 << 10
_GROUP_S = 0.1


class ImportWatch:
    """Notices imports that fail: a finder that stands first in `sys.meta_path`, is asked only for modules that are not
    loaded yet, and finds none. It must be created before the process is confined."""

    # sympy and others import some modules only when they need them, and take any exception for "not equal". So a failed
    # import in a confined process would turn a right answer into a wrong one, with every light green.

    def __init__(self) -> None:
        self._installed = {module.name for module in pkgutil.iter_modules()}
        self._tried: dict[str, Sequence[str] | None] = {}
        self._optional: set[str] = set()
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """The interface of a finder. `path`: the folders of the parent package."""
        self._tried[name] = path

    def failed(self) -> list[str]:
        """Returns the installed modules that somebody has tried to import in vain since the last call, without the
        accepted ones."""
        tried, self._tried = self._tried, {}
        failed = []
        for name, path in tried.items():
            if name in sys.modules or name in self._optional:
                continue
            # Whether the module is there, or was there before the process was confined.
            if path is None:
                is_installed = name in self._installed
            else:
                is_installed = (
                    not all(map(os.path.isdir, path)) or PathFinder.find_spec(name, path) is not None
                )
            if is_installed:
                failed.append(name)
        return failed

    def accept(self) -> None:
        """Takes every import that has failed so far for one that may fail, such as that of an optional dependency."""
        self._optional.update(self.failed())


def preload(names: Collection[str]) -> Sequence[str]:
    """Imports the graders of these domains and grades once with each built-in one, so that forked workers share what
    that loads. Returns the folders of plug-ins, which workers must be able to read. Raises PluginError."""
    _watch()
    graded_here = [name for name in names if domains()[name].pool != "code"]
    graded_here.sort(key=lambda name: name in BUILT_IN)  # a plug-in that cannot be loaded says so at once
    for grader in dict.fromkeys(map(graders.grader, graded_here)):  # math and stem share one
        if hasattr(grader, "warm_up"):
            grader.warm_up()
    for name in graded_here:
        for known in KNOWN_ANSWERS.get(name, ()):
            graders.grade(name, known.response, known.task)
    _watch().accept()
    return plugins.folders()


@cache
def _watch() -> ImportWatch:
    return ImportWatch()


def main(prepared: PreparedLevel, fds: list[int]) -> None:
    """Serves one socket until it closes."""
    (fd,) = fds
    _LIMITS.apply()
    prepared.confine()
    base_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    served = 0
    while (message := frames.read(fd)) is not None:
        answers = _answers(message["requests"])
        served += len(answers)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        grown = usage.ru_maxrss - base_kib > _MAX_GROWTH_KIB
        is_done = grown or served >= _MAX_REQUESTS or any(isinstance(answer, Retry) for answer in answers)
        reply = Reply(tuple(answers), is_done, usage.ru_utime + usage.ru_stime)
        frames.write(fd, reply.to_frame())


def _answers(requests: list[dict[str, Any]]) -> list[Sent]:
    """Answers the first requests of a message, at least one, until its time is up."""
    begun, answers = time.process_time(), [_answer(requests[0])]
    for request in requests[1:]:
        if time.process_time() - begun > _GROUP_S:
            break
        answers.append(_answer(request))
    return answers


def _answer(request: dict[str, Any]) -> Sent:
    """Answers one request. A score is worthless if an import failed meanwhile, whether or not the grader noticed."""
    try:
        answer = _answer_of_grader(request)
    except ImportError as error:
        answer = Retry(f"a grader could not import what it needs: {error}")
    failed = _watch().failed()
    if failed and isinstance(answer, Grade) and answer.verdict != "too_complex":
        return Retry(f"a grader could not import {', '.join(failed)}")
    return answer


def _answer_of_grader(request: dict[str, Any]) -> Sent:
    """Raises ImportError."""
    if "hang" in request:
        for name in request["hang"]:
            sys.modules.pop(name, None)
            import_module(name)
        while True:  # until it is killed from outside
            pass
    try:
        if domain := request.get("known_answers"):
            known = KNOWN_ANSWERS.get(domain) or plugins.loaded(domain).known_answers
            return to_known_answers(known, partial(graders.grade, domain))
        return graders.grade(
            request["domain"], request["response"], request["task"], in_thought=request["in_thought"]
        )
    except InvalidTask as error:
        return Invalid(str(error))
    except plugins.PluginFailed as error:
        return PluginRaised(str(error), error.traceback)
    except (MemoryError, RecursionError) as error:  # the response was too much for a parser, its own fault
        return Grade(score=0.0, verdict="too_complex", details={"error": type(error).__name__})
    except ImportError:
        raise
    except Exception as error:
        # A grader failed on a response to a valid task: parsers of free text have endless corner cases. The answer
        # could not be verified, so it gets 0; the verdict is counted separately from `wrong`.
        return Grade(score=0.0, verdict="grader_error", details={"error": repr(error)[:300]})
