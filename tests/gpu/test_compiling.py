"""What Triton and NVIDIA's assembler make of kernels for Hopper: what only they refuse would otherwise be found on the
first GPU. Skipped without the package triton (`make test-kernels`)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.engines import environment
from tests.conftest import ROOT

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "needs the package triton, which the CPU lock leaves out: docs/gpu.md", allow_module_level=True
    )

REGISTERS = 64
"""The most with which four blocks of 256 threads share the 65,536 registers of a multiprocessor."""


def compiled(what: str, tmp_path: Path, **environ: str) -> list[dict[str, Any]]:
    """Returns what tests/gpu/compiling.py prints, in a process of its own: Triton reads its variables on import."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiling", what],
        cwd=ROOT,
        env=inherited | {"TRITON_CACHE_DIR": str(tmp_path)} | environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kernels_keep_their_numbers_in_registers(tmp_path: Path) -> None:
    found = compiled("kernels", tmp_path)
    assert len(found) == 12
    for kernel in found:
        assert kernel["spilled"] == 0, kernel
        assert kernel["registers"] <= REGISTERS, kernel
        # Memory is what limits them: 16 bytes at a time, if the vocabulary's shard is a multiple of 16.
        assert bool(kernel["wide loads"]) is kernel["aligned"], kernel
        if kernel["kernel"] == "_gradient":
            assert bool(kernel["wide stores"]) is kernel["aligned"], kernel


def test_our_setting_keeps_products_of_fp32_numbers_in_fp32(tmp_path: Path) -> None:
    """Of vLLM's attention, which Triton by default would compute in TF32 (engines/environment.py)."""
    (usual,) = compiled("product", tmp_path / "usual")
    (ours,) = compiled("product", tmp_path / "ours", **environment.CUDA_ONLY)
    assert usual["tf32"] > 0
    assert (ours["tf32"], ours["fp32"] > usual["fp32"]) == (0, True)


def test_attention_of_vllm_names_no_precision_of_its_own() -> None:
    """Else the setting would not reach it."""
    package = importlib.util.find_spec("vllm")
    assert package
    assert package.origin
    text = (Path(package.origin).parent / "v1/attention/ops/triton_unified_attention.py").read_text()
    assert len(re.findall(r"tl\.dot\(", text)) == 4
    assert not re.search(r"input_precision|allow_tf32", text)
