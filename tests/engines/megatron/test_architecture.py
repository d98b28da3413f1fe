"""What is read from a config.json, against the weights that belong to it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors import safe_open

from nemo_prorl.engines.megatron.architecture import read_architecture
from tests.engines.conftest import FAMILIES


@pytest.mark.parametrize("suffix", ["", "_tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_the_weights_file_has_them(
    hf_models: Mapping[str, Path], family: str, suffix: str
) -> None:
    folder = hf_models[family + suffix]
    with safe_open(folder / "model.safetensors", "np") as file:
        sizes = [file.get_tensor(name).size for name in file.keys()]  # noqa: SIM118 - no mapping
    assert read_architecture(folder).num_parameters == sum(sizes)
