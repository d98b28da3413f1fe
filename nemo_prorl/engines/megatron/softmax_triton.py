"""The two functions of softmax_plain.py as Triton kernels for CUDA. The forward kernel reads the logits once; the
backward kernel reads them once and writes the gradient in their place. Plain PyTorch makes about a dozen passes each.

Sums are in fp32, for logits of 32 or 16 bits. The softmax is online (Milakov and Gimelshein 2018, arXiv 1805.02867,
algorithm 3), with a second sum for the entropy: when the maximum of a row rises from m to m', with d = m - m', the sum
s = sum exp(z - m) becomes s exp(d), and t = sum exp(z - m) (z - m) becomes (t + d s) exp(d).

Importing this file needs the package triton, which comes with torch for CUDA. For tests, the kernels run on CPU if
TRITON_INTERPRET=1 is in the environment before the import.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FORWARD_BLOCK, BACKWARD_BLOCK = 4096, 4096
"""Columns that a program processes at a time."""
NUM_WARPS = 8


def statistics(logits_NV: torch.Tensor, column_N: torch.Tensor, temperature: float) -> torch.Tensor:
    """See softmax_plain. Leaves the logits unchanged; they may contain -inf, for entries of probability 0."""
    result = torch.empty(4, logits_NV.shape[0], dtype=torch.float32, device=logits_NV.device)
    _statistics[(logits_NV.shape[0],)](
        logits_NV,
        column_N,
        result,
        logits_NV.shape[0],
        logits_NV.shape[1],
        logits_NV.stride(0),
        1.0 / temperature,
        BLOCK=FORWARD_BLOCK,
        num_warps=NUM_WARPS,
    )
    return result


def gradient(
    logits_NV: torch.Tensor,
    column_N: torch.Tensor,
    temperature: float,
    log_normaliser_N: torch.Tensor,
    entropy_N: torch.Tensor,
    grad_logprobs_N: torch.Tensor,
    grad_entropy_N: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See softmax_plain. Overwrites the logits only if they have the type `dtype`."""
    result = logits_NV if logits_NV.dtype == dtype else torch.empty_like(logits_NV, dtype=dtype)
    num_rows, num_columns = logits_NV.shape
    _gradient[(num_rows, triton.cdiv(num_columns, BACKWARD_BLOCK))](
        logits_NV,
        column_N,
        log_normaliser_N,
        entropy_N,
        grad_logprobs_N.contiguous(),  # the gradient of a sum is one expanded number, with stride 0
        entropy_N if grad_entropy_N is None else grad_entropy_N.contiguous(),
        result,
        num_columns,
        logits_NV.stride(0),
        result.stride(0),
        1.0 / temperature,
        WITH_ENTROPY=grad_entropy_N is not None,
        BLOCK=BACKWARD_BLOCK,
        num_warps=NUM_WARPS,
    )
    return result


# Otherwise Triton would compile another kernel for a last chunk whose number of tokens is odd.
@triton.jit(do_not_specialize=["num_rows"])
def _statistics(
    logits: tl.tensor,
    columns: tl.tensor,
    result: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    scale: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Computes the statistics of one row per program."""
    row = tl.program_id(0).to(tl.int64)  # rows times columns may exceed 32 bits
    start = logits + row * row_stride
    offsets = tl.arange(0, BLOCK)
    peak = -float("inf")
    total = 0.0
    weighted = 0.0
    for first in range(0, num_columns, BLOCK):
        inside = first + offsets < num_columns
        z = tl.load(start + first + offsets, mask=inside, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(peak, tl.max(z, axis=0))
        # -inf minus -inf is NaN. While all entries so far are -inf, the sums are 0 and any finite maximum will do.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        drop = tl.where(peak == -float("inf"), 0.0, peak - base)
        shrink = tl.exp(drop)
        exponentials = tl.exp(z - base)
        terms = tl.where(z == -float("inf"), 0.0, exponentials * (z - base))
        weighted = (weighted + drop * total) * shrink + tl.sum(terms, axis=0)
        total = total * shrink + tl.sum(exponentials, axis=0)
        peak = higher
    column = tl.load(columns + row)
    is_here = (column >= 0) & (column < num_columns)
    label_z = tl.load(start + column, mask=is_here, other=0.0).to(tl.float32) * scale
    tl.store(result + row, peak)
    tl.store(result + num_rows + row, total)
    tl.store(result + 2 * num_rows + row, weighted)
    tl.store(result + 3 * num_rows + row, label_z)


@triton.jit
def _gradient(
    logits: tl.tensor,
    columns: tl.tensor,
    log_normaliser: tl.tensor,
    entropy: tl.tensor,
    grad_logprobs: tl.tensor,
    grad_entropy: tl.tensor,
    result: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    result_stride: tl.tensor,
    scale: tl.tensor,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Computes the gradient of one block of columns of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < num_columns
    z = tl.load(logits + row * row_stride + offsets, mask=inside, other=-float("inf")).to(tl.float32) * scale
    log_p = z - tl.load(log_normaliser + row)
    grad_logp = tl.load(grad_logprobs + row) * scale
    factor = grad_logp
    if WITH_ENTROPY:
        grad_H = tl.load(grad_entropy + row) * scale
        # p log p is 0 where p is 0, but 0 x -inf would be NaN.
        finite = tl.where(z == -float("inf"), 0.0, log_p)
        factor = grad_logp + grad_H * (finite + tl.load(entropy + row))
    gradients = -tl.exp(log_p) * factor + tl.where(offsets == tl.load(columns + row), grad_logp, 0.0)
    tl.store(result + row * result_stride + offsets, gradients.to(result.dtype.element_ty), mask=inside)
