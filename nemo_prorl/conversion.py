"""Hugging Face -> Megatron checkpoint before the first stage, Megatron -> Hugging Face after any.

Both run in one process, on CPU, whatever layout the checkpoint was written from, and hold no more than one file of what
they write. Tensors are copied bit by bit unless another precision is asked for; configuration and tokenizer are carried
over. What is written appears when it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines.megatron import checkpoint, weights
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import check_files
from nemo_prorl.storage import (
    MANIFEST_FILE,
    changed_content,
    copy_model_files,
    missing_or_torn,
    write_manifest,
    written_aside,
)

SHARD_BYTES = 5 << 30
"""Size above which weights are split over files, as transformers does."""


def import_hf(hf_dir: Path, out_dir: Path) -> None:
    """Writes the weights of a Hugging Face folder as a Megatron checkpoint that MegatronPolicy loads in any layout, as
    model.path too, with config and tokenizer beside it. The precision is the folder's (fp32 unless all are bf16).

    Raises ConfigError for a model that is not supported, and for weights that are damaged or do not fit its config.
    """
    hf_dir, out_dir = Path(hf_dir), Path(out_dir)
    architecture = read_architecture(hf_dir)
    check_files(hf_dir, architecture)
    reader = weights.SafetensorsReader(hf_dir)
    weights.check_hf(reader, architecture)
    precision = Precision.bf16 if reader.dtypes() == {"BF16"} else Precision.fp32
    _one_process()
    with written_aside(out_dir) as aside:
        checkpoint.save_whole(aside, architecture, precision, reader.__getitem__)
        copy_model_files(hf_dir, aside)
        write_manifest(aside, {})


def export_hf(
    checkpoint_dir: Path,
    out_dir: Path,
    *,
    dtype: Precision | str | None = None,
    shard_bytes: int = SHARD_BYTES,
    card: str = "",
) -> None:
    """Writes the weights of a checkpoint (of a run, or imported) as a Hugging Face folder.

    `dtype`: precision of the files; None: as in the checkpoint. fp32 is what the optimizer works on, also where the
    policy itself is of 16 bits. `shard_bytes`: largest file. `card`: content of README.md; empty: none.
    Raises ConfigError if there is no checkpoint, no config of a model beside it, or if it is damaged.
    """
    shards, side_files = _find_parts(Path(checkpoint_dir))
    _check_intact(Path(checkpoint_dir))
    architecture = read_architecture(side_files)
    _one_process()
    main = dtype is not None and _torch_dtype(dtype) is torch.float32
    stream = checkpoint.read_whole(shards, architecture, main=main)
    save_hf(stream, side_files, out_dir, dtype=dtype, shard_bytes=shard_bytes, card=card)


def save_hf(
    named_weights: Iterable[tuple[str, torch.Tensor]],
    source_dir: Path,
    out_dir: Path,
    *,
    dtype: Precision | str | None = None,
    shard_bytes: int = SHARD_BYTES,
    card: str = "",
    write: bool = True,
) -> None:
    """Writes a stream of Hugging-Face-named tensors, such as `policy.named_weights()`, as a Hugging Face folder with
    the config and tokenizer of `source_dir`. The folder appears when it is complete and replaces an older one.

    Where the stream is collective every rank must call this; pass `write` on the one that has the disk.
    """
    wanted = None if dtype is None else _torch_dtype(dtype)
    if not write:
        for _ in named_weights:
            pass
        return
    with written_aside(Path(out_dir)) as aside:
        copy_model_files(Path(source_dir), aside)
        dtypes = _write_shards(named_weights, aside, wanted, shard_bytes)
        _record_dtype(aside / "config.json", dtypes)
        if card:
            (aside / "README.md").write_text(card, encoding="utf-8")


def _find_parts(directory: Path) -> tuple[Path, Path]:
    """(folder of the shards, folder with config.json): both are the checkpoint's own if it was imported, folders in it
    if a run wrote it (training/checkpoint.py)."""
    shards = next((d for d in (directory, directory / "policy") if checkpoint.is_checkpoint(d)), None)
    if shards is None:
        raise ConfigError(
            f"{directory} holds no whole checkpoint: write the folder of one, such as checkpoints/step-00000040-main."
        )
    beside = (shards, directory / "huggingface", directory)
    side_files = next((d for d in beside if (d / "config.json").is_file()), None)
    if side_files is None:
        raise ConfigError(f"{directory} holds no config.json of its model, which an export needs.")
    return shards, side_files


def _check_intact(directory: Path) -> None:
    """Raises ConfigError if a file is not what was written."""
    if (directory / MANIFEST_FILE).is_file():  # a policy's folder alone has none
        damage = missing_or_torn(directory) or changed_content(directory)
        if damage:
            raise ConfigError(f"{directory} is damaged ({damage}): write another checkpoint of the run.")


def _one_process() -> None:
    """Megatron's reader and writer want a process group."""
    if distributed.initialise(1, 1).layout.world_size > 1:
        raise ConfigError("Conversion runs in one process: start it without torchrun.")


def _write_shards(
    named_weights: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    dtype: torch.dtype | None,
    shard_bytes: int,
) -> set[torch.dtype]:
    """One file, or several of at most `shard_bytes` with an index. Holds one file's tensors at a time."""
    from safetensors.torch import save_file

    files: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}
    dtypes: set[torch.dtype] = set()
    total = size = 0

    def flush() -> None:
        save_file(pending, folder / f"part-{len(files)}", {"format": "pt"})
        files.append(list(pending))
        pending.clear()

    for name, tensor in named_weights:
        tensor = tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
        if tensor.untyped_storage().nbytes() > tensor.nbytes:
            tensor = tensor.clone()  # a part of something larger would keep all of it
        if pending and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        pending[name] = tensor
        dtypes.add(tensor.dtype)
        size += tensor.nbytes
        total += tensor.nbytes
    flush()

    def final_name(index: int) -> str:
        return (
            "model.safetensors"
            if len(files) == 1
            else f"model-{index + 1:05d}-of-{len(files):05d}.safetensors"
        )

    for index in range(len(files)):
        os.replace(folder / f"part-{index}", folder / final_name(index))
    if len(files) > 1:
        place = {name: final_name(index) for index, names in enumerate(files) for name in names}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": place}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text)
    return dtypes


def _record_dtype(config_file: Path, dtypes: set[torch.dtype]) -> None:
    """Readers of the folder take the precision from its config: transformers 4 from torch_dtype, 5 from dtype."""
    config = json.loads(config_file.read_text())
    if len(dtypes) == 1:
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        config[key] = str(dtypes.pop()).removeprefix("torch.")
        config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _torch_dtype(precision: Precision | str) -> torch.dtype:
    name = precision if isinstance(precision, str) else precision.name
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
