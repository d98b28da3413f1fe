"""Measures pass@1 and pass@k of a Hugging Face checkpoint with the graders of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.ending import run_unless_stopped
from nemo_prorl.commands.parsing import Parser, check_model, composed, parse_overrides, prepare
from nemo_prorl.config import ConfigError
from nemo_prorl.layout import rank_from_environment


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    from nemo_prorl.compose import check_files, quoted

    parser = Parser(
        "evaluate",
        __doc__,
        "model=DIR   the Hugging Face checkpoint\ndata=FILE   held-out prompts; may be given more than once\n"
        "KEY=VALUE   any option of `train --help`, such as validation.num_rollouts=64",
    )
    parser.add_argument(
        "--k", metavar="K,K", help="which pass@k (default: 1, 2, 4 ... up to the rollouts a prompt)"
    )
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="file for every response and its score, as JSONL"
    )
    given = parse_overrides(parser, arguments)
    overrides, files = [], []
    for text in given.overrides:
        key, _, value = text.partition("=")
        if key == "data":
            files.append(value)
        else:
            overrides.append(f"model.path={quoted(value)}" if key == "model" else text)
    if files:
        overrides.append(f"data.validation=[{','.join(quoted(file) for file in files)}]")
    config = composed(given.config_name, overrides)
    check_model(config)
    if not config.data.validation:
        raise ConfigError("data is not set: write data=FILE with held-out prompts.")
    check_files("data", config.data.validation)
    ks = _parse_ks(given.k, config.validation.num_rollouts)
    prepare()
    from nemo_prorl import run

    scores = run_unless_stopped(lambda: run.evaluate(config, ks, given.samples))
    if rank_from_environment() == 0:
        for name, score in scores.items():
            print(f"{name:<32} {score:.4f}")
    return 0


def _parse_ks(text: str | None, num_rollouts: int) -> list[int]:
    if text is None:
        return [2**i for i in range(num_rollouts.bit_length())]
    ks = [int(part) for part in text.split(",") if part.isdigit() and 1 <= int(part) <= num_rollouts]
    if len(ks) != len(text.split(",")):
        raise ConfigError(
            f"--k {text} must be whole numbers from 1 to validation.num_rollouts={num_rollouts}, such as --k 1,8."
        )
    return ks
