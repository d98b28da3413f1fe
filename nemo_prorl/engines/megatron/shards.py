"""Megatron's distributed checkpoint on disk: planned by Megatron, written by this process.

Megatron itself would write from forked processes and hear of them through a manager process, which it starts by
importing the main script again and never ends, so that the interpreter hangs at exit. Forks of a process with CUDA,
gloo and vLLM in it are better avoided altogether: here, each rank writes its own shards from a thread.
"""

from __future__ import annotations

import inspect
import json
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK
from nemo_prorl.engines.megatron.core import (
    AsyncRequest,
    ShardedTensor,
    TorchDistSaveShardedStrategy,
    dist_checkpointing,
    filesystem_async,
    save_preprocess,
)

Place = tuple[str, int | None]
"""A tensor in a checkpoint: its key, and which layer of those that are stacked under it."""

Fetch = Callable[[str, tuple[int, ...]], torch.Tensor]
"""(key, offset in the whole) -> the CPU tensor that goes there."""

filesystem_async._results_queue = queue.SimpleQueue()  # else planning would start the manager process


class Save:
    """See `engines.interface.PendingSave`. Made by all ranks together.

    `state`: sharded tensors and objects. What this rank is to write must stay as it is until it is written; with
    `fetch`, tensors come from there, as late as possible, and those in `state` only have their shape. `mark`: content
    of policy.json, which is written last.
    """

    def __init__(
        self,
        directory: Path,
        state: dict[str, Any],
        mark: dict[str, Any],
        *,
        fetch: Fetch | None = None,
        num_files: int = 2,
    ) -> None:
        sharded, self._common = save_preprocess(state)
        plan = _Plan("torch_dist", 1, thread_count=num_files)
        plan.async_save(sharded, directory)
        self._directory, self._mark, self._fetch = directory, mark, fetch
        self._writer, self._metadata = plan.writer, plan.metadata
        self._results: list[Any] = []

    def write(self) -> list[Path]:
        buckets = self._writer.write_buckets
        files = [Path(path) for path, *_ in buckets]
        try:
            while buckets:  # each is let go as soon as it is written
                self._write_file(*buckets.pop(0))
        except BaseException:
            for file in files:  # whatever else this run still has to write may need the space
                file.unlink(missing_ok=True)
            raise
        return files

    def _write_file(self, path: str, key: str, content: tuple[list[Any], list[Any]]) -> None:
        objects, tensors = content
        if self._fetch is not None:
            tensors = [(item, self._fetch(item.index.fqn, tuple(item.index.offset))) for item, _ in tensors]
        writer = self._writer
        write = inspect.unwrap(writer.write_preloaded_data)  # without switching garbage collection off
        outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pending: queue.Queue[int] = queue.Queue()
        pending.put(0)
        write([writer.transforms], 0, (path, key, (objects, tensors)), outcomes, pending, use_fsync=True)
        _, outcome = outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        self._results += outcome

    def finish(self) -> None:
        main = dist.get_rank() == 0
        results: list[Any] | None = [None] * dist.get_world_size() if main else None
        dist.gather_object(self._results, results, dst=0)
        if main:
            self._writer.finish(self._metadata, results)
            directory = str(self._directory)
            dist_checkpointing.serialization.get_default_save_common_strategy().save_common(
                self._common, directory
            )
            config = dist_checkpointing.core.CheckpointingConfig("torch_dist", 1)
            dist_checkpointing.core.save_config(config, directory)
            (self._directory / CHECKPOINT_MARK).write_text(json.dumps(self._mark, indent=1))


class _Plan(TorchDistSaveShardedStrategy):
    """Decides which rank writes what into which file, and stops there."""

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> AsyncRequest:
        self.writer, self.metadata = writer, save_state_dict_ret[1]
        return AsyncRequest(None, (), [])


def whole_tensor(place: Place, num_layers: int, data: torch.Tensor) -> ShardedTensor:
    """A tensor that nobody shares, in its place; of a layer: with an axis of length 1 in front."""
    key, layer = place
    if layer is None:
        return ShardedTensor.from_rank_offsets(key, data)
    return ShardedTensor.from_rank_offsets(key, data, (0, layer, num_layers))


class Reader:
    """Whole tensors of a checkpoint, whatever the layout that wrote it, without a model to load them into."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._known = dist_checkpointing.load_tensors_metadata(self._directory)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Of the whole, layers stacked; None: it is not there."""
        return tuple(self._known[key].global_shape) if key in self._known else None

    def keys(self) -> Iterator[str]:
        return iter(self._known)

    def read(self, places: Sequence[Place]) -> list[torch.Tensor]:
        """In their own precision. A vocabulary comes with its padding."""
        wanted = {}
        for index, (key, layer) in enumerate(places):
            num_layers, *rest = self._known[key].global_shape
            shape = (num_layers if layer is None else 1, *rest)
            empty = torch.empty(shape, dtype=self._known[key].dtype)
            wanted[str(index)] = whole_tensor((key, layer), num_layers, empty)
        loaded = dist_checkpointing.load(wanted, self._directory, validate_access_integrity=False)
        tensors = [loaded[str(index)] for index in range(len(places))]
        return [
            tensor if layer is None else tensor[0] for tensor, (_, layer) in zip(tensors, places, strict=True)
        ]
