"""Engines inside a job of two ranks: one each with prompts of its own, or one that both share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("rank_program.py")
PROJECT = PROGRAM.parents[3]


def launch(tmp_path, models_dir, tensor_parallel, prompts):
    """Runs the program on two ranks, as torchrun would; returns what each rank got."""
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    result = tmp_path / "result.json"
    arguments = [
        models_dir / "base",
        models_dir / "other",
        tensor_parallel,
        tmp_path / "prompts.json",
        result,
    ]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            env=os.environ | job | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": str(PROJECT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    return json.loads(result.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_two_ranks_sample_what_one_does(
    sampler, weights_of, make_prompt, draw, models_dir, tmp_path, tensor_parallel
):
    texts = ["3+4=?", "other", "x" * 70]
    # Engines of their own get different and different amounts of work; a shared one the same.
    prompts = [texts, texts[1:2]] if tensor_parallel == 1 else [texts, texts]
    expected = {}
    for moment, name in (("before", "base"), ("after", "other")):
        sampler.load_weights(weights_of(name).items(), 0)
        expected[moment] = dict(zip(texts, draw(sampler, [make_prompt(text) for text in texts]), strict=True))

    for rank, got in enumerate(launch(tmp_path, models_dir, tensor_parallel, prompts)):
        assert got["engine"] == [rank if tensor_parallel == 1 else 0, 2 // tensor_parallel]
        assert got["sum_after_close"] == 3.0, "the process group must outlive the engine"
        for moment in ("before", "after"):
            assert list(got[moment]) == prompts[rank]
            for text, rollouts in got[moment].items():
                for rollout, (token_ids, logprobs) in zip(expected[moment][text], rollouts, strict=True):
                    assert rollout.token_ids.tolist() == token_ids
                    # Two ranks add up each layer in another order than one does.
                    tolerance = 0 if tensor_parallel == 1 else 1e-4
                    np.testing.assert_allclose(
                        rollout.sampler_logprobs, np.float32(logprobs), rtol=0, atol=tolerance
                    )
