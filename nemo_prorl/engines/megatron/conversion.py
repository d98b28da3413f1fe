"""Converts Hugging Face checkpoints to Megatron checkpoints and back.

Both directions run in one process. Tensors are copied bit by bit unless another precision is requested; configuration
and tokenizer are copied too. The output folder appears once it is complete. An export reads a checkpoint of any layout,
on CPU, and holds one output file in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from nemo_prorl import distributed
from nemo_prorl.config import ConfigError, LayerSpec, ModelConfig, Precision, RunConfig
from nemo_prorl.engines.megatron import build, checkpoint, weights
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import check_files
from nemo_prorl.engines.megatron.weight_files import SafetensorsReader, check_finite
from nemo_prorl.engines.tokenizer import check_tokenizer
from nemo_prorl.run_folder.checkpoints import MODEL_FOLDER, POLICY_FOLDER
from nemo_prorl.run_folder.storage import copy_model_files, replacing_folder, write_manifest

SHARD_BYTES = 5 << 30
"""Largest size of a file of weights."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def import_hf(hf_dir: Path, out_dir: Path) -> None:
    """Writes the weights of a Hugging Face folder as a Megatron checkpoint, with the model's config and tokenizer. The
    precision is bf16 if all tensors are bf16, else fp32. Needs memory for the whole model.

    Raises ConfigError for a model that is not supported, and for weights that are damaged or do not fit its config.
    """
    architecture = read_architecture(hf_dir)
    check_files(hf_dir, architecture)
    check_tokenizer(hf_dir)
    check_finite(hf_dir)
    reader = SafetensorsReader(hf_dir)
    precision = Precision.bf16 if {*map(reader.dtype, reader.names())} == {"BF16"} else Precision.fp32
    config = RunConfig(model=ModelConfig(precision=precision, layer_spec=LayerSpec.local))
    build.initialise_groups(_one_process(), config.seed)
    model = build.build_model(architecture, config)
    weights.load_hf(model, architecture, hf_dir)
    with replacing_folder(out_dir) as aside:
        checkpoint.save_weights(aside, model)
        copy_model_files(hf_dir, aside)
        write_manifest(aside, {})


def open_checkpoint(
    checkpoint_dir: Path, *, dtype: str | None = None
) -> tuple[Iterator[tuple[str, torch.Tensor]], Path]:
    """Returns the tensors of a checkpoint with their Hugging Face names, not yet read, and the folder of its config and
    tokenizer. dtype: of the export; with fp32, tensors are the optimizer's main weights if the policy has 16 bits.

    Raises ConfigError if there is no checkpoint, if the model's config is missing or of another model;
    `run_folder.checkpoints.locate_checkpoint` refuses damaged ones.
    """
    # A run saves the shards in one subfolder and config.json in another, an import both in the folder itself.
    folders = (checkpoint_dir, checkpoint_dir / POLICY_FOLDER)
    shards = next((folder for folder in folders if checkpoint.is_checkpoint(folder)), None)
    if shards is None:
        raise ConfigError(
            f"{checkpoint_dir} holds no complete checkpoint: write the folder of a run that has saved one, or of "
            "the checkpoint itself, such as RUN/checkpoints/step-00000040-main."
        )
    beside = (shards, checkpoint_dir / MODEL_FOLDER, checkpoint_dir)
    side_files = next((folder for folder in beside if (folder / "config.json").is_file()), None)
    if side_files is None:
        raise ConfigError(
            f"{checkpoint_dir} holds no config.json of its model: copy the model's config.json into it."
        )
    architecture = read_architecture(side_files)
    _one_process()
    return checkpoint.read_whole(shards, architecture, main=dtype == "fp32"), side_files


def save_hf(
    named_weights: Iterable[tuple[str, torch.Tensor]],
    source_dir: Path,
    out_dir: Path,
    *,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    card: str = "",
) -> None:
    """Writes tensors with Hugging Face names, such as `policy.named_weights()`, as a Hugging Face folder with the
    config and tokenizer of `source_dir`. The folder appears once it is complete and replaces an older one.

    dtype: precision of the files; None: the tensors' own. shard_bytes: size of the largest file. card: content of
    README.md, which is not written if it is empty.
    """
    with replacing_folder(out_dir) as aside:
        copy_model_files(source_dir, aside)
        dtypes = _write_shards(named_weights, aside, None if dtype is None else _DTYPES[dtype], shard_bytes)
        if len(dtypes) == 1:
            config = json.loads((aside / "config.json").read_text())
            key = "torch_dtype" if "torch_dtype" in config else "dtype"  # of transformers 4 and 5
            config[key] = str(dtypes.pop()).removeprefix("torch.")
            (aside / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        if card:
            (aside / "README.md").write_text(card, encoding="utf-8")


def _one_process() -> distributed.Layout:
    """Initialises a process group of one rank, which Megatron's reader and writer need, and returns its layout. Raises
    ConfigError if there are several ranks."""
    layout = distributed.initialise(1, 1).layout
    if layout.world_size > 1:
        raise ConfigError(
            "WORLD_SIZE is above 1, but a conversion runs in one process: start it without torchrun."
        )
    return layout


def _write_shards(
    named_weights: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    dtype: torch.dtype | None,
    shard_bytes: int,
) -> set[torch.dtype]:
    """Writes one file, or several of at most `shard_bytes` with an index, and returns the dtypes of the tensors. Holds
    the tensors of one file at a time."""
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
            tensor = tensor.clone()  # a view would keep its whole storage alive
        if pending and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        pending[name] = tensor
        dtypes.add(tensor.dtype)
        size += tensor.nbytes
        total += tensor.nbytes
    flush()

    final_names = [
        f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)
    ]
    for index, final_name in enumerate(final_names if len(files) > 1 else ["model.safetensors"]):
        os.replace(folder / f"part-{index}", folder / final_name)
    if len(files) > 1:
        place = {name: file for file, names in zip(final_names, files, strict=True) for name in names}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": place}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text)
    return dtypes
