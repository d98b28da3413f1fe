"""A sampler and a grader that return what a run has recorded, so that a step can be computed again without vLLM and
without the reward service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache

import torch

from nemo_prorl.algorithm.fingerprint import fingerprint
from nemo_prorl.engines.interface import Grader, LoadedWeights, Sampler, SamplingSettings
from nemo_prorl.run_folder.records import RecordedRollout
from nemo_prorl.types import Prompt, Rollout
from reward.protocol import ScoreRequest, ScoreResult

Records = Mapping[tuple[str, int], RecordedRollout]
"""Prompt's uid and sibling -> what a step recorded."""


class NotRecorded(LookupError):
    """A step asks for a rollout or a verdict that the recorded step did not have."""


class RecordedSampler:
    """See `engines.interface.Sampler`. Steps without records are sampled by another sampler, if there is one."""

    num_preemptions = 0
    released_gib = 0.0

    def __init__(self, records: Callable[[int], Records], other: Sampler | None = None) -> None:
        """records: returns what was recorded under a seed of `SamplingSettings`; empty if nothing was."""
        self._records = lru_cache(2)(records)  # of a step, and of the next one, which may be sampled ahead
        self.verdicts: dict[str, ScoreResult] = {}
        """Request id -> verdict on each rollout that was returned and is not graded yet."""
        self._other = other

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> LoadedWeights:
        if self._other is not None:
            return self._other.load_weights(weights, version)
        return LoadedWeights(received={name: fingerprint(tensor) for name, tensor in weights})

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[Rollout], None],
        siblings: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Rollout]]:
        """See `engines.interface.Sampler`. Raises NotRecorded."""
        found = self._records(settings.seed)
        if not found and self._other is not None:
            return self._other.sample(prompts, settings, on_finish, siblings)
        wanted = siblings or [range(settings.num_rollouts)] * len(prompts)
        groups = []
        for prompt, mine in zip(prompts, wanted, strict=True):
            if missing := [sibling for sibling in mine if (prompt.uid, sibling) not in found]:
                raise NotRecorded(f"rollout {missing[0]} of prompt {prompt.uid} was not sampled")
            rows = [(sibling, found[prompt.uid, sibling]) for sibling in mine]
            self.verdicts |= {row.request_id: row.verdict for _, row in rows}
            groups.append([_rollout(prompt, sibling, row) for sibling, row in rows])
        for group in groups:
            for rollout in group:
                on_finish(rollout)
        return groups

    def wake(self) -> None:
        if self._other is not None:
            self._other.wake()

    def sleep(self) -> None:
        if self._other is not None:
            self._other.sleep()

    def in_use(self) -> Mapping[str, str]:
        return {} if self._other is None else self._other.in_use()

    def close(self) -> None:
        if self._other is not None:
            self._other.close()


class RecordedGrader:
    """See `engines.interface.Grader`. Returns the verdicts, failures included, that a step recorded; another grader
    grades what was not recorded, if there is one."""

    def __init__(self, sampler: RecordedSampler, other: Grader | None = None) -> None:
        """sampler: has the rollouts of the steps."""
        self._sampler, self._other = sampler, other

    def submit(self, request: ScoreRequest, prompt: Prompt) -> Future[ScoreResult]:
        """See `engines.interface.Grader`. Raises NotRecorded."""
        verdict = self._sampler.verdicts.pop(request.request_id, None)
        if verdict is not None:
            future: Future[ScoreResult] = Future()
            future.set_result(verdict)
            return future
        if self._other is not None:
            return self._other.submit(request, prompt)
        raise NotRecorded(f"no verdict on a rollout of prompt {prompt.uid} was recorded")

    def check(self) -> None:
        if self._other is not None:
            self._other.check()


def _rollout(prompt: Prompt, sibling: int, row: RecordedRollout) -> Rollout:
    return Rollout(
        prompt=prompt,
        sibling=sibling,
        token_ids=row.token_ids,
        sampler_logprobs=row.logprobs,
        text=row.text,
        finish=row.finish,
        policy_version=row.policy_version,
    )
