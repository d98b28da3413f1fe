"""Tests of which package creates a run's loggers, given what is installed. tests/nemo uses NeMo itself."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, ExpManagerConfig, UseNemo
from nemo_prorl.config.compose import compose
from nemo_prorl.run_folder.nemo_toolkit import check_nemo, wants_nemo

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"


def install(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    """Installs a version of nemo-toolkit; none if it is empty."""

    def version(package: str) -> str:
        if not found:
            raise PackageNotFoundError(package)
        return found

    monkeypatch.setattr("nemo_prorl.run_folder.nemo_toolkit.version", version)


def test_with_nemo_installed_its_exp_manager_makes_the_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "3.0.0")
    assert wants_nemo(ExpManagerConfig())
    assert wants_nemo(ExpManagerConfig(use_nemo=UseNemo.always))
    assert not wants_nemo(ExpManagerConfig(use_nemo=UseNemo.never))


@pytest.mark.parametrize("found", ["", "2.7.3"])
def test_without_nemo_lightning_makes_the_loggers_or_one_sentence_says_why_not(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    install(monkeypatch, found)
    assert not wants_nemo(ExpManagerConfig())
    says = f"is {found} and not 3" if found else "is not installed"
    for check in (check_nemo, wants_nemo):
        with pytest.raises(ConfigError, match=f"^exp_manager.use_nemo=always, but nemo-toolkit {says}: see"):
            check(ExpManagerConfig(use_nemo=UseNemo.always))


@pytest.mark.parametrize("field", ["create_early_stopping_callback", "resume_if_exists", "typo"])
def test_a_field_of_nemos_that_would_do_nothing_or_harm_is_refused(
    monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    install(monkeypatch, "3.0.0")
    with pytest.raises(ConfigError, match=f"nemo_kwargs has {field}, .*files_to_copy"):
        check_nemo(ExpManagerConfig(use_nemo=UseNemo.always, nemo_kwargs={field: True}))


def test_fields_of_nemos_need_nemo() -> None:
    overrides = ["exp_manager.nemo_kwargs.files_to_copy=[a.txt]"]
    with pytest.raises(ConfigError, match=r"use_nemo=auto: write use_nemo=always"):
        compose("train", overrides, conf_dir=CONF_DIR)
    config = compose("train", [*overrides, "exp_manager.use_nemo=always"], conf_dir=CONF_DIR)
    assert config.exp_manager.nemo_kwargs == {"files_to_copy": ["a.txt"]}
