"""What tests of real engines share: processes that join one gloo group, and tiny random Hugging Face models."""

from __future__ import annotations

from nemo_prorl.engines import environment

environment.prepare()  # before torch and vLLM are imported

import multiprocessing as mp  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import socket  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from multiprocessing.connection import Connection, wait  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

_EXTENDED = {"factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
_YARN = {"rope_parameters": {"rope_type": "yarn", **_EXTENDED}, "max_position_embeddings": 512}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2_yarn": ("Qwen2", _YARN),
    "qwen3": ("Qwen3", {}),
    "qwen3_yarn": ("Qwen3", {**_YARN, "rope_parameters": {**_YARN["rope_parameters"], "truncate": False}}),
    "llama": ("Llama", {"num_hidden_layers": 5}),  # five: pipeline stages of unequal size
    "llama31": (
        "Llama",
        {"rope_parameters": _LLAMA3 | {"original_max_position_embeddings": 8192, "rope_theta": 1e6}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "phi3": ("Phi3", {"original_max_position_embeddings": 8192, "sliding_window": None}),
}
"""Name of a model under test -> (prefix of transformers' classes, keys of config.json)."""
# A process that has looked for a GPU cannot be forked.
PROCESSES: Any = mp.get_context("spawn" if environment.has_cuda() else "forkserver")
"""Makes processes for tests. Without a GPU, a server that has imported the engines once forks them: that is ten seconds
each."""
if not environment.has_cuda():
    PROCESSES.set_forkserver_preload(["tests.engines.imported"])


def run_ranks(
    function: Callable[..., Any], world_size: int, *, timeout_s: float = 500.0, **kwargs: Any
) -> list[Any]:
    """Runs `function(**kwargs)` in `world_size` processes of their own, with the variables that torchrun sets; returns
    what each rank returned. The function must be importable by name, the values picklable. The first failure ends all
    and is raised with the rank's traceback."""
    port = free_port()
    processes, results = [], []
    for rank in range(world_size):
        receiver, sender = PROCESSES.Pipe(duplex=False)
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        process = PROCESSES.Process(target=_rank_main, args=(sender, environ, function, kwargs))
        process.start()
        sender.close()
        processes.append(process)
        results.append(receiver)
    try:
        return _receive(results, timeout_s)
    finally:
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(receivers: list[Connection], timeout_s: float) -> list[Any]:
    values: list[Any] = [None] * len(receivers)
    pending: list[Any] = list(receivers)
    while pending:
        ready = wait(pending, timeout_s)
        if not ready:
            raise AssertionError(f"No rank answered within {timeout_s:g} s.")
        for receiver in ready:
            rank = receivers.index(receiver)  # type: ignore[arg-type]
            pending.remove(receiver)
            try:
                failed, values[rank] = pickle.loads(receiver.recv_bytes())
            except EOFError:
                raise AssertionError(f"Rank {rank} died without a word.") from None
            if failed:
                raise AssertionError(f"Rank {rank} failed:\n{values[rank]}")
    return values


def _rank_main(
    sender: Connection, environ: dict[str, str], function: Callable[..., Any], kwargs: dict[str, Any]
) -> None:
    os.environ.update(environ)
    try:
        # Plain pickle: multiprocessing's own shares tensors by handles that end with this process.
        sender.send_bytes(pickle.dumps((False, function(**kwargs))))
    except BaseException:
        sender.send_bytes(pickle.dumps((True, traceback.format_exc())))
        os._exit(1)  # the others may be waiting for this rank in a collective
    sender.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def build_hf_model(
    folder: Path, family: str, *, seed: int = 0, dtype: str = "float32", **changes: Any
) -> Path:
    """A random checkpoint of one of FAMILIES with grouped-query attention and a vocabulary that
    tensor parallelism has to pad; its distributions are neither flat nor certain. Config keys can be changed."""
    import torch
    import transformers

    prefix, of_family = FAMILIES[family]
    shape = {
        "vocab_size": 131,
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    config = getattr(transformers, f"{prefix}Config")(**(shape | of_family | changes))
    random_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).to(getattr(torch, dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.106)
    torch.set_rng_state(random_state)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def hf_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random checkpoints of FAMILIES, untied and, with the suffix _tied, tied."""
    folder = tmp_path_factory.mktemp("hf_models")
    return {
        family + suffix: build_hf_model(
            folder / (family + suffix),
            family,
            seed=seed,
            tie_word_embeddings=bool(suffix),
        )
        for suffix in ("", "_tied")
        for seed, family in enumerate(FAMILIES)
    }
