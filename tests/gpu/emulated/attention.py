"""Attention and rotary positions as cuDNN and Transformer Engine's kernels compute them, in plain PyTorch.

Formats of tensors: THD is [tokens, heads, D], rows one after another; SBHD is [T, B, heads, D].
"""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.emulated.names import NVTE_QKV_Format

THD, SBHD = NVTE_QKV_Format.NVTE_THD, NVTE_QKV_Format.NVTE_SBHD


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, format_: Any, **options: Any
) -> torch.Tensor:
    """Returns the output of attention, computed in fp32, in the format of the query. options: see `_rows`."""
    assert format_ in (THD, SBHD), f"not emulated: attention of {format_}"
    if format_ == SBHD:
        batch = query.shape[1]
        query, key, value = (x.transpose(0, 1).flatten(0, 1) for x in (query, key, value))
        return _rows(query, key, value, **options).unflatten(0, (batch, -1)).transpose(0, 1)
    assert "PADDING" in options["mask"], (
        f"cuDNN takes packed sequences only with a padding mask: {options['mask']}"
    )
    return _rows(query, key, value, **options)


def _rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    bounds: torch.Tensor,
    longest: int,
    scale: float,
    mask: str,
) -> torch.Tensor:
    """Returns the output [tokens, heads, D] of rows that lie one after another.

    bounds: int32, where each row begins, then the end of the last. longest: the length that cuDNN's plan is made for.
    """
    assert bounds.dtype is torch.int32
    assert int(bounds[-1]) == len(query), "tokens outside of all sequences"
    assert int(bounds.diff().max()) <= longest, "a sequence is longer than max_seqlen"
    outputs = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        q, k, v = (x[begin:end].transpose(0, 1).float() for x in (query, key, value))  # [heads, T, D]
        k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
        scores = q @ k.transpose(1, 2) * scale
        if "CAUSAL" in mask:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


def rotate(
    x: torch.Tensor, angles: torch.Tensor, format_: Any, bounds: torch.Tensor | None, *, back: bool = False
) -> torch.Tensor:
    """Returns `x` turned by the angles [T, 1, 1, D] of its positions, or turned back, which is its gradient. The first
    half of a head's entries is the real part, the second the imaginary one."""
    assert angles.dim() == 4 and angles.shape[1:3] == (1, 1) and angles.dtype is torch.float32
    width = angles.shape[-1]
    assert width <= x.shape[-1]
    if format_ == THD:
        assert bounds is not None and x.dim() == 3
        positions = torch.cat([torch.arange(length) for length in bounds.diff().tolist()])
        assert len(positions) == len(x), "tokens outside of all sequences"
        angles = angles[positions][:, 0]
    else:
        assert format_ == SBHD and x.dim() == 4 and len(x) <= len(angles)
        angles = angles[: len(x)]
    turned, rest = x[..., :width].float(), x[..., width:]
    first, second = turned.chunk(2, -1)
    imaginary = torch.cat([-second, first], -1) * (-1 if back else 1)
    return torch.cat([(turned * angles.cos() + imaginary * angles.sin()).to(x.dtype), rest], -1)
