"""Tests of `make gpu-check`: its verdicts, its description of a machine, its oracle, and its parts. On CPU small shapes
run; with a GPU the same tests run the real ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu_check import __main__ as check
from benchmarks.gpu_check import kernel, policies, policy, speed
from benchmarks.gpu_check import machine as machines
from benchmarks.gpu_check.rows import Row, line
from nemo_prorl.cluster.scale.known import GPUS
from nemo_prorl.cluster.scale.roofline import operations
from nemo_prorl.config import LayerSpec

ROOT = Path(__file__).resolve().parents[2]


def machine(**changes: Any) -> machines.Machine:
    """Returns the description of a machine with eight H100s and every package."""
    settings: dict[str, Any] = {
        "device": "NVIDIA H100 80GB HBM3",
        "num_gpus": 8,
        "capability": (9, 0),
        "memory_gib": 79.1,
        "driver": "580.65.06",
        "cuda": "13.0",
        "versions": dict.fromkeys(machines.PACKAGES, "1.0"),
    }
    return machines.Machine(**(settings | changes))


def row(**changes: Any) -> Row:
    settings: dict[str, Any] = {
        "what": "error",
        "value": 1.0,
        "unit": "nats",
        "limit": 1.0,
    }
    return Row(**(settings | changes))


def test_a_limit_is_the_largest_value_that_passes() -> None:
    assert row().passed is True
    assert row(value=1.0001).passed is False
    assert row(value=math.nan).passed is False
    assert row(value=9.0, limit=None).passed is None
    assert line(row(value=math.nan)).endswith("FAILED")
    assert line(row(value=2.0, means="look at the cable")).endswith("FAILED\n         -> look at the cable")
    assert "cable" not in line(row(means="look at the cable"))


@pytest.mark.parametrize(
    ("device", "sheet"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_only_gpus_of_the_table_have_a_data_sheet(device: str, sheet: str | None) -> None:
    assert machine(device=device).data_sheet is (GPUS[sheet] if sheet else None)


def test_what_a_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "has_transformer_engine", lambda: True)
    assert machine().lacks("gpu", "te", "vllm") == ""
    assert machine(num_gpus=0).lacks("vllm", "gpu") == "no CUDA device"
    assert machine(versions=machine().versions | {"vllm": ""}).lacks("gpu", "vllm") == "no package vllm"
    monkeypatch.setattr(machines, "has_transformer_engine", lambda: False)
    assert "Transformer Engine" in machine().lacks("gpu", "te")


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str, rows: Any) -> int:
    """Returns main() with one invented part, which yields `rows` and raises those that are exceptions."""

    def run(_machine: machines.Machine, _workdir: Path) -> Iterator[Row]:
        for one in rows:
            if isinstance(one, Exception):
                raise one
            yield one

    module = ModuleType("benchmarks.gpu_check.made_up")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parts = (
        check.Part(name="made_up", shows="nothing", needs=()),
        check.Part(name="elsewhere", shows="nothing", needs=("nowhere",)),
    )
    monkeypatch.setattr(check, "PARTS", parts)
    monkeypatch.setattr(machines, "PACKAGES", machines.PACKAGES | {"nowhere": ("no-such-distribution",)})
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments])
    return check.main()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row()], 0),
        ([row(value=2.0)], 1),
        ([row(value=2.0, limit=None)], 0),
        ([row(), RuntimeError("the device is gone")], 1),
    ],
)
def test_exit_code_and_record(
    rows: list[Any],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new" / "check.json"
    assert run_main(monkeypatch, "--out", str(out), rows=rows) == code
    record = json.loads(out.read_text())
    assert record["not_run"] == {"elsewhere": "no package nowhere"}
    assert [one["passed"] for one in record["rows"]] == [one.passed for one in rows if isinstance(one, Row)]
    assert {one["part"] for one in record["rows"]} == {"made_up"}
    assert record["machine"]["versions"]["torch"] == version("torch")
    raised = [one for one in rows if isinstance(one, Exception)]
    assert list(record["failures"]) == ["made_up"] * len(raised)
    said = capsys.readouterr().out
    assert "elsewhere not run: no package nowhere" in said


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as refused:
        run_main(monkeypatch, "--only", "typo", rows=[])
    assert refused.value.code == 2


def test_operations_are_those_that_torch_counts() -> None:
    """The plain PyTorch model also computes the masked half of the attention."""
    from torch.utils.flop_counter import FlopCounterMode

    lengths = np.array([96, 17])
    random = {name: torch.randn(shape) for name, shape in policies.hf_shapes(policies.TINY).items()}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in lengths.tolist():
            policies._logits(
                {name: t.double() for name, t in random.items()}, policies.TINY, torch.arange(length)
            )
    a = policies.TINY
    masked = 4 * float((lengths.astype(float) ** 2).sum()) / 2 * a.num_heads * a.head_dim * a.num_layers
    vectors = sum(random[name].numel() for name in random if random[name].ndim == 1)
    counted = counter.get_total_flops() - masked
    attended, num_tokens = float((lengths.astype(float) ** 2).sum()) / 2, float(lengths.sum())
    ours = sum(operations(a, num_tokens=num_tokens, response_tokens=num_tokens, attended=attended).forward)
    # Entries of norms and biases are counted like a matrix's; their share is far below a hundredth.
    assert ours - counted == pytest.approx(2 * vectors * num_tokens, rel=1e-6)
    assert ours == pytest.approx(counted, rel=1e-2)


def test_errors_are_seen() -> None:
    """A gradient that is twice too large has an error of 1, and a log-probability that is off by 0.5 one of 0.5."""
    batch = policy.train_batch(policy.token_batch(num_rows=2, longest=12))
    mask = batch.tokens.response_mask_BT
    zeros = np.zeros(mask.shape, dtype=np.float32)
    right = policies.Measured(logprobs_BT=zeros, entropy_BT=zeros, gradients={"w": torch.ones(3).double()})
    wrong = policies.Measured(
        logprobs_BT=zeros + 0.5, entropy_BT=zeros - 0.25, gradients={"w": 2 * torch.ones(3).double()}
    )
    assert policy.compare(right, right, batch) == (0.0, 0.0, 0.0)
    assert policy.compare(wrong, right, batch) == pytest.approx((0.5, 0.25, 1.0))


def test_what_only_a_gpu_runs_of_the_kernel_part_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs it on CPU with small shapes and the plain form instead of the fused one, because a mistake there should not
    wait for the first GPU."""
    sizes = {"VOCAB": 257, "NUM_TOKENS": 8, "HEAD_TOKENS": 8, "HIDDEN_SIZE": 16, "COPIED_BYTES": 64}
    for name, value in sizes.items():
        monkeypatch.setattr(kernel, name, value)
    for name in ("synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 2**20)
    monkeypatch.setattr(machines.Machine, "torch_device", torch.device("cpu"))
    plain = kernel.softmax_plain
    stand_in = SimpleNamespace(
        statistics=plain.statistics,
        gradient=plain.gradient,
        FORWARD_BLOCK=4096,
        BACKWARD_BLOCK=4096,
        NUM_WARPS=8,
    )
    forms = {"plain": plain, "fused": stand_in}
    rows = [*kernel._bandwidth(forms, machine()), *kernel._tuning(stand_in, machine())]
    rows += kernel._head({"plain": plain}, torch.device("cpu"))
    assert all(row.value > 0 for row in rows)
    assert sum("as configured" in row.note for row in rows) == 1
    assert (stand_in.FORWARD_BLOCK, stand_in.BACKWARD_BLOCK, stand_in.NUM_WARPS) == (4096, 4096, 8)
    assert {row.what for row in rows if row.unit == "x"} == {
        f"fused: {which}, times as fast as plain" for which in ("forward", "backward")
    }
    assert "of the data sheet's" in next(row.note for row in rows if row.what.startswith("fused: forward, 8"))


@pytest.mark.slow
def test_what_only_a_gpu_runs_of_the_speed_part_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Likewise, with a tiny policy instead of the 1.5B."""
    monkeypatch.setattr(speed, "shape_of", lambda name: policies.TINY)
    monkeypatch.setattr(speed, "LENGTHS", [24, 17])
    for name in ("synchronize", "reset_peak_memory_stats", "max_memory_allocated", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: 2**30)
    rows = list(speed.run(machine(), tmp_path))
    assert [row.what for row in rows] == [
        "local bf16: log-probabilities",
        "local bf16: update",
        "refit, the trainer's side",
    ]
    assert all(row.value > 0 for row in rows)
    assert rows[1].note.endswith("of the bf16 peak, 1.0 GiB")


MISSING = [
    "vllm",
    "hydra",
    "omegaconf",
    "transformers",
    "safetensors",
    "lightning",
    "pytest",
    "datasets",
    "openai",
]
"""Packages that a machine with only torch and megatron-core may lack."""
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING}))
sys.argv[0] = "gpu_check"
runpy.run_module("benchmarks.gpu_check", run_name="__main__")
"""


@pytest.mark.slow
def test_kernel_and_policy_pass_with_torch_and_megatron_only(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    command = [sys.executable, "-c", BARE, "--only", "kernel", "policy", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    seen = {one["what"].partition(":")[0] for one in record["rows"]}
    expected = {"plain", "local fp32", "local bf16"}
    here = machines.look()
    expected |= {"fused"} if not here.lacks("gpu", "triton") else set()
    expected |= {"TE bf16, packed"} if not here.lacks("gpu", "te") else set()
    assert expected <= seen
    assert not record["failures"]
    assert all(one["means"] for one in record["rows"] if one["limit"] is not None)


@pytest.mark.usefixtures("gpu")
def test_every_variant_that_can_run_here_does(tmp_path: Path) -> None:
    here = machines.look()
    folder = policies.folder_of(policies.TINY, tmp_path)
    left_out = [v for v in policy.VARIANTS if policy.left_out(here, v, policy.configured(folder, v))]
    if not here.lacks("te"):
        assert all(variant.spec is LayerSpec.transformer_engine for variant in left_out)


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_all_parts_pass(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
