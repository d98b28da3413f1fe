"""What a resumed stage may not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_prorl.compose import write_resolved
from nemo_prorl.config import AlgorithmConfig, ConfigError, DataConfig, ModelConfig, RunConfig
from nemo_prorl.run import check_same_run


def begun(run_dir: Path) -> None:
    write_resolved(RunConfig(data=DataConfig(train={"a.parquet": 1.0})), run_dir / "stages" / "main.yaml")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 2}, "seed"),
        ({"model": ModelConfig(path="other")}, "model"),
        ({"data": DataConfig(train={"b.parquet": 1.0})}, "data"),
    ],
)
def test_other_prompts_another_order_or_another_model_are_refused(
    tmp_path: Path, changes: dict[str, object], key: str
) -> None:
    begun(tmp_path)
    config = RunConfig(**({"data": DataConfig(train={"a.parquet": 1.0})} | changes))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"was begun with {key}="):
        check_same_run(config, tmp_path)


def test_what_may_be_tuned_on_the_way_passes(tmp_path: Path) -> None:
    begun(tmp_path)
    config = RunConfig(data=DataConfig(train={"a.parquet": 1.0}), algorithm=AlgorithmConfig(kl_beta=0.1))
    check_same_run(config, tmp_path)
    check_same_run(config, tmp_path / "never begun")
