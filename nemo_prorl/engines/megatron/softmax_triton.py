"""The two functions of softmax_plain.py as Triton kernels for CUDA: the logits are read once forward, and read once and
replaced by their gradient backward. The plain form makes about a dozen passes over them each way.

Sums run in fp32, from logits of 32 or 16 bits. The softmax is online (Milakov and Gimelshein 2018, arXiv 1805.02867,
algorithm 3), carrying the entropy's sum along: when the peak of a row rises from m to m', with d = m - m', the sum
s = sum exp(z - m) becomes s exp(d), and t = sum exp(z - m) (z - m) becomes (t + d s) exp(d).

Importing this file needs the package triton, which comes with torch for CUDA. With TRITON_INTERPRET=1 in the
environment before the import, the kernels run on CPU, for tests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FORWARD_BLOCK, BACKWARD_BLOCK = 4096, 4096
"""Columns at a time."""
NUM_WARPS = 8


def statistics(logits_NV: torch.Tensor, column_N: torch.Tensor, temperature: float) -> torch.Tensor:
    """See softmax_plain. The logits are left as they are, and may hold -inf: entries without probability."""
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
    """See softmax_plain. Takes the place of the logits where they are of the wanted type."""
    result = logits_NV if logits_NV.dtype == dtype else torch.empty_like(logits_NV, dtype=dtype)
    num_rows, num_columns = logits_NV.shape
    _gradient[(num_rows, triton.cdiv(num_columns, BACKWARD_BLOCK))](
        logits_NV,
        column_N,
        log_normaliser_N,
        entropy_N,
        grad_logprobs_N.contiguous(),  # of a plain sum, it is one number seen N times
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


# Else it would be compiled anew for a last chunk with an odd number of tokens.
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
    """One program a row."""
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
        # -inf minus -inf is NaN: as long as there was nothing but -inf, sums are 0 and any finite peak will do.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        drop = tl.where(peak == -float("inf"), 0.0, peak - base)
        shrink = tl.exp(drop)
        exponentials = tl.exp(z - base)
        terms = tl.where(z == -float("inf"), 0.0, exponentials * (z - base))
        weighted = (weighted + drop * total) * shrink + tl.sum(terms, axis=0)
        total = total * shrink + tl.sum(exponentials, axis=0)
        peak = higher
    column = tl.load(columns + row)
    mine = (column >= 0) & (column < num_columns)
    of_label = tl.load(start + column, mask=mine, other=0.0).to(tl.float32) * scale
    tl.store(result + row, peak)
    tl.store(result + num_rows + row, total)
    tl.store(result + 2 * num_rows + row, weighted)
    tl.store(result + 3 * num_rows + row, of_label)


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
    """One program a row and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < num_columns
    z = tl.load(logits + row * row_stride + offsets, mask=inside, other=-float("inf")).to(tl.float32) * scale
    log_p = z - tl.load(log_normaliser + row)
    of_logprob = tl.load(grad_logprobs + row) * scale
    factor = of_logprob
    if WITH_ENTROPY:
        of_entropy = tl.load(grad_entropy + row) * scale
        # p log p is 0 where p is: without this, -inf would make it NaN.
        finite = tl.where(z == -float("inf"), 0.0, log_p)
        factor = of_logprob + of_entropy * (finite + tl.load(entropy + row))
    gradients = -tl.exp(log_p) * factor + tl.where(offsets == tl.load(columns + row), of_logprob, 0.0)
    tl.store(result + row * result_stride + offsets, gradients.to(result.dtype.element_ty), mask=inside)
