"""Tests of the imports of core.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from nemo_prorl.config import ConfigError
try:
    import nemo_prorl.engines.megatron.core
except ConfigError as error:
    print(error)
"""


@pytest.mark.medium
def test_a_transformer_engine_that_does_not_load_is_refused_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine/__init__.py").write_text("raise OSError('undefined symbol: cublasLt')\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        f"Megatron-Core or Transformer Engine in {sys.prefix} cannot be imported (undefined symbol: cublasLt): "
        "install what requirements/cuda.txt names (make setup-cuda).\n"
    )
