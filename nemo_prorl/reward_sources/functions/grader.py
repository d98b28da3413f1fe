"""Graders (see engines/interface.py) from reward functions: one function, or several mixed with the reward service."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.config import SERVICE, RewardConfig
from nemo_prorl.reward_sources.functions.process import FunctionProcess
from nemo_prorl.reward_sources.functions.worker import CallFailed, Description, FunctionUnusable
from nemo_prorl.types import PARTS, Prompt
from reward.extract import is_open_thought, visible_text
from reward.protocol import GradeStatus, ScoreRequest, ScoreResult

if TYPE_CHECKING:  # it imports torch, which `train --check` of a function does not need
    from nemo_prorl.engines.interface import GradingService

ATTEMPTS = 4
"""Calls of a function that fail in a row until the responses that wait for it are given up."""

_RUN_HAS_ENDED = "was not asked: the run has ended"


class RewardFunctionFailing(RuntimeError):
    """A reward function can grade nothing, and trying again would not help; the message is a whole sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A response that waits for its value."""

    request: ScoreRequest
    prompt: Prompt
    future: Future[ScoreResult] = field(default_factory=Future)


class FunctionGrader:
    """Grades with one function. Responses submitted during a call form the next one."""

    def __init__(self, text: str, config: RewardConfig, log: Path, digest: str) -> None:
        """text: FILE.py:NAME. log: the file for the function's output and tracebacks. digest: the SHA-256 that its file
        must have."""
        self._process = FunctionProcess(text, config, log, digest)
        self.name, self.text, self.digest = self._process.name, text, digest
        self._log = log
        self._batch_size = config.function_batch
        self._waiting: deque[Item] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"reward-{self.name}")
        self._is_closed = False
        self._num_graded = self._failed_in_a_row = 0
        """Numbers of calls."""
        self._failed_for_good = ""

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """Returns a future with the function's value as the score, or without a score if the function gave none."""
        item = Item(request, prompt)
        self._waiting.append(item)
        try:
            self._thread.submit(self._grade_waiting)  # finds nothing if an earlier batch has the item
        except RuntimeError:  # it was closed
            self._give_up_waiting(_RUN_HAS_ENDED)
        return item.future

    def check(self) -> None:
        """Raises RewardFunctionFailing if the function cannot be called, if its result is not a list with one number
        per response, or if ATTEMPTS calls in a row failed and none ever succeeded."""
        if self._failed_for_good:
            raise RewardFunctionFailing(
                f"the reward function {self.name} {self._failed_for_good} (see {self._log}): fix it, and start again."
            )

    def close(self) -> None:
        """Ends the process; responses that still wait get no score."""
        if self._is_closed:
            return
        self._is_closed = True
        ended = self._thread.submit(self._process.end)
        while not ended.done():
            self._process.interrupt()  # more than once, because the thread may only now be starting the process
            wait([ended], timeout=0.1)
        self._thread.shutdown()
        self._give_up_waiting(_RUN_HAS_ENDED)

    def _grade_waiting(self) -> None:
        """Makes one batch of waiting items whose rows have the same columns, in order, and grades it."""
        batch: list[Item] = []
        while (
            self._waiting
            and len(batch) < self._batch_size
            and self._waiting[0].prompt.columns.keys() == (batch or self._waiting)[0].prompt.columns.keys()
        ):
            batch.append(self._waiting.popleft())
        why = self._failed_for_good or _RUN_HAS_ENDED
        try:
            if batch and not (self._failed_for_good or self._is_closed):
                why = self._grade(batch)
        except Exception as error:  # our own defect, which must not leave anybody waiting forever
            why = f"was not asked: {type(error).__name__}: {error}"
        self._resolve([item for item in batch if not item.future.done()], why)

    def _grade(self, batch: Sequence[Item]) -> str:
        """Resolves each item as soon as its value is known, and returns why the others have none.

        One response can make a call with many fail. They are then tried one by one, until ATTEMPTS calls have failed in
        a row. If none of ATTEMPTS calls has succeeded, in this batch and those before it, the waiting responses are not
        tried either, so that a function which hangs on everything stops the run soon.
        """
        num_graded = self._num_graded
        failure = self._try(batch)
        for item in batch if failure and len(batch) > 1 else []:
            if self._failed_for_good or self._is_closed or self._failed_in_a_row == ATTEMPTS:
                break
            failure = self._try([item]) or failure
        if self._num_graded > num_graded:
            self._failed_in_a_row = 0
        if self._failed_in_a_row == ATTEMPTS and not self._num_graded:
            self._failed_for_good = failure
        if self._failed_for_good or self._failed_in_a_row == ATTEMPTS:
            self._failed_in_a_row = 0
            self._give_up_waiting(failure)
        return failure

    def _try(self, batch: Sequence[Item]) -> str:
        """Makes one call, and resolves the items if it succeeds. Returns why it failed; empty if it succeeded."""
        try:
            values = self._process.call(arguments(self._process.start(), batch), len(batch))
        except FunctionUnusable as error:
            failure = self._failed_for_good = f"cannot be used: {error}"
        except CallFailed as error:
            failure = str(error)
            if not error.again:
                self._failed_for_good = failure
            elif len(batch) == 1:
                self._resolve(batch, failure)
        else:
            self._num_graded += 1
            self._failed_in_a_row = 0
            for item, value in zip(batch, values, strict=True):
                self._resolve([item], value)
            return ""
        self._failed_in_a_row += 1
        return failure

    def _give_up_waiting(self, why: str) -> None:
        with suppress(IndexError):  # until nothing waits; another thread may do the same
            while True:
                self._resolve([self._waiting.popleft()], why)

    def _resolve(self, items: Sequence[Item], value: float | str) -> None:
        """Sets the items' result. value: their score, or why they have none, as the end of a sentence whose subject is
        the function."""
        for item in items:
            request_id = item.request.request_id
            if isinstance(value, str):
                result = ungraded(request_id, f"the reward function {self.name} {value} (see {self._log})")
            else:
                result = ScoreResult(
                    request_id=request_id, status=GradeStatus.graded, score=value, verdict="function"
                )
            item.future.set_result(result)


def arguments(function: Description, batch: Sequence[Item]) -> dict[str, list[Any]]:
    """Returns the arguments for a call: those available (OFFERED, and the rows' columns) that the function accepts."""
    given = {name: [make(item) for item in batch] for name, make in _MADE.items() if function.wants(name)}
    if function.takes_any and "completions" not in function.names:
        del given["completions"]  # the same as the responses
    for name in batch[0].prompt.columns:
        if name not in given and function.wants(name):
            given[name] = [item.prompt.columns[name] for item in batch]
    return given


def _final_text(item: Item) -> str | None:
    response, in_thought = item.request.response, item.request.in_thought
    return None if is_open_thought(response, in_thought) else visible_text(response)


_MADE: Mapping[str, Callable[[Item], Any]] = {
    "prompts": lambda item: item.prompt.text,
    "responses": lambda item: item.request.response,
    "completions": lambda item: item.request.response,
    "final_texts": _final_text,
}
OFFERED = tuple(_MADE)
"""Arguments that are available besides the row's columns."""


class MixedGrader:
    """Grades with the weighted sum of functions, and of the reward service if it has a weight and knows the row's
    domain. A response is not graded if one of them cannot grade it, unless that one's weight is 0."""

    def __init__(
        self,
        functions: Sequence[FunctionGrader],
        service: GradingService | None,
        config: RewardConfig,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """say: gets one message for each domain that the service does not know, and for each function with weight 0
        that fails for good."""
        self._functions, self.service, self._say = functions, service, cache(say)
        self._weights = {name: config.weight(name) for name in [*(f.name for f in functions), SERVICE]}
        self._functions_count = any(self._weights[function.name] for function in functions)
        counting = {name: weight for name, weight in sorted(self._weights.items()) if weight}
        digest = hashlib.sha256(repr(counting).encode())
        for function in functions:
            digest.update(f"{function.text} {function.digest}".encode() if function.name in counting else b"")
        asked = service.version if service and SERVICE in counting else "functions"
        self.version = f"{asked}+{digest.hexdigest()[:12]}"
        """Equal versions give equal scores, if the functions depend on nothing but their files."""
        self.parts = {f.text: f"weight {self._weights[f.name]:g}, file {f.digest[:12]}" for f in functions}
        """Describes the parts of the reward, by name."""
        if service is not None:
            self.parts[SERVICE] = f"weight {self._weights[SERVICE]:g}, version {service.version}"

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """Returns a future of the weighted sum; the result's details have each part's score by name."""
        parts = {function.name: function.submit(request, prompt) for function in self._functions}
        if self.service is not None and self._is_for_service(self.service, request):
            parts[SERVICE] = self.service.submit(request, prompt)
        return _when_all_are_there(parts, lambda results: self._mixed(request, results))

    def check(self) -> None:
        """Raises if the service, or a function with a weight other than 0, has failed for good."""
        if self.service is not None:
            self.service.check()
        for function in self._functions:
            try:
                function.check()
            except RewardFunctionFailing as error:
                if self._weights[function.name]:
                    raise
                self._say(f"{error} It has weight 0, so the run goes on without its values.")

    def _is_for_service(self, service: GradingService, request: ScoreRequest) -> bool:
        """Returns whether the service grades this row. It grades every row if no function has a weight."""
        if not self._functions_count:
            return True
        if not request.task:
            return False
        if not service.grades(request.domain):
            self._say(
                f"rows of the domain {request.domain}, which the reward service does not know, are graded by "
                "reward.function alone"
            )
            return False
        return True

    def _mixed(self, request: ScoreRequest, results: Mapping[str, ScoreResult]) -> ScoreResult:
        for name, result in results.items():
            if result.score is None and self._weights[name]:
                return replace(result, version=self.version)
        scores = {name: result.score for name, result in results.items() if result.score is not None}
        total = sum(self._weights[name] * score for name, score in scores.items())
        if not math.isfinite(total):
            return ungraded(request.request_id, f"the weighted sum of {scores} is not a finite number")
        lead = results[SERVICE if SERVICE in scores else next(iter(scores))]
        return ScoreResult(
            request_id=request.request_id,
            status=GradeStatus.graded,
            score=total,
            verdict=lead.verdict,
            details={**lead.details, PARTS: scores},
            version=self.version,
        )


def ungraded(request_id: str, reason: str) -> ScoreResult:
    """Returns a result without a score, which is not a reward of 0."""
    return ScoreResult(
        request_id=request_id,
        status=GradeStatus.infra_error,
        score=None,
        verdict="missing",
        details={"reason": reason},
    )


def _when_all_are_there(
    parts: Mapping[str, Future[ScoreResult]], mix: Callable[[dict[str, ScoreResult]], ScoreResult]
) -> Future[ScoreResult]:
    """Returns a future of what `mix` makes of all parts' results; it resolves when the last part does."""
    mixed: Future[ScoreResult] = Future()

    def wait_for(names: Sequence[str]) -> None:
        """Waits for the parts one after the other, so that only the last callback of all mixes."""
        if names:
            parts[names[0]].add_done_callback(lambda _: wait_for(names[1:]))
            return
        try:
            mixed.set_result(mix({name: future.result() for name, future in parts.items()}))
        except Exception as error:  # passed on to the future's owner
            mixed.set_exception(error)

    wait_for(list(parts))
    return mixed
