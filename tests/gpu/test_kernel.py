"""Tests the Triton kernels of log-probability and entropy against float64 and the plain form: compiled on CUDA,
otherwise in Triton's interpreter. Skipped without the package triton (docs/gpu.md says how to install it)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "needs the package triton, which the CPU lock leaves out: docs/gpu.md", allow_module_level=True
    )
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported, here and in child processes


from nemo_prorl.engines.megatron import softmax_plain, softmax_triton
from nemo_prorl.engines.megatron.vocab_parallel import logprob_and_entropy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK = softmax_triton.FORWARD_BLOCK
WIDTHS = [1, 2, 131, BLOCK, BLOCK + 1, 2 * BLOCK + 17]
"""Sizes below, equal to and above a block, with and without a remainder."""
T = 1.2


def random_logits(num_columns: int, dtype: torch.dtype = torch.float32, num_rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_columns)
    logits = 4 * torch.randn(num_rows, num_columns, generator=generator)
    return logits.to(DEVICE, dtype)


def labels_of(logits: torch.Tensor) -> torch.Tensor:
    """Returns labels that are the first column, the last, and one between, in turn."""
    last = logits.shape[1] - 1
    return torch.tensor([0, last, last // 2], device=DEVICE)[torch.arange(len(logits)) % 3]


def results(stats_4N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    peak, total, weighted, of_label = stats_4N.double()
    return of_label - peak - total.log(), total.log() - weighted / total


def exact(logits: torch.Tensor, labels: torch.Tensor, t: float = T) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the results in float64; entries of -inf have no probability and add nothing to the entropy."""
    log_p = (logits.double() / t).log_softmax(1)
    p = log_p.exp()
    return log_p.gather(1, labels[:, None])[:, 0], -torch.where(p > 0, p * log_p, 0.0).sum(1)


def assert_results(logits: torch.Tensor, t: float = T, atol: float = 3e-6) -> None:
    labels = labels_of(logits)
    got = results(softmax_triton.statistics(logits, labels, t))
    for one, other in zip(got, exact(logits, labels, t), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_columns", WIDTHS)
def test_values(num_columns: int, dtype: torch.dtype) -> None:
    for temperature in (0.6, 1.0, 1.2):
        assert_results(random_logits(num_columns, dtype), temperature)


@pytest.mark.parametrize("order", ["rising", "falling", "equal", "one above all", "plus and minus 1e4"])
def test_extreme_rows(order: str) -> None:
    """The maximum grows with every block, with none, by little and by 20,000. At 1e4 an fp32 logit is a multiple of
    1e-3, which explains the tolerance of the last case."""
    width = 2 * BLOCK + 17
    rows = {
        "rising": torch.linspace(-30, 30, width),
        "falling": torch.linspace(30, -30, width),
        "equal": torch.full((width,), 7.5),
        "one above all": torch.zeros(width).index_fill(0, torch.tensor([width - 2]), 200.0),
        "plus and minus 1e4": 1e4 * torch.sign(torch.linspace(-1, 1, width)),
    }
    logits = rows[order].repeat(3, 1).to(DEVICE)
    assert_results(logits, atol=2e-3 if order.startswith("plus") else 3e-6)


@pytest.mark.parametrize("masked", [slice(0, BLOCK + 5), slice(2 * BLOCK - 3, None), slice(7, 8)])
def test_masked_columns_have_no_probability(masked: slice) -> None:
    """-inf fills the whole first block, all of the last ones, or a single position."""
    logits = random_logits(2 * BLOCK + 17)
    logits[:, masked] = -torch.inf
    labels = torch.full((3,), 2 * BLOCK - 10 if masked.start == 0 else 3, device=DEVICE)
    got = results(softmax_triton.statistics(logits, labels, T))
    logprob, entropy = exact(logits, labels)
    torch.testing.assert_close(got, (logprob, entropy), rtol=2e-6, atol=3e-6)
    gradients = gradient_of(softmax_triton, logits, labels)
    assert not gradients[:, masked].any()
    assert gradients.isfinite().all()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, BLOCK + 3])
def test_what_is_not_finite_shows(poison: float, place: int) -> None:
    """An update with NaN is refused because of its loss, so the kernel must not hide it."""
    logits = random_logits(BLOCK + 9)
    logits[1, place] = poison
    logprob, entropy = results(softmax_triton.statistics(logits, labels_of(logits), T))
    assert logprob.isnan().tolist() == entropy.isnan().tolist() == [False, True, False]


def test_columns_beyond_the_shard_are_not_read() -> None:
    padded = random_logits(BLOCK + 40)
    padded[:, BLOCK + 9 :] = torch.nan
    logits = padded[:, : BLOCK + 9]
    assert_results(logits)
    labels = labels_of(logits)
    for kernels in (softmax_triton, softmax_plain):
        assert gradient_of(kernels, logits.clone(), labels).isfinite().all()


@pytest.mark.parametrize("elsewhere", [-1, -(2**40), BLOCK + 9, 2**40])
def test_a_label_of_another_shard(elsewhere: int) -> None:
    logits = random_logits(BLOCK + 9)
    labels = torch.full((3,), elsewhere, device=DEVICE)
    assert not softmax_triton.statistics(logits, labels, T)[3].any()
    got = gradient_of(softmax_triton, logits.clone(), labels)
    torch.testing.assert_close(got, gradient_of(softmax_plain, logits, labels), rtol=1e-5, atol=1e-8)


def gradient_of(
    kernels: Any, logits: torch.Tensor, labels: torch.Tensor, parts: str = "both", dtype: Any = torch.float32
) -> torch.Tensor:
    normaliser = (logits.double() / T).logsumexp(1).float()
    entropy = exact(logits, labels.clamp(0, logits.shape[1] - 1))[1].float()
    of_logprob = torch.zeros(3) if parts == "entropy" else torch.tensor([1.0, -2.0, 0.5])
    of_entropy = None if parts == "logprobs" else torch.tensor([0.3, -1.0, 2.0]).to(DEVICE)
    result: torch.Tensor = kernels.gradient(
        logits, labels, T, normaliser, entropy, of_logprob.to(DEVICE), of_entropy, dtype
    )
    return result


@pytest.mark.parametrize("parts", ["logprobs", "entropy", "both"])
@pytest.mark.parametrize("num_columns", WIDTHS)
def test_gradients(num_columns: int, parts: str) -> None:
    """Compares with automatic differentiation in float64."""
    logits = random_logits(num_columns)
    labels = labels_of(logits)
    leaf = logits.double().requires_grad_()
    logprob, entropy = exact(leaf, labels)
    weights = torch.tensor([[1.0, -2.0, 0.5], [0.3, -1.0, 2.0]], device=DEVICE).double()
    total = 0.0 if parts == "entropy" else (logprob * weights[0]).sum()
    total = total + (0.0 if parts == "logprobs" else (entropy * weights[1]).sum())
    (wanted,) = torch.autograd.grad(total, leaf)
    got = gradient_of(softmax_triton, logits.clone(), labels, parts)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-6)
    sixteen = gradient_of(softmax_triton, logits.clone(), labels, parts, torch.bfloat16)
    assert sixteen.dtype is torch.bfloat16
    # One unit in the last place of bf16, because the interpreter truncates what a GPU rounds.
    torch.testing.assert_close(sixteen.float(), got, rtol=2**-7, atol=1e-8)


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    logits = random_logits(131)
    assert gradient_of(softmax_triton, logits, labels_of(logits)).data_ptr() == logits.data_ptr()


def head() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(7, 16, generator=generator).to(DEVICE)
    weight = torch.randn(150, 16, generator=generator).to(DEVICE)
    return hidden, weight, torch.arange(7, device=DEVICE) * 18


def through_head(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, fused: bool) -> Any:
    """Returns values and gradients of a loss whose gradient is one number, expanded N times."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    settings: dict[str, Any] = {"vocab_size": 131, "temperature": T, "chunk_tokens": 3}
    logprobs, entropy = logprob_and_entropy(hidden, weight, labels, **settings, fused=fused)
    gradients = torch.autograd.grad(logprobs.sum() - 0.3 * entropy.sum(), (hidden, weight))
    return [logprobs.detach(), entropy.detach(), *gradients]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_is_the_same_with_either(dtype: torch.dtype) -> None:
    """Tests chunks and padding too. In 16 bits both forms round the same fp32 gradients."""
    hidden, weight, labels = head()
    both = [through_head(hidden.to(dtype), weight.to(dtype), labels, fused=fused) for fused in (True, False)]
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert one.abs().sum() > 0
