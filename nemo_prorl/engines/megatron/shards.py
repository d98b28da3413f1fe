"""Writes and reads the files of Megatron's distributed checkpoints. Megatron plans which rank writes what; each rank
then writes its own shards from a thread.

Megatron itself would write from forked processes and get their results through a manager process. It starts that
process by importing the main script again, and never ends it, so the interpreter hangs at exit. Forking a process that
uses CUDA, gloo and vLLM is best avoided anyway.
"""

from __future__ import annotations

import inspect
import json
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.engines.megatron import core
from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK

Place = tuple[str, int | None]
"""Identifies a tensor in a checkpoint: its key, and the layer's index if layers are stacked under that key."""

# Otherwise planning would start the manager process.
core.filesystem_async._results_queue = queue.SimpleQueue()


class Save:
    """See `engines.interface.PendingSave`. Constructing it is collective over all ranks.

    state: sharded tensors and objects, which must not change until they are written. mark: the content of policy.json,
    which is written last; empty: there is none. beside: a save of another folder, which is written first. on_written:
    is called when all has been written, by the thread that has.
    """

    def __init__(
        self,
        directory: Path,
        state: dict[str, Any],
        mark: dict[str, Any],
        beside: Save | None = None,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        sharded, self._common = core.save_preprocess(state)
        plan = _Plan("torch_dist", 1, thread_count=2)
        plan.async_save(sharded, directory)
        self._directory, self._mark, self._beside, self._on_written = directory, mark, beside, on_written
        self._writer, self._metadata = plan.writer, plan.metadata
        self._results: list[Any] = []

    def write(self) -> list[Path]:
        beside = self._beside.write() if self._beside else []
        buckets = self._writer.write_buckets
        files = [Path(path) for path, *_ in buckets]
        try:
            while buckets:  # popped, so that memory that is not kept is freed once it is written
                self._write_file(buckets.pop(0))
        except BaseException:
            for file in [*beside, *files]:  # the disk may be full
                file.unlink(missing_ok=True)
            raise
        self._on_written()
        return [*beside, *files]

    def _write_file(self, bucket: tuple[Any, ...]) -> None:
        writer = self._writer
        # The decorator would switch garbage collection off.
        write = inspect.unwrap(writer.write_preloaded_data)
        outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pending: queue.Queue[int] = queue.Queue()
        pending.put(0)
        write([writer.transforms], 0, bucket, outcomes, pending, use_fsync=True)
        _, outcome = outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        self._results += outcome

    def finish(self) -> None:
        saves = [self._beside, self] if self._beside else [self]
        each: list[Any] = [None] * dist.get_world_size()
        # One for all, before the main rank may fail.
        dist.gather_object([save._results for save in saves], each if dist.get_rank() == 0 else None, dst=0)
        for save, *results in zip(saves, *each, strict=True) if dist.get_rank() == 0 else ():
            save._complete(results)

    def _complete(self, results: list[Any]) -> None:
        self._writer.finish(self._metadata, results)
        directory = str(self._directory)
        core.dist_checkpointing.serialization.get_default_save_common_strategy().save_common(
            self._common, directory
        )
        config = core.dist_checkpointing.core.CheckpointingConfig("torch_dist", 1)
        core.dist_checkpointing.core.save_config(config, directory)
        if self._mark:
            (self._directory / CHECKPOINT_MARK).write_text(json.dumps(self._mark, indent=1))


class _Plan(core.TorchDistSaveShardedStrategy):
    """Megatron's save strategy, stopped after it has decided which rank writes what into which file."""

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> core.AsyncRequest:
        self.writer, self.metadata = writer, save_state_dict_ret[1]
        return core.AsyncRequest(None, (), [])


class ShardReader:
    """Reads whole tensors of a checkpoint from any layout, without a model. Not collective."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._known = core.dist_checkpointing.load_tensors_metadata(self._directory)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Returns the shape of the whole tensor, with stacked layers as first axis, or None if there is none."""
        return tuple(self._known[key].global_shape) if key in self._known else None

    def read(self, places: Sequence[Place]) -> list[torch.Tensor]:
        """Returns the tensors in the precision of the checkpoint, vocabularies with their padding."""
        wanted = {}
        for index, (key, layer) in enumerate(places):
            num_layers, *rest = self._known[key].global_shape
            shape = (num_layers if layer is None else 1, *rest)
            empty = torch.empty(shape, dtype=self._known[key].dtype)
            offset = [] if layer is None else [(0, layer, num_layers)]
            wanted[str(index)] = core.ShardedTensor.from_rank_offsets(key, empty, *offset)
        loaded = core.dist_checkpointing.load(wanted, self._directory, validate_access_integrity=False)
        tensors = [loaded[str(index)] for index in range(len(places))]
        return [
            tensor if layer is None else tensor[0] for tensor, (_, layer) in zip(tensors, places, strict=True)
        ]
