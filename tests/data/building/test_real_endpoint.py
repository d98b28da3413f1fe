"""Tests the agreement filter with vLLM's own OpenAI-compatible server and a random model, whose answers are
nonsense."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, DataBuildConfig
from nemo_prorl.data.building.chat import EndpointFailed, ask_all
from tests.data.building.conftest import Building
from tests.data.building.test_scp116k import RECORDS

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.engines.vllm.conftest import build_model

    folder = tmp_path_factory.mktemp("served")
    build_model(folder / "model", seed=1)
    (folder / "template.jinja").write_text(TEMPLATE)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    # Not by `-m`, because the engine's process would then import the whole server a second time.
    start = "from vllm.entrypoints.launchers.api_server.entry import main; main()"
    command = [
        sys.executable, "-c", start, "--model", str(folder / "model"),
        "--port", str(port), "--host", "127.0.0.1",
        "--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32",
        "--max-model-len", "4096", "--max-num-seqs", "8", "--chat-template", str(folder / "template.jinja"),
    ]  # fmt: skip
    log = folder / "server.log"
    with log.open("wb") as output:
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + 400
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.slow
def test_a_real_server_is_asked_and_its_nonsense_stands_apart(
    endpoint: str, building: Building, tmp_path: Path
) -> None:
    options = {"endpoint": endpoint, "model": "tiny", "max_reply_tokens": 16}
    with pytest.raises(ConfigError, match=r"none of 10 records became a row \(.*undecided_extraction"):
        building.run("scp116k", RECORDS, **options)
    settings = DataBuildConfig(**options)
    first = ask_all(["2+2?", "3+3?"], settings, tmp_path / "a.sqlite", "asking")
    assert all(isinstance(reply, str) and reply for reply in first)
    assert ask_all(["2+2?", "3+3?"], settings, tmp_path / "b.sqlite", "asking") == first  # greedy
    too_long = ask_all(["x" * 5000, "2+2?"], settings, tmp_path / "c.sqlite", "asking")
    assert too_long == [None, first[0]]
    with pytest.raises(EndpointFailed, match="404"):
        ask_all(["2+2?"], DataBuildConfig(endpoint=endpoint, model="other"), tmp_path / "d.sqlite", "asking")
