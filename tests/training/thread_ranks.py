"""Ranks that are threads of one process, for tests of their communication."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from nemo_prorl.distributed import Layout, Ranks, Traffic


class ThreadRanks:
    """One of several ranks that are threads of this process."""

    gather_replicas = Ranks.gather_replicas
    on_main, together, any = Ranks.on_main, Ranks.together, Ranks.any

    def __init__(self, layout: Layout, slots: list[Any], barrier: threading.Barrier) -> None:
        self.layout, self._slots, self._barrier = layout, slots, barrier
        self.traffic = Traffic()

    def gather(self, value: Any) -> list[Any]:
        self._slots[self.layout.rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values

    def exchange(self, parcels: Mapping[int, Any]) -> list[Any]:
        everything = self.gather(parcels)
        return [sent[self.layout.rank] for sent in everything if self.layout.rank in sent]

    def from_main(self, value: Any) -> Any:
        return self.gather(value)[0]

    def barrier(self) -> None:
        self._barrier.wait()


def run_as_ranks(
    function: Callable[[ThreadRanks], Any], world_size: int, tensor_parallel: int, pipeline_parallel: int
) -> list[Any]:
    """Returns the results of `function` on each rank. An exception on any rank ends all ranks and is raised."""
    slots, barrier = [None] * world_size, threading.Barrier(world_size, timeout=60)
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def main(rank: int) -> None:
        layout = Layout(
            rank=rank,
            world_size=world_size,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
        )
        try:
            results[rank] = function(ThreadRanks(layout, slots, barrier))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
