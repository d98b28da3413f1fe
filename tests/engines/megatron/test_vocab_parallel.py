"""Chunked, vocabulary-parallel log-probability and entropy against plain log_softmax, with gradients and memory."""

from __future__ import annotations

import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from nemo_prorl import distributed
from nemo_prorl.engines.megatron import softmax_plain, vocab_parallel
from nemo_prorl.engines.megatron.vocab_parallel import logprob_and_entropy
from tests.engines.conftest import run_ranks

TEMPERATURE = 1.2


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = (hidden @ weight[:vocab_size].t() / TEMPERATURE).log_softmax(-1)
    return log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def example(dtype: torch.dtype = torch.float64, num_tokens: int = 7) -> tuple[torch.Tensor, ...]:
    """6 features, 13 entries of which the last 3 are padding; among the labels the first and the last real one."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, 6, generator=generator, dtype=dtype)
    weight = torch.randn(14, 6, generator=generator, dtype=dtype)
    labels = torch.randint(0, 11, (num_tokens,), generator=generator)
    labels[:2] = torch.tensor([0, 10])
    return hidden, weight, labels


def chunked(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, **changes: Any) -> Any:
    settings = {"vocab_size": 11, "temperature": TEMPERATURE, "chunk_tokens": 3}
    return logprob_and_entropy(hidden, weight, labels, **(settings | changes))


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
def test_values_equal_log_softmax(chunk_tokens: int) -> None:
    hidden, weight, labels = example()
    for got, wanted in zip(
        chunked(hidden, weight, labels, chunk_tokens=chunk_tokens),
        plain(hidden, weight, labels, 11),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_gradcheck() -> None:
    hidden, weight, labels = example()
    assert torch.autograd.gradcheck(
        lambda h, w: chunked(h, w, labels), (hidden.requires_grad_(), weight.requires_grad_())
    )


@pytest.mark.parametrize("parts", ["logprobs", "entropy", "both"])
def test_gradients_equal_those_of_log_softmax(parts: str) -> None:
    def gradients(function: Any) -> tuple[torch.Tensor, ...]:
        hidden, weight, labels = example()
        logprobs, entropy = function(hidden.requires_grad_(), weight.requires_grad_(), labels)
        total = 0.0 if parts == "entropy" else (logprobs * torch.arange(7)).sum()
        total = total + (0.0 if parts == "logprobs" else (entropy * torch.arange(7) ** 2).sum())
        return torch.autograd.grad(total, (hidden, weight))

    got = gradients(chunked)
    for one, other in zip(got, gradients(lambda *args: plain(*args, vocab_size=11)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert torch.equal(got[1][11:], torch.zeros(3, 6, dtype=torch.float64)), "padding gets no gradient"


def test_no_token_at_all_still_has_a_gradient() -> None:
    hidden, weight, labels = (tensor[:0] if i != 1 else tensor for i, tensor in enumerate(example()))
    logprobs, entropy = chunked(hidden.requires_grad_(), weight.requires_grad_(), labels)
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (0, 6)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_large_logits_do_not_overflow() -> None:
    hidden, weight, labels = example(torch.float32)
    logprobs, entropy = chunked(hidden * 1e4, weight, labels)
    assert torch.isfinite(logprobs).all()
    assert torch.isfinite(entropy).all()


def test_sixteen_bit_weights_are_multiplied_into_fp32() -> None:
    hidden, weight, labels = (t.bfloat16() if t.is_floating_point() else t for t in example())
    wanted = plain(hidden.float(), weight.float(), labels, 11)
    for got, value in zip(chunked(hidden, weight, labels), wanted, strict=True):
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, value, rtol=0, atol=1e-5)


def test_the_gradient_of_16_bit_weights_is_summed_in_fp32_over_chunks_and_passes() -> None:
    """In Megatron's buffer; rounded to 16 bits once a pass, the sum was wrong by 9e-4."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 8, generator=generator).bfloat16().requires_grad_()
    weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(50, 8), False
    exact = torch.zeros(50, 8, dtype=torch.float64)
    for _ in range(4):
        hidden = torch.randn(300, 8, generator=generator).bfloat16()
        labels = torch.randint(0, 50, (300,), generator=generator)
        chunked(hidden, weight, labels, vocab_size=50, chunk_tokens=64)[0].sum().backward()
        if not weight.grad_added_to_main_grad:  # as Megatron's hook
            weight.main_grad.add_(weight.grad)
        assert weight.grad.dtype is torch.bfloat16, "the hook waits for one"
        weight.grad = None
        double = weight.detach().double().requires_grad_()
        plain(hidden.double(), double, labels, 50)[0].sum().backward()
        exact += double.grad
    assert (weight.main_grad - exact).norm() < 6e-4 * exact.norm()


def test_the_logits_of_one_chunk_are_freed_before_those_of_the_next_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In both passes; `plan` counts one chunk."""
    made: list[weakref.ref[torch.Tensor]] = []
    product, gradient = vocab_parallel._product, softmax_plain.gradient

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        made.append(weakref.ref(tensor))
        return tensor

    def multiplied(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        assert not [one for one in made if one() is not None]
        return noted(product(left, right))

    monkeypatch.setattr(vocab_parallel, "_product", multiplied)
    monkeypatch.setattr(softmax_plain, "gradient", lambda *given: noted(gradient(*given)))
    hidden, weight, labels = example()
    logprobs, _ = chunked(hidden, weight.requires_grad_(), labels)
    assert len(made) == 3
    logprobs.sum().backward()
    assert len(made) == 9


def shard_worker(rows: int) -> list[torch.Tensor]:
    """Log-probabilities, entropy and both gradients of this rank's shard of `rows` entries."""
    ranks = distributed.initialise(2, 1)
    hidden, weight, labels = example()
    start = ranks.layout.rank * rows
    weight = torch.cat([weight, torch.full((2 * rows, 6), torch.nan, dtype=weight.dtype)])[
        start : start + rows
    ]
    weight = weight.clone()
    weight[max(0, 11 - start) :] = torch.nan  # padding must not matter, whatever it holds
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, entropy = chunked(hidden, weight, labels, group=dist.group.WORLD)
    total = (logprobs * torch.arange(7)).sum() + (entropy * torch.arange(7) ** 2).sum()
    return [logprobs.detach(), entropy.detach(), *torch.autograd.grad(total, (hidden, weight))]


def both_shapes_worker() -> list[list[torch.Tensor]]:
    return [shard_worker(6), shard_worker(16)]


@pytest.mark.slow
def test_two_shards_equal_one() -> None:
    """Shards of 6, the second padded by 1, and of 16, so that the second is nothing but padding."""
    first, second = run_ranks(both_shapes_worker, 2)
    hidden, weight, labels = example()
    logprobs, entropy = plain(hidden.requires_grad_(), weight.requires_grad_(), labels, 11)
    total = (logprobs * torch.arange(7)).sum() + (entropy * torch.arange(7) ** 2).sum()
    of_hidden, of_weight = torch.autograd.grad(total, (hidden, weight))
    for shape in (0, 1):
        for rank in (first, second):
            for got, wanted in zip(rank[shape][:3], (logprobs, entropy, of_hidden), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
        whole = torch.cat([first[shape][3], second[shape][3]])
        torch.testing.assert_close(whole[:11], of_weight[:11], rtol=1e-10, atol=1e-10)
        assert not whole[11:].any()


def peak_mib(num_tokens: int, chunk_tokens: int, trace: Path) -> float:
    """What torch's allocator holds at most in one forward and backward pass: counted, so it never varies."""
    hidden = torch.randn(num_tokens, 16, requires_grad=True)
    weight = torch.randn(8192, 16, requires_grad=True)
    labels = torch.zeros(num_tokens, dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        logprobs, entropy = logprob_and_entropy(
            hidden, weight, labels, vocab_size=8192, temperature=TEMPERATURE, chunk_tokens=chunk_tokens
        )
        (logprobs.sum() + entropy.sum()).backward()
    profiler.export_chrome_trace(str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    changes = [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(itertools.accumulate(changes)) / 2**20


@pytest.mark.medium
def test_memory_grows_with_the_chunk_and_not_with_the_sequence(tmp_path: Path) -> None:
    """8192 entries in fp32 are 32 KiB a token: a sequence of 4096 would take 128 MiB in one piece."""
    short, long, wide = (
        peak_mib(num_tokens, chunk_tokens, tmp_path / "trace.json")
        for num_tokens, chunk_tokens in ((512, 128), (4096, 128), (4096, 512))
    )
    chunk_logits = 128 * 8192 * 4 / 2**20
    assert 2 * chunk_logits < short < 4 * chunk_logits, short
    assert long < short + chunk_logits / 4, (short, long)  # hidden states, labels and results of every token
    assert wide > 3 * long, (long, wide)
