"""A stand-in for `transformer_engine_torch`, the compiled part of Transformer Engine 2.15, whose functions start CUDA
kernels. Here plain PyTorch computes the same on the CPU, so that all of Transformer Engine's Python runs without a GPU.

For tests only. It checks arguments as strictly as the kernels do, and rounds where they round: results to their dtype,
FP8 operands to real FP8 numbers. It has no kernel's order of summation, no speed, no streams and no memory of a GPU. A
function that no test of ours reaches has no stand-in and raises an error when it is called.

Names, numbers and parameters are the extension's: test_extension.py beside this file compares them with a compiled one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from tests.gpu.emulated import attention, fp8
from tests.gpu.emulated.names import *  # noqa: F403
from tests.gpu.emulated.names import DType, NVTE_Fused_Attn_Backend, NVTE_Softmax_Type

used: Counter[str] = Counter()
"""How often each kernel was used, for tests: a configuration that silently takes another path would count nothing."""

_TORCH = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}


def __getattr__(name: str) -> Any:
    """Returns a stand-in for what is not emulated, which can be imported but not used."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"tests/gpu/emulated has no stand-in for transformer_engine_torch.{name}")

    return type(name, (), {"__new__": refuse})


class FP8TensorMeta:
    """Scales of delayed scaling; in 2.15 only its type is used."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor


def get_cublasLt_version() -> int:
    return 130200


def get_cudnn_version() -> int:
    return 92000


def get_num_cublas_streams() -> int:
    return 4


# Matrix products


def generic_gemm(
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: torch.Tensor | None,
    quantizer: Any,
    output_dtype: Any,
    bias: torch.Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: Any,
    grad: bool,
    workspace: torch.Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Any = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """Returns [op(B) op(A), gradient of the bias, None, None] of row-major tensors, summed in fp32. With D the product
    is written into it, or added (`accumulate`)."""
    assert not gelu and quantizer is None and comm_overlap is None and not bulk_overlap, "not emulated"
    assert alpha == 1.0 and beta in (None, 0.0, 1.0) and workspace.numel() == workspace_size
    is_fp8 = [hasattr(operand, "_fp8_dtype") for operand in (A, B)]
    assert len(set(is_fp8)) == 1, "one operand is in FP8 and the other is not"
    # A matrix is summed over its last dimension unless it is B transposed or A as it is.
    a, b = fp8.values_of(A, rowwise=transA), fp8.values_of(B, rowwise=not transB)
    leading = b.shape[:-1]
    a, b = (x.reshape(-1, x.shape[-1]) for x in (a, b))
    if is_fp8[0]:
        multiple = fp8.BLOCK if hasattr(A, "_is_2D_scaled") else 16
        sizes = {"inner": (a if transA else a.t()).shape[1], "rows of A": (a if transA else a.t()).shape[0]}
        for what, size in sizes.items():
            assert size % 16 == 0, f"cuBLAS takes FP8 matrices whose {what} are a multiple of 16, not {size}"
        assert multiple == 16 or sizes["inner"] % multiple == 0, (
            f"blocks of 128 and {sizes['inner']} summands"
        )
    product = (b.t() if transB else b).float() @ (a.t() if transA else a).float()
    grad_bias = None
    if bias is not None and grad:
        grad_bias = b.float().sum(0).to(_TORCH[bias_type])
    elif bias is not None:
        product = product + bias.float()
    if not transB:
        product = product.view(*leading, -1)
    if D is None:
        dtype = _TORCH[output_dtype] if output_dtype is not None else A.dtype
        used["gemm"] += 1
        return [product.to(dtype), grad_bias, None, None]
    assert D.shape == product.shape, (
        f"the output has shape {tuple(D.shape)}, the product {tuple(product.shape)}"
    )
    used["gemm into main_grad" if grad and transB else "gemm into a tensor"] += 1
    D.add_(product.to(D.dtype)) if accumulate else D.copy_(product)
    return [D, grad_bias, None, None]


# Norms


def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    """Returns [normed, None, 1 / root mean square], computed in fp32 and then rounded."""
    assert not zero_centered_gamma and input.dim() == 2 and input.is_contiguous()
    x = input.float()
    scale = (x.square().mean(-1) + eps).rsqrt()
    normed = (x * scale[:, None] * weight.float()).to(_TORCH[otype])
    used["rmsnorm"] += 1
    if quantizer is not None:
        return [fp8.quantize(normed, quantizer, ln_out), None, scale]
    return [normed if ln_out is None else ln_out.copy_(normed), None, scale]


def rmsnorm_bwd(
    grad: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    _margin: int,
    centered: bool,
) -> list[torch.Tensor]:
    """Returns [gradient of x, gradient of the weight]."""
    assert not centered and grad.shape == x.shape
    normed, product = x.float() * scale[:, None], grad.float() * weight.float()
    grad_x = scale[:, None] * (product - normed * (product * normed).mean(-1, keepdim=True))
    return [grad_x.to(x.dtype), (grad.float() * normed).sum(0).to(weight.dtype)]


# Attention

_LONGEST_HEAD = 128
"""The widest head for which cuDNN has a backward pass on Hopper with any layout."""


def get_fused_attn_backend(
    is_training: bool, q_dtype: Any, kv_dtype: Any, layout: Any, bias: Any, mask: Any, softmax: Any, dropout: float,
    heads: int, kv_heads: int, max_q: int, max_kv: int, width: int, width_v: int, *_rest: Any,
) -> Any:  # fmt: skip
    """Returns cuDNN's attention for 16-bit tensors where it has one, as fused_attn.cpp decides on Hopper."""
    is_half = q_dtype == kv_dtype and q_dtype in (DType.kFloat16, DType.kBFloat16)
    plain = softmax == NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX and dropout == 0.0 and width == width_v
    if is_half and plain and width % 8 == 0 and width <= _LONGEST_HEAD and heads % kv_heads == 0:
        return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
    return NVTE_Fused_Attn_Backend.NVTE_No_Backend


def fused_attn_fwd(
    max_q: int, max_kv: int, is_training: bool, scale: float, dropout: float, fill: bool, layout: Any, format_: Any,
    scale_format: Any, bias_type: Any, mask: Any, softmax: Any, window: Any, bottom_right: bool, bounds: torch.Tensor,
    bounds_kv: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtype: torch.dtype,
    bounds_padded: torch.Tensor | None, bounds_kv_padded: torch.Tensor | None, *_rest: Any,
) -> list[torch.Tensor]:  # fmt: skip
    """Returns [output, log-sum-exp, random state]; the last two are empty, because the backward pass here computes the
    scores again."""
    options = _attention_options(bounds, bounds_kv, bounds_padded, window, dropout, max_q, scale, mask)
    used[f"attention {format_.name} {mask.name}"] += 1
    output = attention.attend(q, k, v, format_, **options).to(dtype).contiguous()
    return [output, torch.empty(0), torch.empty(2, dtype=torch.int64)]


def fused_attn_bwd(
    max_q: int, max_kv: int, scale: float, dropout: float, fill: bool, layout: Any, format_: Any, grad_format: Any,
    grad_layout: Any, scale_format: Any, grad_scale_format: Any, bias_type: Any, mask: Any, softmax: Any, window: Any,
    bottom_right: bool, deterministic: bool, bounds: torch.Tensor, bounds_kv: torch.Tensor, q: torch.Tensor,
    k: torch.Tensor, v: torch.Tensor, output: torch.Tensor, grad: torch.Tensor, dtype: torch.dtype, saved: Any,
    bounds_padded: torch.Tensor | None, bounds_kv_padded: torch.Tensor | None, *_rest: Any,
) -> list[torch.Tensor | None]:  # fmt: skip
    """Returns the gradients of query, key and value, and None for those of a bias and of sinks."""
    options = _attention_options(bounds, bounds_kv, bounds_padded, window, dropout, max_q, scale, mask)
    with torch.enable_grad():
        leaves = [x.detach().float().requires_grad_() for x in (q, k, v)]
        again = attention.attend(*leaves, format_, **options)
        gradients = torch.autograd.grad(again, leaves, grad.float().view(again.shape))
    return [gradient.to(x.dtype) for gradient, x in zip(gradients, (q, k, v), strict=True)] + [None, None]


def _attention_options(
    bounds: torch.Tensor, bounds_kv: torch.Tensor, padded: torch.Tensor | None, window: Any, dropout: float,
    longest: int, scale: float, mask: Any,
) -> dict[str, Any]:  # fmt: skip
    assert dropout == 0.0 and tuple(window) in ((-1, -1), (-1, 0)), window
    assert torch.equal(bounds, bounds_kv), "query and key have other lengths"
    assert padded is None or torch.equal(padded, bounds), "not emulated: padding between packed sequences"
    return {"bounds": bounds, "longest": longest, "scale": scale, "mask": mask.name}


def fused_rope_forward(
    x: torch.Tensor, angles: torch.Tensor, start: Any, format_: Any, interleaved: bool, bounds: torch.Tensor | None,
    cp_size: int, cp_rank: int,
) -> torch.Tensor:  # fmt: skip
    """Returns the rotated query or key."""
    assert start is None and not interleaved and cp_size == 1, "not emulated"
    used[f"rope {format_.name}"] += 1
    return attention.rotate(x, angles, format_, bounds)


def fused_rope_backward(
    grad: torch.Tensor, angles: torch.Tensor, start: Any, format_: Any, interleaved: bool, bounds: torch.Tensor | None,
    cp_size: int, cp_rank: int,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradient of the query or key before its rotation."""
    assert start is None and not interleaved and cp_size == 1, "not emulated"
    return attention.rotate(grad, angles, format_, bounds, back=True)


# FP8


def quantize(tensor: torch.Tensor, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    """Returns the tensor in FP8."""
    used[type(quantizer).__name__] += 1
    return fp8.quantize(tensor, quantizer, output, noop)


def bgrad_quantize(input: torch.Tensor, quantizer: Any) -> list[Any]:
    """Returns [gradient of a bias, the tensor in FP8]."""
    flat = input.reshape(-1, input.shape[-1])
    return [flat.float().sum(0).to(input.dtype), quantize(input, quantizer)]


def fp8_transpose(input: torch.Tensor, dtype: Any, *, out: torch.Tensor | None) -> torch.Tensor:
    """Returns the transpose of FP8 bytes."""
    transposed = fp8.transposed(input)
    return transposed if out is None else out.copy_(transposed.view(out.shape))


def swap_first_dims(tensor: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the tensor with its first two dimensions swapped."""
    swapped = tensor.transpose(0, 1).contiguous()
    return swapped if out is None else out.copy_(swapped)


def fused_amax_and_scale_update_after_reduction(
    buffer: torch.Tensor, histories: Any, scales: Any, algorithm: str, dtype: Any, margin: float
) -> None:
    """Sets the scales of delayed scaling for the next pass."""
    used["scale updates"] += 1
    fp8.update_scales(buffer, histories, scales, algorithm, dtype, margin)


# The optimizer


def multi_tensor_scale(_chunk: int, overflow: torch.Tensor, tensors: Any, scale: float) -> None:
    """Writes scaled tensors into others."""
    for source, target in zip(*tensors, strict=True):
        target.copy_(source.float() * scale)


def multi_tensor_l2norm(
    _chunk: int, overflow: torch.Tensor, tensors: Any, per_tensor: bool | None = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the norm of all tensors, [1], and that of each."""
    norms = torch.stack([tensor.float().norm() for tensor in tensors[0]]) if tensors[0] else torch.zeros(1)
    return norms.norm().view(1), norms


def multi_tensor_adam(
    _chunk: int, overflow: torch.Tensor, tensors: Any, lr: float, beta1: float, beta2: float, eps: float,
    step: int, mode: int, bias_correction: int, weight_decay: float,
) -> None:  # fmt: skip
    """Makes a step of AdamW in fp32: of the parameters, or of their fp32 copies, whose values they then get."""
    assert mode == 1, "mode 1 is AdamW"
    used["adam"] += 1
    corrections = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
    for grad, parameter, mean, square, *copy in zip(*tensors, strict=True):
        master, grad = copy[0] if copy else parameter, grad.float()
        mean.copy_(beta1 * mean + (1 - beta1) * grad)
        square.copy_(beta2 * square + (1 - beta2) * grad * grad)
        update = (mean / corrections[0]) / ((square / corrections[1]).sqrt() + eps)
        master.copy_(master.float() * (1 - lr * weight_decay) - lr * update)
        if copy:
            parameter.copy_(master)
