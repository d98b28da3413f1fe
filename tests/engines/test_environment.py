"""The command line prepares the environment before torch exists in the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nemo_prorl.engines import environment

SCRIPT = """
import sys
from nemo_prorl.engines import environment
environment.prepare()
assert not {"torch", "vllm", "numpy", "transformers"} & set(sys.modules), "too heavy"
import os
print(os.environ["OMP_NUM_THREADS"], os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"])
from vllm.plugins import load_plugins_by_group
print(load_plugins_by_group("vllm.general_plugins"))
"""


def test_prepare_is_light_keeps_what_the_user_set_and_loads_no_plugin_of_another_package() -> None:
    ours = environment.ALWAYS | environment.CPU_ONLY | environment.CUDA_ONLY
    inherited = {k: v for k, v in os.environ.items() if k not in ours}
    for users, threads in (({}, "1"), ({"OMP_NUM_THREADS": "2"}, "2")):
        command, variables = (
            [sys.executable, "-c", SCRIPT],
            {**inherited, "CUDA_VISIBLE_DEVICES": "", **users},
        )
        done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
        assert done.stdout.split("\n")[:2] == [f"{threads} 0", "{}"]


def test_cuda_machines_keep_their_threads_and_their_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.ALWAYS | environment.CPU_ONLY | environment.CUDA_ONLY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    environment.prepare()
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert not environment.CPU_ONLY.keys() & os.environ.keys()
    assert os.environ["TRITON_F32_DEFAULT"] == "ieee"
    for name in environment.ALWAYS | environment.CUDA_ONLY:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("has_headers", [True, False])
def test_transformer_engine_is_told_where_the_headers_of_cuda_are(
    has_headers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVTE_CUDA_INCLUDE_DIR", "")
    monkeypatch.delenv("NVTE_CUDA_INCLUDE_DIR")
    headers = tmp_path / "nvidia/cu13/include"
    headers.mkdir(parents=True)
    if has_headers:
        (headers / "cuda_runtime.h").touch()
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda _name: str(tmp_path))
    environment.prepare()
    assert os.environ.get("NVTE_CUDA_INCLUDE_DIR") == (str(headers) if has_headers else None)


@pytest.mark.parametrize(
    ("tensor_parallel", "ahead", "users", "found"),
    [(2, False, None, "1"), (2, True, None, None), (1, False, None, None), (2, False, "8", "8")],
)
def test_launches_are_in_order_where_megatron_overlaps_and_nobody_samples_beside(
    tensor_parallel: int, ahead: bool, users: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.setenv(name, users or "")
    if users is None:
        monkeypatch.delenv(name)
    environment.order_launches(tensor_parallel=tensor_parallel, ahead=ahead)
    assert os.environ.get(name) == found


EXACT = "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:1"
"""With another limit for what is cached, torch 2.13 would hand out freed blocks that are too small."""


@pytest.mark.parametrize(
    ("tensor_parallel", "cuda", "users", "found"),
    [
        (1, True, {}, f"{EXACT},expandable_segments:True"),
        (2, True, {}, EXACT),
        (1, False, {}, None),
        (1, True, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, "max_split_size_mb:512"),
        (1, True, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, None),
    ],
)
def test_segments_grow_where_no_engine_shares_memory_by_ipc(
    tensor_parallel: int,
    cuda: bool,
    users: dict[str, str],
    found: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "has_cuda", lambda: cuda)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, users.get(name, ""))  # so that what is set below is taken back
        if name not in users:
            monkeypatch.delenv(name)
    environment.set_allocator(sampler_tensor_parallel=tensor_parallel)
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == found


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setattr(environment.Path, "glob", lambda self, pattern: iter(["/dev/nvidia0"]))
    monkeypatch.setattr(environment.importlib.metadata, "version", lambda package: "2.13.0+cpu")
    assert not environment.has_cuda(), "a torch without CUDA cannot use them either"
    monkeypatch.setattr(environment.importlib.metadata, "version", lambda package: "2.13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment.has_cuda()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not environment.has_cuda()


@pytest.mark.parametrize(
    ("home", "users", "found"),
    [
        ("writable", None, None),
        ("file", None, "ours"),
        ("file", "/mine", "/mine"),
        ("~unknown", None, "ours"),
    ],
)
def test_vllms_caches_go_elsewhere_where_there_is_no_home(
    home: str, users: str | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "writable").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", home if home.startswith("~") else str(tmp_path / home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", users or "")
    if users is None:
        monkeypatch.delenv("VLLM_CACHE_ROOT")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment.prepare()
    wanted = f"{tmp_path}/vllm-{os.getuid()}" if found == "ours" else found
    assert os.environ.get("VLLM_CACHE_ROOT") == wanted
    if found == "ours":
        assert Path(wanted).stat().st_mode & 0o777 == 0o700
        monkeypatch.setattr(os, "getuid", lambda: 4321)  # another user's name is taken
        (tmp_path / "vllm-4321").mkdir()
        del os.environ["VLLM_CACHE_ROOT"]
        environment.prepare()
        assert Path(os.environ["VLLM_CACHE_ROOT"]).name not in ("vllm-4321", Path(wanted).name)
    assert not (tmp_path / home).is_dir() or home == "writable"
