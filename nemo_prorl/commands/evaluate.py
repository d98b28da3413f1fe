"""Measures a Hugging Face checkpoint on the papers' benchmarks, or on prompt files, with the graders of training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands.ending import run_unless_stopped
from nemo_prorl.commands.output import show
from nemo_prorl.commands.parsing import (
    Parser,
    check_functions,
    check_model,
    choose_device,
    composed,
    parse_overrides,
    prepare_engines,
)
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.layout import rank_from_environment

if TYPE_CHECKING:
    from nemo_prorl.evaluation.benchmark import Benchmark
    from nemo_prorl.evaluation.prompts import Loaded

SHORT = {"benchmarks": "evaluation.benchmarks", "data_dir": "evaluation.data_dir", "out": "evaluation.out"}
EPILOG = """model=DIR          the Hugging Face checkpoint
suite=NAME         a list of benchmarks with its settings: paper, reasoning_boundary, validation, smoke
benchmarks=A,B     these benchmarks instead (--list shows all)
data_dir=DIR       where their files are (default: data/benchmarks)
out=DIR            where samples and results go (default: evaluations/ and the model's name)
KEY=VALUE          any option of `train --help`, such as validation.num_rollouts=64

data=FILE          instead of benchmarks: held-out problems (docs/data.md has the columns); may be given more than once

After an interruption the same command continues. docs/evaluation.md has the details."""


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = Parser("evaluate", __doc__, EPILOG)
    parser.add_argument(
        "--list", action="store_true", help="lists the benchmarks, and which of them are in data_dir"
    )
    parser.add_argument(
        "--write-prompts",
        type=Path,
        metavar="DIR",
        help="only writes the benchmarks as prompt files",
    )
    parser.add_argument(
        "--k",
        metavar="K,K",
        help="with data=FILE: the k of pass@k (default: 1, 2, 4 ... up to the rollouts per prompt)",
    )
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="with data=FILE: every response and its score, as JSONL"
    )
    given = parse_overrides(parser, arguments)
    overrides, files = _overrides(given.overrides)
    config = composed(given.config_name, overrides)
    if given.list:
        show(_listed(config))
        return 0
    if config.evaluation.benchmarks and files:
        raise ConfigError("data=FILE and benchmarks are both given: write one of them.")
    if given.write_prompts is not None:
        return _write_prompts(config, given.write_prompts)
    choose_device(config)
    check_model(config, trains=False)
    if config.evaluation.benchmarks:
        return _evaluate_suite(config)
    return _evaluate_files(config, given.k, given.samples)


def _overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (overrides, prompt files), with short names replaced by the options that they stand for."""
    from nemo_prorl.compose import quoted

    overrides, files = [], []
    for text in words:
        key, _, value = text.partition("=")
        if key == "data":
            files.append(value)
        elif key == "model":
            overrides.append(f"model.path={quoted(value)}")
        elif key == "benchmarks" and not value.startswith("["):
            overrides.append(f"{SHORT[key]}=[{value}]")
        elif key in SHORT:
            overrides.append(f"{SHORT[key]}={value if key == 'benchmarks' else quoted(value)}")
        else:
            overrides.append(text)
    if files:
        overrides.append(f"data.validation=[{','.join(map(quoted, files))}]")
    return overrides, files


def _evaluate_suite(config: RunConfig) -> int:
    from nemo_prorl.compose import check_writable

    check_functions(config, of_benchmarks=True)
    loaded, missing = _load(config)
    if config.evaluation.out:
        check_writable(f"evaluation.out={config.evaluation.out}", Path(config.evaluation.out))
    prepare_engines()
    from nemo_prorl.evaluation import run

    lines = run_unless_stopped(lambda: run.evaluate_suite(config, loaded, missing))
    if rank_from_environment() == 0:
        show(lines)
    return 0


def _load(config: RunConfig) -> tuple[list[Loaded], list[Benchmark]]:
    """Loads the benchmarks, and prints what was read and which files are missing. Raises ConfigError if all are."""
    from nemo_prorl.evaluation import catalogue, prompts

    data_dir = Path(config.evaluation.data_dir)
    wanted = [catalogue.get(name) for name in config.evaluation.benchmarks]
    loaded, missing = prompts.load(
        wanted,
        data_dir,
        config.validation.max_prompts,
        dates=config.evaluation.livecodebench_dates,
        puzzles=config.evaluation.puzzles,
    )
    if rank_from_environment() == 0:
        for line in prompts.accounts(loaded):
            print(line, file=sys.stderr)
        for benchmark in missing:
            print(
                f"{benchmark.name} is left out: no {' or '.join(benchmark.files)} in {data_dir}. "
                f"Get it from {benchmark.where}.",
                file=sys.stderr,
            )
    if not loaded:
        raise ConfigError(
            f"no benchmark of {len(wanted)} is in evaluation.data_dir={data_dir}: get one, or write data_dir=DIR."
        )
    return loaded, missing


def _write_prompts(config: RunConfig, folder: Path) -> int:
    if not config.evaluation.benchmarks:
        raise ConfigError("--write-prompts wants benchmarks: write suite=validation or benchmarks=NAME,NAME.")
    loaded, missing = _load(config)
    from nemo_prorl.evaluation.prompts import write_prompts

    for path, one in zip(write_prompts(loaded, folder), loaded, strict=True):
        print(f"{path}  {len(one.rows):,} prompts")
    return 1 if missing else 0


def _listed(config: RunConfig) -> list[str]:
    from nemo_prorl.evaluation import catalogue, prompts

    lines = []
    for benchmark in catalogue.BENCHMARKS.values():
        paths = prompts.find(benchmark, Path(config.evaluation.data_dir))
        state = ", ".join(map(str, paths)) or ("made here" if benchmark.generate else "not there")
        count = (
            f"{benchmark.num_problems:,} problems ({benchmark.counted_by}); "
            if benchmark.num_problems
            else ""
        )
        lines += [
            f"{benchmark.name:<21} {benchmark.domain:<12} {benchmark.metric.value:<10} {state}",
            f"{'':<21} {count}from {benchmark.where}; {benchmark.licence}",
        ]
        if benchmark.remark:
            lines.append(f"{'':<21} {benchmark.remark}.")
    return lines


def _evaluate_files(config: RunConfig, ks: str | None, samples: Path | None) -> int:
    from nemo_prorl.compose import check_data, check_writable

    if not config.data.validation:
        raise ConfigError(
            "nothing is to be measured: write suite=smoke, benchmarks=NAME,NAME, or data=FILE with held-out prompts."
        )
    check_data("data", config.data.validation)
    config.data.train = {}  # nothing of it is read
    check_functions(config)
    chosen = _parse_ks(ks, config.validation.num_rollouts)
    if samples is not None:
        check_writable(f"--samples {samples}", samples.parent)
    prepare_engines()
    from nemo_prorl.evaluation import run

    scores = run_unless_stopped(lambda: run.evaluate_files(config, chosen, samples))
    if rank_from_environment() == 0:
        show(f"{name:<32} {score:.4f}" for name, score in scores.items())
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
