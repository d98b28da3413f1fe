"""A job that was given GPUs computes on them, or says why it cannot; nobody needs a GPU to find out."""

from __future__ import annotations

import os
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


def slurm_gives(machine: pytest.MonkeyPatch, num_gpus: str) -> None:
    machine.setenv("SLURM_JOB_ID", "7")
    machine.setenv("SLURM_GPUS_ON_NODE", num_gpus)


def test_a_machine_without_gpus_trains_on_its_cpu(machine: pytest.MonkeyPatch) -> None:
    environment.choose_device(Device.auto)
    slurm_gives(machine, "0")
    environment.choose_device(Device.auto)
    slurm_gives(machine, "")
    environment.choose_device(Device.auto)


def test_a_workstation_with_a_gpu_and_the_laptop_environment_trains_on_its_cpu(
    machine: pytest.MonkeyPatch,
) -> None:
    machine.setattr(environment, "_has_device_files", lambda: True)
    machine.setattr(environment, "_is_cpu_build", lambda: True)
    environment.choose_device(Device.auto)
    assert not environment.has_cuda()


@pytest.mark.parametrize("given", ["8", "gpu:8", "gpu:h100:8"])
def test_a_job_with_gpus_refuses_a_torch_without_cuda(machine: pytest.MonkeyPatch, given: str) -> None:
    slurm_gives(machine, given)
    machine.setattr(environment, "_has_device_files", lambda: True)
    machine.setattr(environment, "_is_cpu_build", lambda: True)
    with pytest.raises(
        ConfigError, match=r"8 GPU\(s\) per node, but torch .* without CUDA.*PYTHON=.*trainer.device=cpu"
    ):
        environment.choose_device(Device.auto)


@pytest.mark.parametrize(
    ("hidden", "reason"), [(None, "no /dev/nvidia0"), ("-1", "CUDA_VISIBLE_DEVICES='-1' hides them")]
)
def test_a_job_with_gpus_refuses_a_node_that_shows_none(
    machine: pytest.MonkeyPatch, hidden: str | None, reason: str
) -> None:
    slurm_gives(machine, "8")
    if hidden is not None:
        machine.setattr(environment, "_has_device_files", lambda: True)
        machine.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(ConfigError, match=reason):
        environment.choose_device(Device.auto)


def test_a_job_with_gpus_may_be_told_to_use_the_cpu(machine: pytest.MonkeyPatch) -> None:
    slurm_gives(machine, "8")
    machine.setattr(environment, "_has_device_files", lambda: True)
    machine.setenv("CUDA_VISIBLE_DEVICES", "0")  # so that the fixture puts it back
    assert environment.has_cuda()
    environment.choose_device(Device.cpu)
    assert not environment.has_cuda()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_cuda_may_be_demanded_outside_slurm(machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"trainer.device=cuda asks for a GPU, but there is no /dev/nvidia0"
    ):
        environment.choose_device(Device.cuda)
    machine.setattr(environment, "_has_device_files", lambda: True)
    environment.choose_device(Device.cuda)


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
