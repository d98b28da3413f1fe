"""Prints what vLLM's wheel for CUDA decides on eight H100s, on a machine without any. NVML and torch.cuda answer as
they would there, and vLLM builds its configuration from the sampler's own arguments, but no engine.

    python -m tests.gpu.vllm_on_h100 FOLDER

FOLDER gets a Hugging Face folder of Qwen2.5-1.5B's shape. The output is JSON: variant -> facts, or an error's text.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from unittest.mock import patch

import nemo_prorl.engines.environment as environment

with patch.object(environment, "has_cuda", lambda: True):  # the variables of a run on CUDA
    environment.prepare()

import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

MEMORY = 85_028_569_088
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=MEMORY, multi_processor_count=132,
    warp_size=32, max_threads_per_multi_processor=2048, shared_memory_per_block_optin=232_448,
    L2_cache_size=50 << 20, is_integrated=0, gcnArchName="", uuid="0",
)  # fmt: skip


def pretend() -> None:
    """Replaces what asks for devices, in this process."""
    import vllm.third_party.pynvml as nvml

    nvml.nvmlInit = nvml.nvmlShutdown = lambda *_: None
    nvml.nvmlDeviceGetCount = lambda: 8
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetCudaComputeCapability = lambda _: (9, 0)
    nvml.nvmlDeviceGetName = lambda _: H100.name
    nvml.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    nvml.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(total=MEMORY, free=MEMORY, used=0)
    nvml.nvmlSystemGetDriverVersion = lambda: "580.65.06"
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 8
    cuda.current_device = lambda: 0
    cuda._lazy_init = lambda: None
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_properties = lambda device=None: H100
    cuda.get_device_name = lambda device=None: H100.name
    cuda.mem_get_info = lambda device=None: (MEMORY, MEMORY)


class Decided(BaseException):
    """Ends the construction of an engine once its configuration is there."""


def facts(folder: Path, variant: dict[str, Any]) -> dict[str, Any]:
    """Returns what vLLM decides for the options of a variant."""
    from vllm import LLM
    from vllm.config import set_current_vllm_config
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.attention.selector import get_attn_backend
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    from nemo_prorl.config import (
        AlgorithmConfig,
        CorrectionLevel,
        ModelConfig,
        Precision,
        RunConfig,
        SamplerConfig,
    )
    from nemo_prorl.engines.vllm import sampler

    options = {"max_prompt_tokens": 1024, "max_response_tokens": 8192} | variant
    precision = Precision(options.pop("precision", "bf16"))
    config = RunConfig(
        model=ModelConfig(path=str(folder), precision=precision),
        sampler=SamplerConfig(**options),
        algorithm=AlgorithmConfig(
            correction_level=CorrectionLevel.token, kl_weighted=True
        ),  # as `ahead` needs
    )
    os.environ["WORLD_SIZE"] = str(config.sampler.tensor_parallel)
    built: list[Any] = []

    def stop(engine_args: Any, usage_context: Any = None, **_: Any) -> None:
        built.append(engine_args.create_engine_config(usage_context or UsageContext.LLM_CLASS))
        raise Decided

    settings = sampler._settings(config, reads_weights=True, on_cpu=False)
    try:
        with patch.object(LLMEngine, "from_engine_args", stop):
            LLM(**settings, **config.sampler.engine_args)
    except Decided:
        pass
    (made,) = built
    with set_current_vllm_config(made):
        attention = get_attn_backend(128, made.model_config.dtype, made.cache_config.cache_dtype)
    return {
        "runner V2": made.use_v2_model_runner,
        "asynchronous": made.scheduler_config.async_scheduling,
        "executor": Executor.get_class(made).__name__,
        "tokens": made.scheduler_config.max_num_batched_tokens,
        "sequences": made.scheduler_config.max_num_seqs,
        "cache": made.cache_config.cache_dtype,
        "graphs": made.compilation_config.cudagraph_mode.name,
        "largest graph": made.compilation_config.max_cudagraph_capture_size,
        "sleeps": made.model_config.enable_sleep_mode,
        "head": str(made.model_config.head_dtype),
        "type": str(made.model_config.dtype),
        "logprobs": made.model_config.logprobs_mode,
        "attention": attention.get_name(),
        "tensor parallel": made.parallel_config.tensor_parallel_size,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "enforce_eager": True},
    "fp32, graphs": {"precision": "fp32"},
    "bf16": {"enforce_eager": True},
    "bf16, graphs": {},
    "sleep": {"release_memory": True, "memory_fraction": 0.5},
    "ahead": {"ahead": True, "memory_fraction": 0.4},
    "fp8 cache": {"engine_args": {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 32768}},
    "full graphs": {"engine_args": {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}}},
    "64 sequences": {"max_sequences": 64},
    "TP2": {"tensor_parallel": 2},
    "TP4, two heads of keys": {"tensor_parallel": 4},
}
"""The sampler's options in docs/gpu.md. enforce_eager is false unless said."""


def write_model(folder: Path) -> None:
    """Writes a folder of Qwen2.5-1.5B's shape, almost without weights."""
    from safetensors.torch import save_file
    from transformers import Qwen2Config

    Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2, vocab_size=151_936,
        max_position_embeddings=131_072, num_hidden_layers=28, architectures=["Qwen2ForCausalLM"],
        tie_word_embeddings=True, eos_token_id=151_643,
    ).save_pretrained(folder)  # fmt: skip
    save_file({"model.norm.weight": torch.ones(1536, dtype=torch.bfloat16)}, folder / "model.safetensors")


def main(folder: Path) -> dict[str, Any]:
    pretend()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    from nemo_prorl.engines.vllm import weight_transfer

    weight_transfer.register()
    write_model(folder)
    found: dict[str, Any] = {}
    for name, variant in VARIANTS.items():
        try:
            found[name] = facts(folder, {"enforce_eager": False} | variant)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        result = main(Path(sys.argv[1]))
    print(json.dumps(result))
