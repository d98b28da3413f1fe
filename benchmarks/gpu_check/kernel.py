"""Log-probability and entropy over a large vocabulary: the plain form and the fused kernels against float64, then their
time, peak memory, and distance to the memory bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.rows import Row
from nemo_prorl.engines.megatron import softmax_plain
from nemo_prorl.engines.megatron.vocab_parallel import can_fuse, logprob_and_entropy

PART = "kernel"
VOCAB, NUM_TOKENS = 151_936, 4096
HEAD_TOKENS, HIDDEN_SIZE = 8192, 1536
COPIED_BYTES = 2**30
TEMPERATURE = 1.2
LIMIT = 2e-5
"""Nats, and a share of the largest gradient: ten steps of fp32 between 16 and 32, where the greatest logits are."""


def run(machine: Machine, _workdir: Path) -> Iterator[Row]:
    """Rows of the part."""
    forms = _forms(machine.torch_device)
    yield from _correctness(forms, machine.torch_device)
    if machine.num_gpus:
        yield from _bandwidth(forms, machine)
        if "fused" in forms:
            yield from _tuning(forms["fused"], machine)
        yield from _head(forms, machine.torch_device)


def _forms(device: torch.device) -> dict[str, Any]:
    forms: dict[str, Any] = {"plain": softmax_plain}
    if can_fuse(device):
        from nemo_prorl.engines.megatron import softmax_triton

        forms["fused"] = softmax_triton
    return forms


def _correctness(forms: dict[str, Any], device: torch.device) -> Iterator[Row]:
    """On the real vocabulary, and on an odd one, of nearly flat logits and of nearly certain ones."""
    for name, kernels in forms.items():
        worst = torch.zeros(3, dtype=torch.float64)
        for width, scale in ((VOCAB, 3.0), (VOCAB, 8.0), (VOCAB // 2 + 1, 3.0)):
            logits = scale * torch.randn(16, width, generator=_generator(device), device=device)
            labels = torch.randint(0, width, (16,), generator=_generator(device), device=device)
            worst = torch.maximum(worst, _errors(kernels, logits, labels))
        for what, value in zip(
            ("log-probability", "entropy", "gradient, of the largest"), worst, strict=True
        ):
            unit = "" if what.startswith("gradient") else "nats"
            yield Row(part=PART, what=f"{name}: {what}", value=float(value), unit=unit, limit=LIMIT)


def _errors(kernels: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    leaf = logits.double().requires_grad_()
    log_p = (leaf / TEMPERATURE).log_softmax(1)
    logprob, entropy = log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)
    of_logprob = torch.linspace(-1, 1, len(labels), device=logits.device)
    of_entropy = torch.linspace(0.5, -0.3, len(labels), device=logits.device)
    (wanted,) = torch.autograd.grad((logprob * of_logprob).sum() + (entropy * of_entropy).sum(), leaf)
    peak, total, weighted, of_label = kernels.statistics(logits.clone(), labels, TEMPERATURE)
    log_sum = total.log()
    got_logprob, got_entropy = of_label - peak - log_sum, log_sum - weighted / total
    got = kernels.gradient(
        logits, labels, TEMPERATURE, log_sum + peak, got_entropy, of_logprob, of_entropy, torch.float32
    )
    return torch.stack(
        [
            (got_logprob - logprob.detach()).abs().max(),
            (got_entropy - entropy.detach()).abs().max(),
            (got - wanted).abs().max() / wanted.abs().max(),
        ]
    ).cpu()


def _bandwidth(forms: dict[str, Any], machine: Machine) -> Iterator[Row]:
    """Each pass must read the logits once (4 bytes an entry), the backward pass write a bf16 gradient (2 bytes)."""
    device = machine.torch_device
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    copied = 2 * source.numel() / _seconds(lambda: source.clone())
    yield Row(part=PART, what="copy, bytes read and written", value=copied / 1e12, unit="TB/s")
    drawn = 3 * torch.randn(NUM_TOKENS, VOCAB, generator=_generator(device), device=device)
    labels = torch.zeros(NUM_TOKENS, dtype=torch.int64, device=device)
    some = torch.ones(NUM_TOKENS, device=device)
    spent: dict[tuple[str, str], float] = {}
    for name, kernels in forms.items():
        logits = drawn.clone()  # the plain form uses them up
        passes: dict[str, tuple[int, Callable[[], Any]]] = {
            "forward": (4, lambda kernels=kernels, logits=logits: kernels.statistics(logits, labels, 1.0)),
            "backward": (
                6,
                lambda kernels=kernels, logits=logits: kernels.gradient(
                    logits, labels, 1.0, some, some, some, some, torch.bfloat16
                ),
            ),
        }
        for which, (bytes_an_entry, once) in passes.items():
            seconds = spent[name, which] = _seconds(once)
            rate = bytes_an_entry * logits.numel() / seconds
            sheet = machine.data_sheet
            note = f"{rate / copied:.0%} of the copy's rate"
            note += f", {rate / sheet.memory_bytes_s:.0%} of the data sheet's" if sheet else ""
            yield Row(
                part=PART,
                what=f"{name}: {which}, {NUM_TOKENS} tokens",
                value=1e3 * seconds,
                unit="ms",
                note=note,
            )
    for which in ("forward", "backward"):
        if ("fused", which) in spent:
            ratio = spent["plain", which] / spent["fused", which]
            yield Row(part=PART, what=f"fused: {which}, times as fast as plain", value=ratio, unit="x")


def _tuning(kernels: Any, machine: Machine) -> Iterator[Row]:
    """Whether the sizes in softmax_triton.py are the right ones for this GPU."""
    device = machine.torch_device
    logits = 3 * torch.randn(NUM_TOKENS, VOCAB, generator=_generator(device), device=device)
    labels = torch.zeros(NUM_TOKENS, dtype=torch.int64, device=device)
    some = torch.ones(NUM_TOKENS, device=device)
    written = kernels.FORWARD_BLOCK, kernels.BACKWARD_BLOCK, kernels.NUM_WARPS
    for block, num_warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 8), (8192, 16), (16384, 16)):
        kernels.FORWARD_BLOCK = kernels.BACKWARD_BLOCK = block
        kernels.NUM_WARPS = num_warps
        forward = _seconds(lambda: kernels.statistics(logits, labels, 1.0))
        backward = _seconds(
            lambda: kernels.gradient(logits, labels, 1.0, some, some, some, some, torch.bfloat16)
        )
        yield Row(
            part=PART,
            what=f"fused: forward, blocks of {block}, {num_warps} warps",
            value=1e3 * forward,
            unit="ms",
            note=f"backward {1e3 * backward:.2f} ms"
            + (" (as built)" if (block, num_warps) == written[1:] else ""),
        )
    kernels.FORWARD_BLOCK, kernels.BACKWARD_BLOCK, kernels.NUM_WARPS = written


def _head(forms: dict[str, Any], device: torch.device) -> Iterator[Row]:
    """The whole of it with the matrix products, as a 1.5B policy runs it."""
    hidden = torch.randn(HEAD_TOKENS, HIDDEN_SIZE, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = (0.03 * torch.randn(VOCAB, HIDDEN_SIZE, device=device)).bfloat16().requires_grad_()
    labels = torch.zeros(HEAD_TOKENS, dtype=torch.int64, device=device)
    for name in forms:

        def once(fused: bool = name == "fused") -> None:
            logprobs, entropy = logprob_and_entropy(
                hidden, weight, labels, vocab_size=VOCAB, temperature=1.2, chunk_tokens=1024, fused=fused
            )
            torch.autograd.grad(logprobs.sum() + entropy.sum(), (hidden, weight))

        what = f"{name}: head of 1.5B, {HEAD_TOKENS} tokens, both passes"
        seconds = _seconds(once)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        yield Row(part=PART, what=what, value=1e3 * seconds, unit="ms", note=f"peak {peak:.0f} MiB")


def _seconds(once: Callable[[], Any], repeats: int = 5) -> float:
    """The least of so many, after one that compiles and warms up."""
    once()
    taken = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        once()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
