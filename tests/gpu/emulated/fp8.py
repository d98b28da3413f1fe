"""FP8 tensors as Transformer Engine's kernels make and read them, in plain PyTorch: real FP8 bytes and real scales in
the buffers of its own tensor classes, for the recipes `delayed`, `tensorwise` and `blockwise` on a Hopper GPU.

A kernel reads the buffer whose last dimension it sums over: `rowwise` for the tensor as it is, `columnwise` for its
transpose. With blocks of 1 x 128 the two are rounded with different scales.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tests.gpu.emulated.names import DType

BLOCK = 128
_TORCH = {DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2}


def largest(dtype: DType) -> float:
    """Returns the largest number of an FP8 format: 448 for e4m3, 57,344 for e5m2."""
    return float(torch.finfo(_TORCH[dtype]).max)


def quantize(tensor: torch.Tensor, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    """Returns `tensor` in the FP8 format of the quantizer, or fills `output`. Delayed scaling also notes the largest
    absolute value. A tensor without a quantizer stays as it is."""
    assert noop is None, "not emulated: a cast that a flag on the GPU switches off"
    if quantizer is None:
        return tensor
    if output is None:
        output = quantizer.make_empty(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)
    values = tensor.detach().float()
    if type(quantizer).__name__ == "Float8BlockQuantizer":
        _fill_blocks(output, values.reshape(-1, values.shape[-1]), quantizer)
    else:
        _fill(output, values, _scale(values, quantizer), quantizer)
    return output


def transposed(data: torch.Tensor) -> torch.Tensor:
    """Returns the transpose [last, all others] of FP8 bytes [..., last]."""
    return data.movedim(-1, 0).contiguous()


def values_of(tensor: Any, *, rowwise: bool) -> torch.Tensor:
    """Returns the fp32 values that a matrix product reads from an operand, in the operand's own order. rowwise: whether
    it sums over the last dimension. Other tensors than FP8's are returned unchanged."""
    if not hasattr(tensor, "_fp8_dtype"):
        return tensor
    if hasattr(tensor, "_is_2D_scaled"):
        return _values_of_blocks(tensor, rowwise)
    if rowwise:
        assert tensor._data is not None, "the product needs rowwise data"
        return _floats(tensor._data, tensor._fp8_dtype) * tensor._scale_inv
    assert tensor._transpose is not None and not tensor._transpose_invalid, "the product needs the transpose"
    return (_floats(tensor._transpose, tensor._fp8_dtype) * tensor._scale_inv).movedim(0, -1)


def update_scales(
    buffer: torch.Tensor,
    histories: list[torch.Tensor],
    scales: list[torch.Tensor],
    algorithm: str,
    dtype: DType,
    margin: float,
) -> None:
    """Moves the histories of delayed scaling on by a pass, and sets the scales of the next one: the largest number of
    the format over the largest (`max`) or the latest (`most_recent`) value, divided by 2^margin. Source:
    transformer_engine/common/recipe/delayed_scaling.cu."""
    at = 0
    for history, scale in zip(histories, scales, strict=True):
        width = history.shape[1]
        history[0].copy_(buffer[at : at + width])
        at += width
        amax = history.max(0).values if algorithm == "max" else history[0]
        new = largest(dtype) / amax / 2**margin
        scale.copy_(torch.where((amax > 0) & amax.isfinite(), new, scale))
        history.copy_(history.roll(-1, 0))
        history[0].zero_()


def _scale(values: torch.Tensor, quantizer: Any) -> torch.Tensor:
    """Returns the one scale of a tensor, [1]: of earlier passes, or of its own largest absolute value."""
    amax = values.abs().max()
    if type(quantizer).__name__ == "Float8Quantizer":  # delayed
        quantizer.amax.copy_(torch.maximum(quantizer.amax, amax))
        return quantizer.scale.reshape(1).clone()
    assert type(quantizer).__name__ == "Float8CurrentScalingQuantizer", type(quantizer)
    assert not quantizer.use_existing_amax, "not emulated"
    if quantizer.with_amax_reduction:
        dist.all_reduce(amax, dist.ReduceOp.MAX, group=quantizer.amax_reduction_group)
    return _scale_of(amax.reshape(1), quantizer)


def _scale_of(amax: torch.Tensor, quantizer: Any) -> torch.Tensor:
    """Returns the scale for each largest absolute value. Source: compute_scale_from_amax of
    transformer_engine/common/recipe/recipe_common.cuh."""
    amax = amax.clamp_min(quantizer.amax_epsilon)
    scale = torch.where(amax > 0, largest(quantizer.dtype) / amax, torch.ones_like(amax))
    scale = scale.clamp_max(torch.finfo(torch.float32).max)
    return torch.exp2(torch.floor(torch.log2(scale))) if quantizer.force_pow_2_scales else scale


def _bytes(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    top = largest(dtype)
    return values.clamp(-top, top).to(_TORCH[dtype]).view(torch.uint8)


def _floats(data: torch.Tensor, dtype: DType) -> torch.Tensor:
    return data.view(_TORCH[dtype]).float()


def _fill(output: Any, values: torch.Tensor, scale: torch.Tensor, quantizer: Any) -> None:
    data = _bytes(values * scale, quantizer.dtype)
    output._scale_inv.copy_(1 / scale)
    if output._data is not None:
        output._data.copy_(data.view(output._data.shape))
    if output._transpose is not None:
        output._transpose.copy_(transposed(data).view(output._transpose.shape))
        output._transpose_invalid = False


def _fill_blocks(output: Any, values: torch.Tensor, quantizer: Any) -> None:
    """Fills the buffers of blocks of 128 x 128 (weights) or 1 x 128 (activations and gradients). values: [M, K]."""
    rows, columns = values.shape
    assert rows % 16 == 0, f"{rows} tokens: a product of 1 x 128 blocks takes multiples of 16"
    assert columns % 16 == 0, f"{columns} columns: a product of blocks takes multiples of 16"
    for data, scale_inv, matrix in (
        (output._rowwise_data, output._rowwise_scale_inv, values),
        (output._columnwise_data, output._columnwise_scale_inv, values.t()),
    ):
        if data is None:
            continue
        height = BLOCK if quantizer.block_scaling_dim == 2 else 1
        num_rows, num_columns = matrix.shape
        padded = F.pad(matrix, (0, -num_columns % BLOCK, 0, -num_rows % height))
        blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(
            0, (-1, height)
        )  # [M / height, height, K / 128, 128]
        scale = _scale_of(blocks.abs().amax((1, 3)), quantizer)
        rounded = _bytes(blocks * scale[:, None, :, None], quantizer.dtype).flatten(2, 3).flatten(0, 1)
        data.copy_(rounded[:num_rows, :num_columns].reshape(data.shape))
        inverse = 1 / scale if height == BLOCK else (1 / scale).t()  # of 1 x 128: [K / 128, M]
        scale_inv.zero_()
        scale_inv[: inverse.shape[0], : inverse.shape[1]] = inverse


def _values_of_blocks(tensor: Any, rowwise: bool) -> torch.Tensor:
    """Returns the values by Transformer Engine's own Python for it, from one of the two buffers alone."""
    usage = "rowwise" if rowwise else "columnwise"
    assert getattr(tensor, f"_{usage}_data") is not None, f"the product needs {usage} data"
    from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import (
        Float8BlockwiseQTensorStorage,
    )

    other = {"columnwise_data": None, "columnwise_scale_inv": None}
    if not rowwise:
        other = {"rowwise_data": None, "rowwise_scale_inv": None}
    alone = Float8BlockwiseQTensorStorage(**(tensor.get_metadata() | other))
    return alone.dequantize(dtype=torch.float32)
