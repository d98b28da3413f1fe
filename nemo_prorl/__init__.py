"""Prolonged reinforcement learning with verifiable rewards, on Megatron-Core and vLLM."""

from nemo_prorl.api import Run, train

__all__ = ["Run", "train"]

__version__ = "0.1.0"
