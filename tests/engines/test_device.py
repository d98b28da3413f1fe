"""A job that was given GPUs computes on them, or says why it cannot; nobody needs a GPU to find out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nemo_prorl.config import ConfigError, Device
from nemo_prorl.engines import device, environment


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A laptop without GPU, outside Slurm, whose torch was built for CUDA."""
    for name in ("SLURM_JOB_ID", "SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "_is_cpu_build", lambda: False)
    monkeypatch.setattr(environment, "_has_device_files", lambda: False)
    return monkeypatch


FILES, CPU_BUILD = {"_has_device_files": True}, {"_is_cpu_build": True}
GPUS_OF_SLURM = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}


@pytest.mark.parametrize(
    ("device", "slurm", "hidden", "facts", "refusal"),
    [
        (Device.auto, {}, None, {}, ""),
        (Device.auto, GPUS_OF_SLURM | {"SLURM_GPUS_ON_NODE": "0"}, None, {}, ""),
        (Device.auto, GPUS_OF_SLURM | {"SLURM_GPUS_ON_NODE": ""}, None, {}, ""),
        # A workstation with a GPU, and the environment for laptops.
        (Device.auto, {}, None, FILES | CPU_BUILD, ""),
        (
            Device.auto,
            GPUS_OF_SLURM,
            None,
            FILES | CPU_BUILD,
            r"8 GPU\(s\) per node, but torch .* without CUDA.*PYTHON=",
        ),
        (
            Device.auto,
            GPUS_OF_SLURM | {"SLURM_GPUS_ON_NODE": "gpu:h100:8"},
            None,
            FILES | CPU_BUILD,
            r"8 GPU\(s\) per",
        ),
        (Device.auto, GPUS_OF_SLURM, None, {}, "no /dev/nvidia0.*trainer.device=cpu"),
        (Device.auto, GPUS_OF_SLURM, "-1", FILES, "CUDA_VISIBLE_DEVICES='-1' hides them"),
        (Device.cpu, GPUS_OF_SLURM, "0", FILES, ""),
        (Device.cuda, {}, None, {}, "trainer.device=cuda asks for a GPU, but there is no /dev/nvidia0"),
        (Device.cuda, {}, None, FILES, ""),
    ],
)
def test_a_job_that_has_or_wants_gpus_gets_them_or_a_sentence(
    machine: pytest.MonkeyPatch,
    device: Device,
    slurm: dict[str, str],
    hidden: str | None,
    facts: dict[str, bool],
    refusal: str,
) -> None:
    for name, value in slurm.items():
        machine.setenv(name, value)
    machine.setenv("CUDA_VISIBLE_DEVICES", hidden or "")  # so that it is put back
    if hidden is None:
        machine.delenv("CUDA_VISIBLE_DEVICES")
    for name, fact in facts.items():
        machine.setattr(environment, name, lambda fact=fact: fact)
    if refusal:
        with pytest.raises(ConfigError, match=refusal):
            environment.choose_device(device)
        return
    environment.choose_device(device)
    assert environment.has_cuda() == (device is Device.cuda)


def test_a_driver_that_is_too_old_is_named(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: 12\n"
    )
    machine.setattr(environment, "_has_device_files", lambda: True)
    machine.setattr(device, "DRIVER_FILE", version)
    machine.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"NVIDIA driver 550\.54\.15: CUDA 13 needs driver 580"):
        device.check_gpus()
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n")
    assert device.driver_version() == "580.65.06"
    version.unlink()
    assert device.driver_version() == "unknown"


def test_more_ranks_than_gpus_on_a_node_are_a_mistake(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(environment, "_has_device_files", lambda: True)
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.cuda, "device_count", lambda: 4)
    machine.setenv("LOCAL_RANK", "3")
    device.check_gpus()
    machine.setenv("LOCAL_RANK", "4")
    with pytest.raises(ConfigError, match=r"LOCAL_RANK=4, but torch sees 4 GPU\(s\).*one rank per GPU"):
        device.check_gpus()


def test_an_environment_that_samples_on_gpus_only_is_refused_without_one(machine: pytest.MonkeyPatch) -> None:
    """vLLM itself would stop with "Device string must not be empty"."""
    machine.setattr(device, "samples_on_gpus_only", lambda: True)
    with pytest.raises(ConfigError, match=r"was built for CUDA, and no GPU is used here: .* `make setup`"):
        device.check_gpus()
    device.check_gpus(samples=False)  # `train --check` on a login node
    machine.setattr(environment, "_has_device_files", lambda: True)
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.cuda, "device_count", lambda: 1)
    device.check_gpus()
