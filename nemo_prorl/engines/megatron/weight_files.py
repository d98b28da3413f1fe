"""Says which files of a Hugging Face folder hold the model's weights, and refuses those that do not fit it, without
torch, so that the command line can do so before torch is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron.architecture import (
    EMBEDDING,
    HEAD,
    Architecture,
    hf_shapes,
    read_json_object,
)

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PRECISIONS = ("F64", "F32", "F16", "BF16")
"""As safetensors spells them. Weights in others are quantised, and mean nothing without their scales."""
_POINTER = b"version https://git-lfs"
"""First bytes of the file that Git checks out if Git LFS has not fetched the content."""


def weight_names(folder: Path) -> list[str]:
    """Returns the names of the files with the model's weights: model.safetensors, or those that the index lists.

    Raises ConfigError if there are none, or other safetensors files beside them. vLLM reads every file that it finds,
    and transformers prefers model.safetensors to an index, so only one set of weights is the same model to all.
    """
    has_index = (folder / INDEX).exists()
    if not has_index and not (folder / SINGLE).exists():
        old = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
        if not old:
            raise ConfigError(f"{folder} holds no weights: {SINGLE}, or {INDEX} with its files, is needed.")
        load = f"from transformers import AutoModelForCausalLM as M; M.from_pretrained({str(folder)!r}, dtype='auto')"
        raise ConfigError(
            f"{folder} holds its weights as {old[0]}, which is not read: write {SINGLE} beside it, with "
            f'python -c "{load}.save_pretrained({str(folder)!r})".'
        )
    names = [SINGLE]
    if has_index:
        place = read_json_object(folder / INDEX).get("weight_map")
        files = place.values() if isinstance(place, dict) else ()
        if not files or not all(isinstance(file, str) for file in files):
            raise ConfigError(f"{folder / INDEX} is damaged (its weight_map names no files): fetch it again.")
        names = sorted(set(files))
    others = sorted({path.name for path in folder.glob("*.safetensors")} - set(names))
    if others:
        ours = f"the files that {INDEX} lists" if has_index else SINGLE
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ConfigError(
            f"{folder} holds {', '.join(others[:3])}{more} beside {ours}: leave the files of one model there, and move "
            "the others elsewhere."
        )
    return names


class SafetensorsReader:
    """Reads tensors of a Hugging Face folder on access, for `framework` ("pt" for torch, "np" for numpy). Opening it
    reads only headers, which reveal truncated files. Raises ConfigError for files that are missing or damaged."""

    def __init__(self, folder: Path, framework: str = "pt") -> None:
        self.folder = folder
        self._owner: dict[str, tuple[Path, Any]] = {}
        for path in (folder / name for name in weight_names(folder)):
            handle = _opened(path, framework)
            for name in handle.keys():  # noqa: SIM118  # handles cannot be iterated over
                if name in self._owner:
                    raise ConfigError(
                        f"{folder} has {name} in {self._owner[name][0].name} and in {path.name}: fetch it again."
                    )
                self._owner[name] = path, handle

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def __getitem__(self, name: str) -> Any:
        return self._owner[name][1].get_tensor(name)

    def names(self) -> Iterator[str]:
        return iter(self._owner)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Returns the precision as safetensors spells it, such as "BF16"."""
        return str(self._slice(name).get_dtype())

    def _slice(self, name: str) -> Any:
        return self._owner[name][1].get_slice(name)


def check_weights(folder: Path, architecture: Architecture) -> None:
    """Raises ConfigError unless the folder holds exactly the tensors of the architecture, in a precision that can be
    read, and a tied model no output layer of its own. Reads headers only, and with torch the output layer of a tied
    model."""
    reader, wanted = SafetensorsReader(folder, "np"), hf_shapes(architecture)
    for name, shape in wanted.items():
        if name not in reader:
            raise ConfigError(f"{folder} has no tensor {name}, which {architecture.name} needs.")
        if reader.shape(name) != shape:
            raise ConfigError(
                f"{folder} has {name} of a shape that does not fit its config.json: {reader.shape(name)} instead of "
                f"{shape}."
            )
    unknown = sorted(
        name
        for name in reader.names()
        if name not in wanted and name != HEAD and not name.endswith("rotary_emb.inv_freq")
    )
    if unknown:
        raise ConfigError(
            f"{folder} has tensors that {architecture.name} does not have: {', '.join(unknown[:5])}."
        )
    for name in reader.names():
        if reader.dtype(name) not in PRECISIONS:
            raise ConfigError(
                f"{folder} has {name} in {reader.dtype(name)}, which is a quantised precision: write model.path of an "
                f"unquantised checkpoint ({', '.join(PRECISIONS)})."
            )
    if not architecture.tied or HEAD not in reader:
        return
    import torch

    tensors = SafetensorsReader(folder)
    embedding, head = tensors[EMBEDDING], tensors[HEAD]
    if embedding.dtype != head.dtype or not torch.equal(embedding, head):
        raise ConfigError(
            f"{folder} has tie_word_embeddings=true in its config.json, but {HEAD} is not {EMBEDDING}: set "
            "tie_word_embeddings to false, or delete the tensor that the model does not use."
        )


def check_finite(folder: Path, *, share: int = 0, num_shares: int = 1) -> None:
    """Raises ConfigError for a weight that is NaN or infinite. Reads every `num_shares`-th tensor."""
    import torch

    reader = SafetensorsReader(folder)
    for name in sorted(reader.names())[share::num_shares]:
        if not torch.stack(reader[name].aminmax()).isfinite().all():
            raise ConfigError(
                f"{folder} has NaN or infinity in {name}: fetch it again, or take an earlier checkpoint."
            )


def _opened(path: Path, framework: str) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework)
    except FileNotFoundError:
        raise ConfigError(f"{path.parent} lacks {path.name}: fetch it again.") from None
    except (SafetensorError, OSError) as error:
        with suppress(OSError), path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise ConfigError(
                    f"{path} is a pointer of Git LFS instead of the weights: run `git lfs pull` in {path.parent}."
                ) from None
        raise ConfigError(f"{path} is damaged ({error}): fetch it again.") from None
