"""Hugging Face -> Megatron checkpoint before the first stage, Megatron -> Hugging Face after any.

Both run in one process, on CPU where there is no GPU, whatever layout the checkpoint was written from. Tensors are
copied bit by bit unless another precision is asked for; configuration and tokenizer are carried over.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, LayerSpec, ModelConfig, Precision, RunConfig
from nemo_prorl.engines.megatron import (
    build,
    checkpoint,
    weights,
)
from nemo_prorl.engines.megatron.architecture import Architecture, read_architecture
from nemo_prorl.engines.megatron.check import check_files

SHARD_BYTES = 5 << 30
"""Size above which weights are split over files, as transformers does."""


def import_hf(hf_dir: Path, out_dir: Path) -> None:
    """Writes the weights of a Hugging Face folder as a Megatron checkpoint that MegatronPolicy loads in any layout, as
    model.path too, with config and tokenizer beside it. The precision is the folder's (fp32 unless all are bf16).

    Raises ConfigError for a model that is not supported, ValueError for weights that do not fit its config.
    """
    hf_dir, out_dir = Path(hf_dir), Path(out_dir)
    check_files(hf_dir, read_architecture(hf_dir))
    all_bf16 = weights.SafetensorsReader(hf_dir).dtypes() == {"BF16"}
    model, architecture = _build_empty(hf_dir, Precision.bf16 if all_bf16 else Precision.fp32)
    weights.load_hf(model, architecture, hf_dir)
    with _written_aside(out_dir) as aside:
        checkpoint.save_weights(aside, model)
        _copy_side_files(hf_dir, aside)


def export_hf(
    checkpoint_dir: Path,
    out_dir: Path,
    *,
    dtype: Precision | str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes the weights of a checkpoint (of a run, or imported) as a Hugging Face folder.

    `dtype`: precision of the files; None: as in the checkpoint. `shard_bytes`: largest file.
    Raises ConfigError if there is no checkpoint, or no config of a model beside it.
    """
    shards, side_files = _find_parts(Path(checkpoint_dir))
    precision = Precision[checkpoint.read_manifest(shards).precision]
    model, architecture = _build_empty(side_files, precision)
    checkpoint.load_weights(shards, model)
    stream = weights.named_weights(model, architecture)
    save_hf(stream, side_files, out_dir, dtype=dtype, shard_bytes=shard_bytes)


def save_hf(
    named_weights: Iterable[tuple[str, torch.Tensor]],
    source_dir: Path,
    out_dir: Path,
    *,
    dtype: Precision | str | None = None,
    shard_bytes: int = SHARD_BYTES,
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
    with _written_aside(Path(out_dir)) as aside:
        _copy_side_files(Path(source_dir), aside)
        dtypes = _write_shards(named_weights, aside, wanted, shard_bytes)
        _record_dtype(aside / "config.json", dtypes)


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


def _build_empty(model_dir: Path, precision: Precision) -> tuple[build.HiddenStateModel, Architecture]:
    """The whole model of the folder's config, without weights, in this process."""
    architecture = read_architecture(model_dir)
    ranks = distributed.initialise(1, 1)
    if ranks.layout.world_size > 1:
        raise ConfigError("Conversion runs in one process: start it without torchrun.")
    build.initialise_groups(ranks.layout, seed=0)
    config = RunConfig(
        model=ModelConfig(path=str(model_dir), precision=precision, layer_spec=LayerSpec.local)
    )
    return build.build_model(architecture, config), architecture


@contextlib.contextmanager
def _written_aside(final: Path) -> Iterator[Path]:
    """A crash leaves the old folder, or none; never half of one."""
    aside = final.parent / f".writing-{final.name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy_side_files(source: Path, target: Path) -> None:
    """Config, generation config, tokenizer and chat template: everything but weights and our own files."""
    own = {checkpoint.CHECKPOINT_MARK, "metadata.json"}
    for file in source.iterdir():
        is_side_file = file.suffix in {".json", ".txt", ".model", ".jinja"} and "safetensors" not in file.name
        if is_side_file and file.name not in own:
            shutil.copy2(file, target / file.name)


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
