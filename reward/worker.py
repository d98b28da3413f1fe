"""A grading process: confined, single-threaded, one message at a time, killed from outside if it takes too long.

It is forked by a fork server that has imported all grading libraries (`preload`), and answers messages on a socket:

    {"domain", "response", "in_thought", "task"}
        -> {"grade": {"score", "verdict", "details"}, "retire": bool, "spent_s": seconds}
         | {"invalid": sentence, "retire": bool, "spent_s": seconds}
         | {"plugin_failed": sentence, "traceback", "retire": bool, "spent_s": seconds}
         | {"retry": sentence, "retire": true, "spent_s": seconds}
    {"canaries": domain}
        -> {"canaries": [{"response", "task", "score"}, ...], "retire": bool, "spent_s": seconds}
    {"import": [names of modules]}
        -> {"imported": true, "retire": bool, "spent_s": seconds} | {"retry", ...}

    {"group": [message of the first kind, ...]}
        -> {"answers": [{"grade"} | {"invalid"} | {"retry"}, ...], "retire": bool, "spent_s": seconds}

If a group takes longer than 0.1 s, only its first requests are answered. `retire` asks for a replacement: the process
has grown, has served long enough, or could not import a module, for which the response is not to blame (`retry`).
`spent_s` is the CPU time that it has used in all.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from typing import Any

from reward import frames, graders
from reward.graders import plugins
from reward.graders.grade import Grade, InvalidTask
from reward.graders.plugins import PluginFailed
from reward.graders.registry import BUILT_IN, domains
from reward.imports import Watch
from reward.sandbox.cell import Ground, Limits

_LIMITS = Limits(memory=3 << 30, file_size=0, stack=64 << 20)
_MAX_REQUESTS = 5_000
_MAX_GROWTH_KIB = 200 << 10
_GROUP_S = 0.1


def preload(names: Collection[str]) -> Sequence[str]:
    """Imports the graders of these domains and grades once with each built-in one, so that forked workers share what
    that loads. Returns the folders of plug-ins, which workers must be able to read. Raises PluginError."""
    from reward.canaries import CANARIES

    _watch()
    graded_here = [name for name in names if domains()[name].pool != "code"]
    graded_here.sort(key=lambda name: name in BUILT_IN)  # a plug-in that cannot be loaded says so at once
    for grader in dict.fromkeys(map(graders.grader, graded_here)):  # math and stem share one
        if hasattr(grader, "warm_up"):
            grader.warm_up()
    for name in graded_here:
        for canary in CANARIES.get(name, ()):
            graders.grade(name, canary.response, canary.task)
    _watch().accept()
    return plugins.folders()


@cache
def _watch() -> Watch:
    return Watch()


def main(ground: Ground, fds: list[int]) -> None:
    """Serves one socket until it closes."""
    (fd,) = fds
    _LIMITS.apply()
    ground.confine()
    base_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    served = 0
    while (message := frames.read(fd)) is not None:
        while message.get("spin"):  # the hanging canary; it has to be killed from outside
            pass
        answers = _answers(message.get("group") or [message])
        served += len(answers)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        grown = usage.ru_maxrss - base_kib > _MAX_GROWTH_KIB
        is_done = grown or served >= _MAX_REQUESTS or any("retry" in answer for answer in answers)
        spent_s = usage.ru_utime + usage.ru_stime
        answer = {"answers": answers} if "group" in message else answers[0]
        frames.write(fd, {**answer, "retire": is_done, "spent_s": spent_s})


def _answers(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Grades the first requests of a group, at least one, until its time is up."""
    begun, answers = time.process_time(), [_answer(requests[0])]
    for request in requests[1:]:
        if time.process_time() - begun > _GROUP_S:
            break
        answers.append(_answer(request))
    return answers


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answers one request. A score is worthless if an import failed meanwhile, whether or not the grader noticed."""
    try:
        answer = _answer_of_grader(request)
    except ImportError as error:
        answer = {"retry": f"a grader could not import what it needs: {error}"}
    failed = _watch().failed()
    if failed and answer.get("grade", {}).get("verdict") not in (None, "too_complex"):
        return {"retry": f"a grader could not import {', '.join(failed)}"}
    return answer


def _answer_of_grader(request: dict[str, Any]) -> dict[str, Any]:
    """Raises ImportError."""
    if "import" in request:
        for name in request["import"]:
            sys.modules.pop(name, None)
            import_module(name)
        return {"imported": True}
    if "canaries" in request:
        return {"canaries": [asdict(canary) for canary in plugins.loaded(request["canaries"]).canaries]}
    try:
        grade = graders.grade(
            request["domain"], request["response"], request["task"], in_thought=request["in_thought"]
        )
        return {"grade": grade.to_json()}
    except InvalidTask as error:
        return {"invalid": str(error)}
    except PluginFailed as error:
        return {"plugin_failed": str(error), "traceback": error.traceback}
    except (MemoryError, RecursionError) as error:  # the response was too much for a parser, its own fault
        return _failed("too_complex", type(error).__name__)
    except ImportError:
        raise
    except Exception as error:
        # A grader failed on a response to a valid task: parsers of free text have endless corner cases. The answer
        # could not be verified, so it gets 0; the verdict is counted separately from `wrong`.
        return _failed("grader_error", repr(error)[:300])


def _failed(verdict: str, error: str) -> dict[str, Any]:
    return {"grade": Grade(score=0.0, verdict=verdict, details={"error": error}).to_json()}
