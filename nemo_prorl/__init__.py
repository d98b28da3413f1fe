"""Prolonged reinforcement learning with verifiable rewards, on Megatron-Core and vLLM."""

__version__ = "0.1.0"
