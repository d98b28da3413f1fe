"""Checks log-probability and entropy over a large vocabulary: plain PyTorch and the fused kernels against float64, then
their time, peak memory, and distance to the memory bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.rows import Row, seconds_of
from nemo_prorl.engines.megatron import softmax_plain
from nemo_prorl.engines.megatron.vocab_parallel import can_fuse, logprob_and_entropy

VOCAB, NUM_TOKENS = 151_936, 4096
HEAD_TOKENS, HIDDEN_SIZE = 8192, 1536
COPIED_BYTES = 2**30
TEMPERATURE = 1.2
LIMIT = 2e-5
"""In nats, and as a fraction of the largest gradient: ten times the spacing of fp32 numbers between 16 and 32, where
the largest logits are."""
FAILURES = {
    "plain": "fp32 numbers are rounded to fewer bits here: is NVIDIA_TF32_OVERRIDE or a matmul precision set?",
    "fused": "Triton compiles softmax_triton.py wrongly for this GPU: write model.fused_logprobs=false",
}


def run(machine: Machine, _workdir: Path) -> Iterator[Row]:
    """Yields the rows of the part."""
    forms: dict[str, Any] = {"plain": softmax_plain}
    if can_fuse(machine.torch_device):
        from nemo_prorl.engines.megatron import softmax_triton

        forms["fused"] = softmax_triton
    yield from _correctness(forms, machine.torch_device)
    if machine.num_gpus:
        yield from _bandwidth(forms, machine)
        if "fused" in forms:
            yield from _tuning(forms["fused"], machine)
        yield from _head(forms, machine.torch_device)


def _correctness(forms: dict[str, Any], device: torch.device) -> Iterator[Row]:
    """Compares with float64 on a real vocabulary size and on an odd one, with nearly uniform and nearly deterministic
    distributions."""
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
            yield Row(
                what=f"{name}: {what}", value=float(value), unit=unit, limit=LIMIT, means=FAILURES[name]
            )


def _errors(kernels: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    leaf = logits.double().requires_grad_()
    log_p = (leaf / TEMPERATURE).log_softmax(1)
    logprob, entropy = log_p.gather(1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)
    grad_logprob = torch.linspace(-1, 1, len(labels), device=logits.device)
    grad_entropy = torch.linspace(0.5, -0.3, len(labels), device=logits.device)
    (expected,) = torch.autograd.grad((logprob * grad_logprob).sum() + (entropy * grad_entropy).sum(), leaf)
    peak, total, weighted, label_z = kernels.statistics(logits.clone(), labels, TEMPERATURE)
    log_sum = total.log()
    got_logprob, got_entropy = label_z - peak - log_sum, log_sum - weighted / total
    got = kernels.gradient(
        logits, labels, TEMPERATURE, log_sum + peak, got_entropy, grad_logprob, grad_entropy, torch.float32
    )
    return torch.stack(
        [
            (got_logprob - logprob.detach()).abs().max(),
            (got_entropy - entropy.detach()).abs().max(),
            (got - expected).abs().max() / expected.abs().max(),
        ]
    ).cpu()


def _bandwidth(forms: dict[str, Any], machine: Machine) -> Iterator[Row]:
    """Measures the passes relative to memory bandwidth. Each has to read the logits once (4 bytes per entry), and the
    backward pass has to write a bf16 gradient (2 bytes)."""
    device = machine.torch_device
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    copied = 2 * source.numel() / seconds_of(lambda: source.clone())
    yield Row(what="copy, bytes read and written", value=copied / 1e12, unit="TB/s")
    drawn = 3 * torch.randn(NUM_TOKENS, VOCAB, generator=_generator(device), device=device)
    labels = torch.zeros(NUM_TOKENS, dtype=torch.int64, device=device)
    ones = torch.ones(NUM_TOKENS, device=device)
    times_s: dict[tuple[str, str], float] = {}
    for name, kernels in forms.items():
        logits = drawn.clone()  # the plain form overwrites them
        passes: dict[str, tuple[int, Callable[[], Any]]] = {
            "forward": (4, lambda kernels=kernels, logits=logits: kernels.statistics(logits, labels, 1.0)),
            "backward": (
                6,
                lambda kernels=kernels, logits=logits: kernels.gradient(
                    logits, labels, 1.0, ones, ones, ones, ones, torch.bfloat16
                ),
            ),
        }
        for which, (bytes_per_entry, once) in passes.items():
            seconds = times_s[name, which] = seconds_of(once)
            rate = bytes_per_entry * logits.numel() / seconds
            sheet = machine.data_sheet
            note = f"{rate / copied:.0%} of the copy's rate"
            note += f", {rate / sheet.memory_bytes_s:.0%} of the data sheet's" if sheet else ""
            yield Row(what=f"{name}: {which}, {NUM_TOKENS} tokens", value=1e3 * seconds, unit="ms", note=note)
    for which in ("forward", "backward"):
        if ("fused", which) in times_s:
            ratio = times_s["plain", which] / times_s["fused", which]
            yield Row(what=f"fused: {which}, times as fast as plain", value=ratio, unit="x")


def _tuning(kernels: Any, machine: Machine) -> Iterator[Row]:
    """Measures other block sizes than those in softmax_triton.py, which may not be the best for this GPU."""
    device = machine.torch_device
    logits = 3 * torch.randn(NUM_TOKENS, VOCAB, generator=_generator(device), device=device)
    labels = torch.zeros(NUM_TOKENS, dtype=torch.int64, device=device)
    ones = torch.ones(NUM_TOKENS, device=device)
    configured = kernels.FORWARD_BLOCK, kernels.BACKWARD_BLOCK, kernels.NUM_WARPS
    for block, num_warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 8), (8192, 16), (16384, 16)):
        kernels.FORWARD_BLOCK = kernels.BACKWARD_BLOCK = block
        kernels.NUM_WARPS = num_warps
        forward = seconds_of(lambda: kernels.statistics(logits, labels, 1.0))
        backward = seconds_of(
            lambda: kernels.gradient(logits, labels, 1.0, ones, ones, ones, ones, torch.bfloat16)
        )
        yield Row(
            what=f"fused: forward, blocks of {block}, {num_warps} warps",
            value=1e3 * forward,
            unit="ms",
            note=f"backward {1e3 * backward:.2f} ms"
            + (" (as configured)" if (block, num_warps) == configured[1:] else ""),
        )
    kernels.FORWARD_BLOCK, kernels.BACKWARD_BLOCK, kernels.NUM_WARPS = configured


def _head(forms: dict[str, Any], device: torch.device) -> Iterator[Row]:
    """Measures the whole head of a 1.5B policy, with the matrix products."""
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
        seconds = seconds_of(once)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        yield Row(what=what, value=1e3 * seconds, unit="ms", note=f"peak {peak:.0f} MiB")


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
