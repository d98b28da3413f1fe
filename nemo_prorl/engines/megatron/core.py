"""Megatron-Core, importable with and without CUDA: everything that we use of it, imported after the CPU shim.

The other files of this package take Megatron's names from here. A new release of Megatron that moves one is met here.
"""

from __future__ import annotations

import warnings

from nemo_prorl.engines.megatron import cpu

warnings.filterwarnings(
    "ignore", category=UserWarning, module=r"megatron\."
)  # a dozen that Apex is not there
cpu.install()

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories  # noqa: E402
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest  # noqa: E402
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import (  # noqa: E402
    get_cuda_rng_tracker,
    model_parallel_cuda_manual_seed,
)
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402

__all__ = [
    "AsyncRequest",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "DistributedOptimizer",
    "GPTModel",
    "MegatronModule",
    "MegatronOptimizer",
    "OptimizerConfig",
    "PackedSeqParams",
    "ShardedObject",
    "ShardedTensor",
    "TorchDistSaveShardedStrategy",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "apply_factories",
    "clip_grad_by_total_norm_fp32",
    "dict_list_map_inplace",
    "dist_checkpointing",
    "filesystem_async",
    "finalize_model_grads",
    "get_cuda_rng_tracker",
    "get_forward_backward_func",
    "get_megatron_optimizer",
    "gpt_layer_specs",
    "model_parallel_cuda_manual_seed",
    "parallel_state",
    "save_preprocess",
    "tensor_parallel",
]
