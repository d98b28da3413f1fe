"""A tiny random policy and prompts that it follows by accident, for whole runs on the real engines."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from nemo_prorl.__main__ import main
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.run_folder.metrics_file import read_metrics
from tests.conftest import ROOT
from tests.engines.conftest import PROCESSES, build_hf_model, run_ranks

TIMEOUT_S = 540
LETTERS = "aehinorstu"


@dataclass(frozen=True)
class Case:
    """A policy, its prompts, and a reward service for all runs."""

    folder: Path
    url: str

    def run_dir(self, name: str) -> Path:
        return self.folder / name

    def train(self, name: str, *overrides: str, num_ranks: int = 1) -> str:
        """Runs the command that a user would give. Returns what it prints on standard output."""
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        return run(*(launcher if num_ranks > 1 else []), "-m", "nemo_prorl", *self.command(name, *overrides))

    def train_forked(self, name: str, *overrides: str, num_ranks: int = 1) -> str:
        """Runs the same command faster, in processes forked from one that has imported the engines."""
        return run_forked(self.command(name, *overrides), num_ranks=num_ranks)

    def start(self, name: str, *overrides: str) -> BaseProcess:
        """Starts a run that the test watches, signals and kills. Its output is in the case's folder."""
        return start_forked(self.command(name, *overrides), self.folder / f"{name}.txt")

    def command(self, name: str, *overrides: str, own_service: bool = False) -> list[str]:
        """Returns the arguments of `python -m nemo_prorl`."""
        options = [f"exp_manager.explicit_log_dir={self.run_dir(name)}", *overrides]
        if not own_service:
            options.append(f"reward.urls=[{self.url}]")
        return ["train", "--config-name", str(self.folder / "tiny.yaml"), *options]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def run_forked(arguments: list[str], num_ranks: int = 1, *, folder: Path = ROOT) -> str:
    """Runs `python -m nemo_prorl ARGUMENTS` in `folder`, in processes forked from one that has imported the engines.
    Returns what the first rank prints."""
    return run_ranks(_printed_by, num_ranks, timeout_s=TIMEOUT_S, folder=folder, arguments=arguments)[0]


def _printed_by(folder: Path, arguments: list[str]) -> str:
    os.chdir(folder)
    with redirect_stdout(StringIO()) as output:
        assert main(arguments) == 0
    return output.getvalue()


def start_forked(arguments: list[str], output: Path) -> BaseProcess:
    """Starts `python -m nemo_prorl ARGUMENTS` in one forked process, for a test that watches, signals and kills it.
    Appends its output to a file."""
    process = PROCESSES.Process(target=_print_to, args=(output, arguments))
    process.start()
    return process


def _print_to(output: Path, arguments: list[str]) -> None:
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


def rows(split: str, count: int) -> list[Row]:
    """Returns instructions, of which a random policy sometimes follows some by accident."""
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


def make_case(folder: Path, url: str) -> Case:
    """Writes a case. url: the reward service of its runs."""
    write_case(folder)
    return Case(folder, url)


def write_case(folder: Path) -> None:
    """Writes the policy, its prompts, and `tiny.yaml`, which trains the policy on them."""
    from experiments.boundary.tiny_policy import build_tokenizer

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
        "defaults": ["run_config", "_self_", {"recipe": None}, {"stage": None}],
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
            # The gradient of a key's bias is only rounding. With its usual epsilon Adam would turn that into steps, and
            # layouts that sum in another order would differ by 5e-5 there, and by less than 1e-6 elsewhere.
            "adam_epsilon": 1e-4,
            "packing": False,
            "micro_batch_tokens": 1024,
        },
        "sampler": {
            "max_prompt_tokens": 24,
            "max_response_tokens": 40,
            "num_rollouts": 8,
            "kv_cache_mib": 32,
        },
        "dynamic_sampling": {"oversample": 1.0},
        "validation": {"interval": 0, "num_rollouts": 4},
        "reward": {"ready_timeout_s": 500.0, "max_failed_share": 0.0},
        "exp_manager": {"checkpoint_callback_params": {"every_n_train_steps": 1, "save_last_k": 2}},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def steps(run_dir: Path, stage: str = "main") -> list[dict[str, Any]]:
    """Returns the records of a stage's finished steps."""
    return [
        record
        for record in read_metrics(run_dir / "metrics.jsonl")
        if record["stage"] == stage and "reward/mean" in record
    ]


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics that do not depend on time: what ranks exchange while they wait does."""
    timed = ("time/", "throughput/tokens_per_s", "throughput/exchange_mib", "grading/", "host_memory/")
    return {key: value for key, value in record.items() if not key.startswith(timed)}


def assert_close(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Asserts that two records are equal up to rounding, except for metrics that depend on time."""
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
    """Returns weights, moments and reference of a checkpoint as full tensors, whatever layout wrote it."""
    tensors = {}
    for folder in (policy, policy / "moments"):
        dcp_to_torch_save(folder, scratch / "saved.pt")
        tensors |= _tensors(torch.load(scratch / "saved.pt", weights_only=False))
    return tensors


def _tensors(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Returns the tensors of a nested dictionary by path."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, dict):
        return {path: t for key, part in value.items() for path, t in _tensors(part, f"{name}/{key}").items()}
    return {}
