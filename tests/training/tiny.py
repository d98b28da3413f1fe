"""A tiny random policy and prompts that it follows by accident: what whole runs on the real engines are tried with."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from nemo_prorl.config import RewardConfig
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.reward_service import reward_service
from nemo_prorl.training.telemetry import read_metrics
from tests.engines.conftest import build_hf_model

ROOT = Path(__file__).resolve().parents[2]
REWARD_PYTHON = os.environ.get("PRORL_REWARD_PYTHON", str(ROOT / ".venv-reward/bin/python"))
TIMEOUT_S = 400
LETTERS = "aehinorstu"


@dataclass(frozen=True)
class Case:
    """A policy, prompts, and a service that every run may use."""

    folder: Path
    url: str

    def run_dir(self, name: str) -> Path:
        return self.folder / name

    def train(self, name: str, *overrides: str, num_ranks: int = 1, own_service: bool = False) -> str:
        """What the run printed on standard output."""
        return run(*self.command(name, *overrides, num_ranks=num_ranks, own_service=own_service))

    def start(self, name: str, *overrides: str) -> subprocess.Popen[bytes]:
        """A run that the test watches, signals and kills; what it prints is in the case's folder."""
        with (self.folder / f"{name}.txt").open("ab") as output:
            command = [sys.executable, *self.command(name, *overrides)]
            return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)

    def command(self, name: str, *overrides: str, num_ranks: int = 1, own_service: bool = False) -> list[str]:
        """Arguments of Python."""
        options = [f"exp_manager.explicit_log_dir={self.run_dir(name)}", *overrides]
        if not own_service:
            options.append(f"reward.urls=[{self.url}]")
        command = ["-m", "nemo_prorl", "train", "--config-name", str(self.folder / "tiny.yaml"), *options]
        if num_ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
            command = [*launcher, *command]
        return command


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def rows(split: str, count: int) -> list[Row]:
    """Instructions that a random policy follows by accident, some of them, some of the time."""
    made = []
    for index in range(count):
        letters = [LETTERS[(index + shift) % len(LETTERS)] for shift in (0, 3, 5)]
        made.append(
            Row(
                uid=f"letters/{split}/{index}",
                domain="instruction",
                source="letters",
                split=split,
                messages=({"role": "user", "content": f"use {' '.join(letters)} #{index}"},),
                task={
                    "instruction_id_list": ["keywords:letter_frequency"] * 3 + ["punctuation:no_comma"],
                    "kwargs": [
                        *(
                            {"letter": letter, "let_frequency": 1, "let_relation": "at least"}
                            for letter in letters
                        ),
                        {},
                    ],
                },
            )
        )
    return made


def write_case(folder: Path) -> None:
    """The policy, its prompts, and `tiny.yaml`, which trains the one on the other."""
    from nemo_prorl.demo.tiny_policy import build_tokenizer

    tokenizer = build_tokenizer()
    build_hf_model(
        folder / "policy",
        "qwen2",
        vocab_size=len(tokenizer),
        hidden_size=128,  # four heads of 32: vLLM computes the size of a Qwen2 head from it
        tie_word_embeddings=True,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.save_pretrained(folder / "policy")
    write_rows(folder / "train.parquet", rows("train", 40))
    write_rows(folder / "held_out.parquet", rows("held_out", 2))
    settings = {
        "defaults": ["run_config", "_self_", {"stage": None}],
        "model": {"path": str(folder / "policy"), "precision": "fp32", "layer_spec": "local"},
        "data": {
            "train": {str(folder / "train.parquet"): 1.0},
            "validation": [str(folder / "held_out.parquet")],
        },
        "trainer": {
            "num_steps": 2,
            "prompts_per_step": 8,
            "updates_per_step": 2,
            "learning_rate": 1e-3,
            # A key's bias has no gradient but for rounding, of which Adam would make steps with its usual epsilon:
            # another order of the same sums, in another layout, then moves it by 5e-5, and nothing else by 1e-6.
            "adam_epsilon": 1e-4,
            "packing": False,
            "micro_batch_tokens": 1024,
        },
        "sampler": {"context_tokens": 64, "max_prompt_tokens": 24, "num_rollouts": 8, "kv_cache_mib": 32},
        "dynamic_sampling": {"oversample": 1.0},
        "validation": {"interval": 0, "num_rollouts": 4},
        "reward": {"python": REWARD_PYTHON, "max_failed_share": 0.0},
        "exp_manager": {"checkpoint_callback_params": {"every_n_train_steps": 1, "save_last_k": 2}},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


@contextmanager
def served_case(folder: Path) -> Iterator[Case]:
    write_case(folder)
    with reward_service(RewardConfig(python=REWARD_PYTHON), folder) as url:
        yield Case(folder, url)


def steps(run_dir: Path, stage: str = "main") -> list[dict[str, Any]]:
    """Records of finished steps."""
    return [
        record
        for record in read_metrics(run_dir / "metrics.jsonl")
        if record["stage"] == stage and "reward/mean" in record
    ]


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """Everything but the clock."""
    timed = ("time/", "throughput/tokens_per_s", "grading/")
    return {key: value for key, value in record.items() if not key.startswith(timed)}


def assert_close(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Every number of two records, those of the clock left out."""
    actual, expected = timeless(actual), timeless(expected)
    assert actual.keys() == expected.keys()
    different = {
        key: (actual[key], value)
        for key, value in expected.items()
        if (not math.isclose(actual[key], value, rel_tol=tolerance, abs_tol=tolerance) if isinstance(value, float)
            else actual[key] != value)
    }  # fmt: skip
    assert different == {}


def saved_tensors(policy: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """Weights, moments and reference of a checkpoint, whole, whatever the layout that wrote it."""
    dcp_to_torch_save(policy, scratch / "saved.pt")
    return _tensors(torch.load(scratch / "saved.pt", weights_only=False))


def _tensors(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Of a nested dictionary, by path."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, dict):
        return {path: t for key, part in value.items() for path, t in _tensors(part, f"{name}/{key}").items()}
    return {}
