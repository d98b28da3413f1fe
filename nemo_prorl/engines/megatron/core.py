"""Imports everything that we use from Megatron-Core, after the shim that lets it run without CUDA (cpu.py).

The other files of this package import Megatron's names from here, so only this file changes if a new release moves one.
"""

from __future__ import annotations

import importlib
import sys
import warnings

import torch

from nemo_prorl.config import ConfigError
from nemo_prorl.engines.megatron import cpu

# Without Apex, importing Megatron prints a dozen warnings.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.")
# Megatron does without a package whose import raises an ImportError. A library that does not load raises an OSError.
try:
    cpu.install()
    importlib.import_module("megatron.core")
except OSError as error:
    raise ConfigError(
        f"Megatron-Core or Transformer Engine in {sys.prefix} cannot be imported ({error}): install what "
        "requirements/cuda.txt names (make setup-cuda)."
    ) from error

from megatron.core import dist_checkpointing, fp8_utils, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

# Apex's and Transformer Engine's SGD keep a buffer of the gradient's size for a momentum of 0.
importlib.import_module("megatron.core.optimizer").SGD = torch.optim.SGD  # type: ignore[attr-defined]
