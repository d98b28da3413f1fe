"""vLLM's wheel for CUDA: what it decides on an H100 from the sampler's arguments, and that it is the same Python as the
CPU's wheel, with which everything else here is tested. Skipped without it (`make test-cuda-build`)."""

from __future__ import annotations

import filecmp
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.engines import environment
from tests.conftest import ROOT
from tests.gpu.vllm_on_h100 import VARIANTS

try:
    importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("needs vLLM's wheel for CUDA: make test-cuda-build", allow_module_level=True)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("model")
    command = [sys.executable, "-m", "tests.gpu.vllm_on_h100", str(folder)]
    # tests/conftest.py has set the variables of a CPU, which child processes would inherit.
    environ = {name: value for name, value in os.environ.items() if name not in environment.CPU_ONLY}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


USUAL = {
    "runner V2": True,
    "asynchronous": True,
    "executor": "ExecutorWithExternalLauncher",
    "tokens": 16_384,
    "sequences": 1024,
    "cache": "auto",
    "graphs": "FULL_AND_PIECEWISE",
    "largest graph": 1024,
    "sleeps": False,
    "head": "torch.float32",
    "type": "torch.bfloat16",
    "logprobs": "processed_logprobs",
    "attention": "FLASH_ATTN",
    "tensor parallel": 1,
}
EAGER = {"graphs": "NONE", "largest graph": 0}
FP32 = {"type": "torch.float32", "attention": "TRITON_ATTN"}
DECIDED: dict[str, dict[str, Any]] = {
    "fp32": FP32 | EAGER,
    "fp32, graphs": FP32,
    "bf16": EAGER,
    "bf16, graphs": {},
    "sleep": {"sleeps": True},
    "ahead": {},
    "fp8 cache": {"cache": "fp8", "tokens": 32_768},
    "full graphs": {"graphs": "FULL_DECODE_ONLY"},
    "64 sequences": {"sequences": 64},
    "TP2": {"tensor parallel": 2},
    "TP4, two heads of keys": {"tensor parallel": 4},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_vllm_accepts_every_variant_of_the_page(name: str, decided: dict[str, Any]) -> None:
    found, wanted = decided[name], USUAL | DECIDED[name]
    if name == "64 sequences":  # it captures no graphs of more sequences than there are
        assert found.pop("largest graph") <= 128
        wanted.pop("largest graph")
    assert found == wanted


def test_both_wheels_hold_the_same_python() -> None:
    """Byte by byte, but for the version, the platform's name and help for Triton on CPUs."""
    (ours,) = (ROOT / ".venv").glob("lib/python3.*/site-packages/vllm")
    theirs = Path(str(importlib.metadata.distribution("vllm").locate_file("vllm")))
    common = {path.relative_to(ours) for path in ours.rglob("*.py")} & {
        path.relative_to(theirs) for path in theirs.rglob("*.py")
    }
    assert len(common) > 1000
    differing = {str(path) for path in common if not filecmp.cmp(ours / path, theirs / path, shallow=False)}
    assert differing <= {"_version.py", "platforms/__init__.py", "utils/cpu_triton_utils.py"}
    needed = {"distributed/weight_transfer/base.py", "model_executor/model_loader/reload/layerwise.py"}
    assert needed <= set(map(str, common))


def test_the_sampler_imports_with_the_wheel_for_cuda() -> None:
    code = (
        "from nemo_prorl.engines import environment; environment.prepare(); "
        "import torch, vllm._C_stable_libtorch, nemo_prorl.engines.vllm.sampler as s; print(s.weight_transfer.BACKEND)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["in_process"], done.stderr
