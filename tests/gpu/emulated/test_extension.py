"""The emulated kernels against other formulas: torch's own functions and automatic differentiation, scalar loops, and
Transformer Engine's own Python for what its tensors hold. Their names and parameters against a compiled extension."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer

from tests.gpu.emulated import attention, extension, fp8, names

E4M3, E5M2 = names.DType.kFloat8E4M3, names.DType.kFloat8E5M2


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rmsnorm_and_its_gradients_are_torchs() -> None:
    x, weight, grad = (
        random(7, 32).requires_grad_(),
        random(32, seed=1).requires_grad_(),
        random(7, 32, seed=2),
    )
    wanted = F.rms_norm(x, (32,), weight, 1e-5)
    gradients = torch.autograd.grad(wanted, (x, weight), grad)
    x, weight = x.detach(), weight.detach()
    normed, _, scale = extension.rmsnorm_fwd(x, weight, 1e-5, None, None, names.DType.kFloat32, 0, False)
    torch.testing.assert_close(normed, wanted.detach())
    for got, value in zip(extension.rmsnorm_bwd(grad, x, scale, weight, 0, False), gradients, strict=True):
        torch.testing.assert_close(got, value)


@pytest.mark.parametrize("format_", [attention.THD, attention.SBHD])
def test_attention_is_torchs(format_: Any) -> None:
    """Packed rows of 5 and 3 tokens, or two rows of 4; four query heads share two of keys and values."""
    lengths = [5, 3] if format_ == attention.THD else [4, 4]
    q, k, v = random(8, 4, 16), random(8, 2, 16, seed=1), random(8, 2, 16, seed=2)
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    rows = [
        F.scaled_dot_product_attention(
            *(x.transpose(0, 1).repeat_interleave(4 // x.shape[1], 0) for x in part), is_causal=True
        ).transpose(0, 1)
        for part in zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    ]
    options = {"bounds": bounds, "longest": 5, "scale": 0.25}
    if format_ == attention.THD:
        got = attention.attend(q, k, v, format_, mask="NVTE_PADDING_CAUSAL_MASK", **options)
        torch.testing.assert_close(got, torch.cat(rows))
    else:
        padded = (torch.stack(x.split(lengths), 1) for x in (q, k, v))
        got = attention.attend(*padded, format_, mask="NVTE_CAUSAL_MASK", **options)
        torch.testing.assert_close(got, torch.stack(rows, 1))


def test_attention_refuses_what_cudnn_would_read_wrongly() -> None:
    q = random(8, 2, 16)
    good = {"longest": 5, "scale": 1.0, "mask": "NVTE_PADDING_CAUSAL_MASK"}
    bounds = torch.tensor([0, 5, 8], dtype=torch.int32)
    for changes, message in (
        ({"mask": "NVTE_CAUSAL_MASK"}, "padding mask"),
        ({"longest": 4}, "longer than max_seqlen"),
        ({"bounds": bounds[:2]}, "outside of all sequences"),
        ({"bounds": bounds.long()}, ""),
    ):
        with pytest.raises(AssertionError, match=message):
            attention.attend(q, q, q, attention.THD, **({"bounds": bounds} | good | changes))


def test_rotation_is_of_complex_numbers_and_its_own_inverse() -> None:
    x, bounds = random(8, 3, 16), torch.tensor([0, 5, 8], dtype=torch.int32)
    angles = random(8, 1, 1, 8, seed=1)
    angles = torch.cat([angles[..., :4], angles[..., :4]], -1).contiguous()
    got = attention.rotate(x, angles, attention.THD, bounds)
    for token, position in enumerate([0, 1, 2, 3, 4, 0, 1, 2]):
        number = torch.complex(x[token, :, :4], x[token, :, 4:8])
        turned = number * torch.polar(torch.ones(4), angles[position, 0, 0, :4])
        torch.testing.assert_close(got[token], torch.cat([turned.real, turned.imag, x[token, :, 8:]], -1))
    torch.testing.assert_close(attention.rotate(got, angles, attention.THD, bounds, back=True), x)


@pytest.mark.parametrize("has_copy", [False, True])
def test_adam_is_torchs(has_copy: bool) -> None:
    dtype = torch.bfloat16 if has_copy else torch.float32
    start = random(5, 3).to(dtype)
    wanted = start.float().clone().requires_grad_()
    adam = torch.optim.AdamW([wanted], lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.2)
    parameter, copy = start.clone(), start.float().clone()
    mean, square = torch.zeros(5, 3), torch.zeros(5, 3)
    for step in (1, 2, 3):
        grad = wanted.grad = random(5, 3, seed=step)
        adam.step()
        lists = [[grad], [parameter], [mean], [square], *([[copy]] if has_copy else [])]
        extension.multi_tensor_adam(0, torch.zeros(1), lists, 0.1, 0.9, 0.99, 1e-6, step, 1, 1, 0.2)
    torch.testing.assert_close(copy if has_copy else parameter, wanted.detach())
    torch.testing.assert_close(parameter, wanted.detach().to(dtype))


def quantizers(columnwise: bool = True) -> dict[str, Any]:
    usage = {"rowwise": True, "columnwise": columnwise}
    return {
        "delayed": Float8Quantizer(torch.full((1,), 50.0), torch.zeros(1), E4M3, **usage),
        "tensorwise": Float8CurrentScalingQuantizer(E4M3, torch.device("cpu"), **usage),
        "gradients": Float8CurrentScalingQuantizer(E5M2, torch.device("cpu"), **usage),
        "1 x 128": Float8BlockQuantizer(E4M3, block_scaling_dim=1, **usage),
        "128 x 128": Float8BlockQuantizer(E4M3, block_scaling_dim=2, **usage),
    }


@pytest.mark.parametrize("name", quantizers())
@pytest.mark.parametrize("shape", [(256, 384), (48, 144)])
def test_fp8_tensors_hold_the_numbers_rounded_to_their_format(name: str, shape: tuple[int, int]) -> None:
    """e4m3 has three bits of mantissa and e5m2 two, so that a number is rounded by at most 1/16 or 1/8 of it, unless it
    is too small for the scale."""
    x = random(*shape) * torch.logspace(-2, 0, shape[1])
    made = extension.quantize(x, quantizers()[name])
    rowwise, columnwise = (fp8.values_of(made, rowwise=rowwise) for rowwise in (True, False))
    bound = (x.abs() / (8 if name == "gradients" else 16)).clamp_min(x.abs().max() * 2**-9)
    for values in (rowwise, columnwise):
        assert values.shape == x.shape
        assert ((values - x).abs() <= bound).all()
        assert not torch.equal(values, x)
    torch.testing.assert_close(made.dequantize().float(), rowwise)  # Transformer Engine's own
    assert torch.equal(rowwise, columnwise) is (name != "1 x 128")  # where the two have other scales


def test_current_scaling_uses_the_whole_range_and_delayed_scaling_cuts_off() -> None:
    x = random(32, 32)
    made = extension.quantize(x, quantizers()["tensorwise"])
    assert float(made._scale_inv) == pytest.approx(float(x.abs().max()) / 448)
    delayed = quantizers()["delayed"]
    values = fp8.values_of(extension.quantize(20 * x, delayed), rowwise=True)
    assert float(values.abs().max()) == pytest.approx(448 / 50)
    assert float(delayed.amax) == pytest.approx(float(20 * x.abs().max()))


def test_a_block_has_its_own_scale() -> None:
    x = torch.ones(128, 256)
    x[:, 128:] = 1e-3
    made = extension.quantize(x, quantizers()["128 x 128"])
    torch.testing.assert_close(fp8.values_of(made, rowwise=True), x, rtol=1 / 16, atol=0)
    scales = 1 / made._rowwise_scale_inv[0, :2]
    assert torch.equal(scales, torch.tensor([256.0, 2.0**18]))  # powers of two, at most 448 and 448,000


@pytest.mark.parametrize(("algorithm", "of_history"), [("max", 8.0), ("most_recent", 2.0)])
def test_delayed_scales_come_from_the_history(algorithm: str, of_history: float) -> None:
    history = torch.tensor([[0.0, 0.0], [4.0, 1.0], [8.0, 0.5]])
    scale = torch.ones(2)
    fp8.update_scales(torch.tensor([2.0, 0.0]), [history], [scale], algorithm, E4M3, 1)
    assert float(scale[0]) == 448 / of_history / 2
    assert float(scale[1]) == (448 / 1.0 / 2 if algorithm == "max" else 1.0)  # nothing seen: as it was
    assert history.tolist() == [[0.0, 0.0], [8.0, 0.5], [2.0, 0.0]]


def gemm(a: Any, b: Any, trans_a: bool, trans_b: bool, **options: Any) -> Any:
    workspace = torch.empty(1)
    out, dtype = options.get("out"), names.DType.kFloat32
    return extension.generic_gemm(
        a, trans_a, b, trans_b, out, None, dtype, None, dtype, False, None, options.get("grad", False),
        workspace, 1, options.get("accumulate", False), False,
    )[0]  # fmt: skip


@pytest.mark.parametrize(("trans_a", "trans_b"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("name", [None, *quantizers()])
def test_products_of_each_layout(trans_a: bool, trans_b: bool, name: str | None) -> None:
    """The forward pass, the gradient of the input, and that of the weight."""
    a = random(*((128, 256) if trans_a else (256, 128)))
    b = random(*((256, 384) if trans_b else (384, 256)), seed=1)
    wanted = (b.t() if trans_b else b) @ (a.t() if trans_a else a)
    if name is not None:
        a, b = (extension.quantize(x, quantizers()[name]) for x in (a, b))
    error = (gemm(a, b, trans_a, trans_b) - wanted).norm() / wanted.norm()
    assert error < 1e-6 if name is None else 0.01 < error < 0.12


def test_a_product_is_added_where_it_is_asked_to_be() -> None:
    total, a, b = torch.ones(384, 128), random(256, 128), random(256, 384, seed=1)
    gemm(a, b, False, True, out=total, accumulate=True, grad=True)
    torch.testing.assert_close(total, 1 + b.t() @ a)


def test_products_refuse_what_the_gpu_would() -> None:
    of = quantizers(columnwise=False)
    for name in of:
        x = extension.quantize(random(128, 128), of[name])
        with pytest.raises(AssertionError, match=r"the product needs (columnwise data|the transpose)"):
            gemm(x, x, False, False)
    with pytest.raises(AssertionError, match="one operand is in FP8"):
        gemm(extension.quantize(random(128, 128), of["tensorwise"]), random(128, 128), True, False)
    x = extension.quantize(random(128, 24), of["tensorwise"])
    with pytest.raises(AssertionError, match="multiple of 16, not 24"):
        gemm(x, x, True, False)


def test_what_has_no_stand_in_says_so() -> None:
    import transformer_engine_torch as tex

    assert tex is extension
    with pytest.raises(NotImplementedError, match=r"no stand-in for transformer_engine_torch\.layernorm_fwd"):
        tex.layernorm_fwd(1)


COMPILED = """
import json
import torch
import transformer_engine.pytorch
import transformer_engine_torch as compiled
found = {}
for name, value in vars(compiled).items():
    if members := getattr(value, "__members__", None):
        found[name] = {member: int(number) for member, number in members.items()}
    elif callable(value) and not isinstance(value, type):
        found[name] = value.__doc__.partition("\\n")[0]
print(json.dumps(found))
"""


def test_names_and_parameters_are_those_of_the_compiled_extension() -> None:
    try:
        importlib.metadata.version("transformer_engine_torch")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the compiled extension, which make test-cuda-build has")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout.splitlines()[-1])
    for name, value in vars(names).items():
        if isinstance(value, type) and name in compiled:
            assert {member.name: int(member) for member in value} == compiled[name]
    functions = {
        name: value
        for name, value in vars(extension).items()
        if inspect.isfunction(value) and value.__module__ == extension.__name__ and name[0] != "_"
    }
    assert functions.keys() <= compiled.keys()
    for name, function in functions.items():
        theirs = re.findall(r"(\w+): ", compiled[name].partition(") ->")[0])
        ours = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
        takes_more = len(ours) < len(inspect.signature(function).parameters)
        assert len(ours) == len(theirs) or (takes_more and len(ours) < len(theirs)), name
        if not theirs or theirs[0] != "arg0":  # where the extension names its parameters
            assert [p.name for p in ours] == theirs, name
