"""A pytest plugin that runs the sampler's tests on vLLM's model runner V2, the one that vLLM uses on CUDA (`make
test-kernels`). Triton's interpreter runs its kernels.

On CPU vLLM offers that runner only where Triton has a backend for CPUs, which the releases of Triton lack. Interpreted
kernels need no backend, so it is enough that there is an entry of that name.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

from triton.backends import backends

backends["cpu"] = backends["nvidia"]
