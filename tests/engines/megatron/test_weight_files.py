"""Which files are a model's weights, and which are refused before torch is imported: one clear sentence each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron.architecture import HEAD, hf_shapes, read_architecture
from nemo_prorl.engines.megatron.weight_files import check_finite, check_weights
from tests.engines.megatron.test_check import assert_one_sentence
from tests.model_folders import SMALL, write_model, write_weights

ARCHITECTURE = read_architecture(SMALL)
SHAPES = hf_shapes(ARCHITECTURE)
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path, SMALL)


def is_refused(folder: Path, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        check_weights(folder, ARCHITECTURE)
    assert_one_sentence(raised.value)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("name", ["model_backup", "consolidated", "ema", "model.old", "adapter_model"])
def test_files_that_only_some_readers_would_take_for_the_model(folder: Path, name: str) -> None:
    check_weights(folder, ARCHITECTURE)
    write_weights(folder / f"{name}.safetensors", SHAPES)
    is_refused(folder, rf"holds {name}\.safetensors beside model\.safetensors: leave the files of one model")


def test_a_new_model_beside_the_shards_of_an_older_save(folder: Path) -> None:
    shards = {"a-1.safetensors": list(SHAPES)[::2], "a-2.safetensors": list(SHAPES)[1::2]}
    for name, names in shards.items():
        write_weights(folder / name, {key: SHAPES[key] for key in names})
    place = {key: name for name, names in shards.items() for key in names}
    (folder / INDEX).write_text(json.dumps({"weight_map": place}))
    is_refused(
        folder, r"holds model\.safetensors beside the files that model\.safetensors\.index\.json lists"
    )
    (folder / FILE).unlink()
    check_weights(folder, ARCHITECTURE)
    write_weights(folder / "a-2.safetensors", SHAPES)
    is_refused(folder, r"has .* in a-1\.safetensors and in a-2\.safetensors: fetch it again")
    (folder / "a-2.safetensors").unlink()
    is_refused(folder, r"lacks a-2\.safetensors: fetch it again")


@pytest.mark.parametrize("index", ["{}", "[]", '{"weight', '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index(folder: Path, index: str) -> None:
    (folder / INDEX).write_text(index)
    is_refused(folder, r"index\.json is damaged .*fetch it again")


def test_no_weights_and_weights_of_the_old_kind(folder: Path) -> None:
    (folder / FILE).rename(folder / "pytorch_model-00001-of-00002.bin")
    is_refused(folder, r"as pytorch_model-00001-of-00002\.bin, .*python -c .*save_pretrained")
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    is_refused(folder, "holds no weights: model.safetensors, or")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"model\.safetensors is damaged"),
        ((2).to_bytes(8, "little") + b"{", r"model\.safetensors is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:a\nsize 9\n", "run `git lfs pull` in"),
    ],
)
def test_weights_that_did_not_arrive(folder: Path, content: bytes, sentence: str) -> None:
    (folder / FILE).write_bytes(content)
    is_refused(folder, sentence)


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3"])
def test_quantised_weights_mean_nothing_without_their_scales(folder: Path, dtype: str) -> None:
    write_weights(folder / FILE, SHAPES, dtype)
    is_refused(folder, f"in {dtype}, which is a quantised precision: write model.path of an unquantised")


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_precisions_that_can_be_read(folder: Path, dtype: str) -> None:
    write_weights(folder / FILE, {**SHAPES, "model.layers.0.self_attn.rotary_emb.inv_freq": (16,)}, dtype)
    check_weights(folder, ARCHITECTURE)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (
            {**SHAPES, "a.lora_A.weight": (4, 4)},
            r"tensors that Qwen2ForCausalLM does not have: a\.lora_A\.weight",
        ),
        ({name: SHAPES[name] for name in SHAPES if name != NORM}, r"has no tensor model\.norm\.weight"),
        ({**SHAPES, NORM: (63,)}, r"fit its config\.json: \(63,\) instead of \(64,\)"),
    ],
)
def test_tensors_of_another_model(folder: Path, shapes: Mapping[str, tuple[int, ...]], sentence: str) -> None:
    write_weights(folder / FILE, shapes)
    is_refused(folder, sentence)


def test_a_tied_model_has_no_output_layer_of_its_own(folder: Path) -> None:
    """transformers and vLLM would use it, Megatron would not."""
    both = {**SHAPES, HEAD: SHAPES["model.embed_tokens.weight"]}
    write_weights(folder / FILE, both)
    check_weights(folder, ARCHITECTURE)
    for other in ({HEAD: b"\x3f"}, {"model.embed_tokens.weight": b"\x3f"}):
        write_weights(folder / FILE, both, ends=other)
        is_refused(
            folder, r"but lm_head\.weight is not model\.embed_tokens.*set tie_word_embeddings to false"
        )
    write_weights(folder / FILE, {**SHAPES, HEAD: (10, 32)})
    is_refused(folder, r"but lm_head\.weight is not model\.embed_tokens")


@pytest.mark.parametrize(
    ("dtype", "end", "is_finite"),
    [
        ("F64", b"\xff\xff\xff\xff\xff\xff\xef\x7f", True),
        ("F32", b"\xff\xff\x7f\x7f", True),
        ("F32", b"\x80\xff", False),
        ("BF16", b"\x7f\x7f", True),
        ("BF16", b"\xc0\x7f", False),
        ("F16", b"\x01\x7c", False),
    ],
)
def test_nan_and_infinity(folder: Path, dtype: str, end: bytes, is_finite: bool) -> None:
    """The largest finite number, and infinity or NaN, as their bytes."""
    write_weights(folder / FILE, SHAPES, dtype, ends={NORM: end})
    place = sorted(SHAPES).index(NORM)
    check_finite(folder, share=1 - place % 2, num_shares=2)
    refused = pytest.raises(ConfigError, match=r"NaN or infinity in model\.norm")
    with nullcontext() if is_finite else refused:
        check_finite(folder, share=place % 2, num_shares=2)
