"""Tests of which package creates a run's loggers, given what is installed. tests/nemo uses NeMo itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, UseNemo
from nemo_prorl.config.compose import compose
from nemo_prorl.run_folder.nemo_toolkit import check_nemo, wants_nemo

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
USABLE = {"nemo-toolkit": "3.0.0", "lightning": "2.5.6"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions by package, which the test changes."""
    packages = dict(USABLE)

    def version(package: str) -> str:
        if package not in packages:
            raise PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr("nemo_prorl.run_folder.nemo_toolkit.version", version)
    return packages


@pytest.mark.parametrize("lightning", ["2.4.0", "2.5.6", "2.5.0.post0"])
def test_with_nemo_installed_its_exp_manager_makes_the_loggers(
    installed: dict[str, str], lightning: str
) -> None:
    installed["lightning"] = lightning
    assert wants_nemo(ExpManagerConfig())
    assert wants_nemo(ExpManagerConfig(use_nemo=UseNemo.always))
    assert not wants_nemo(ExpManagerConfig(use_nemo=UseNemo.never))


@pytest.mark.parametrize(
    ("package", "found", "says"),
    [
        ("nemo-toolkit", "", "nemo-toolkit is not installed"),
        ("nemo-toolkit", "2.7.3", "nemo-toolkit is 2.7.3"),
        ("lightning", "", "lightning is not installed"),
        ("lightning", "2.6.0", "lightning is 2.6.0"),
        ("lightning", "2.10.1", "lightning is 2.10.1"),
        ("lightning", "2.3.3", "lightning is 2.3.3"),
    ],
)
def test_without_nemo_lightning_makes_the_loggers_or_one_sentence_says_why_not(
    installed: dict[str, str], package: str, found: str, says: str
) -> None:
    installed.pop(package)
    if found:
        installed[package] = found
    assert not wants_nemo(ExpManagerConfig())
    for check in (check_nemo, wants_nemo):
        with pytest.raises(
            ConfigError, match=f"^exp_manager.use_nemo=always, but {says}.*write auto"
        ) as caught:
            check(ExpManagerConfig(use_nemo=UseNemo.always))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "field", ["create_early_stopping_callback", "ema", "resume_if_exists", "explicit_log_dir", "typo"]
)
def test_a_field_of_nemos_that_would_do_nothing_or_harm_is_refused(
    installed: dict[str, str], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"nemo_kwargs has {field}, .*files_to_copy"):
        check_nemo(ExpManagerConfig(use_nemo=UseNemo.always, nemo_kwargs={field: True}))


def test_fields_of_nemos_need_nemo() -> None:
    overrides = ["exp_manager.nemo_kwargs.files_to_copy=[a.txt]"]
    with pytest.raises(ConfigError, match=r"use_nemo=auto: write use_nemo=always"):
        compose("train", overrides, conf_dir=CONF_DIR)
    config = compose("train", [*overrides, "exp_manager.use_nemo=always"], conf_dir=CONF_DIR)
    assert config.exp_manager.nemo_kwargs == {"files_to_copy": ["a.txt"]}


def test_nothing_heavy_is_imported_to_decide() -> None:
    """NeMo's import takes seconds, which a check of the configuration must not wait for."""
    code = (
        "import sys; from nemo_prorl.run_folder import nemo_toolkit; from nemo_prorl.config import ExpManagerConfig\n"
        "nemo_toolkit.wants_nemo(ExpManagerConfig())\n"
        "sys.exit(not {'nemo', 'lightning', 'torch'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
