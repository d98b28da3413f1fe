"""FP8 tensors against their formats and Transformer Engine's own Python, what the emulated kernels refuse, and their
names and parameters against a compiled extension. test_numbers.py compares their numbers, with whole policies."""

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
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer

from tests.gpu.emulated import attention, extension, fp8, names

E4M3, E5M2 = names.DType.kFloat8E4M3, names.DType.kFloat8E5M2


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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
