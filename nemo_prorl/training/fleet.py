"""All sampling engines of the job as one: shares prompts out, brings every rollout to every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.interface import Sampler, SamplingSettings
from nemo_prorl.types import Prompt, Rollout


class SamplerFleet:
    """One engine every `tensor_parallel` consecutive ranks; the first of them speaks for the engine."""

    def __init__(
        self,
        sampler: Sampler,
        ranks: Ranks,
        *,
        tensor_parallel: int,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_progress` is called on each rank of an engine when a rollout of it ends."""
        self._sampler = sampler
        self._ranks = ranks
        self._on_progress = on_progress
        self._engine, self._shard = divmod(ranks.layout.rank, tensor_parallel)
        self.num_engines = ranks.layout.world_size // tensor_parallel

    def sample(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[int, Rollout], None],
    ) -> list[list[Rollout]]:
        """The rollouts of every prompt, in the prompts' order, on every rank. `on_finish` as in `sample_share`."""
        parts = self._ranks.gather(self.sample_share(prompts, settings, on_finish))
        everything = {index: group for part in parts for index, group in part.items()}
        return [everything[index] for index in range(len(prompts))]

    def sample_share(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        on_finish: Callable[[int, Rollout], None],
    ) -> dict[int, list[Rollout]]:
        """The rollouts of this engine's share, by index of the prompt; on the ranks that do not speak for it, none.

        `on_finish(index of the prompt, rollout)` is called on one rank only, the moment the rollout ends.
        """
        mine = range(self._engine, len(prompts), self.num_engines)
        index_of = {prompts[index].uid: index for index in mine}

        def report(rollout: Rollout) -> None:
            self._on_progress()
            if self._shard == 0:
                on_finish(index_of[rollout.prompt.uid], rollout)

        sampled = self._sampler.sample([prompts[index] for index in mine], settings, report)
        return dict(zip(mine, sampled, strict=True)) if self._shard == 0 else {}
