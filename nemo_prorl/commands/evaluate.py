"""Evaluates a Hugging Face checkpoint on the papers' benchmarks or on prompt files, with the graders of training."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands import parsing
from nemo_prorl.commands.ending import show
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.config.layout import rank_from_environment, world_size_from_environment
from nemo_prorl.engines import environment
from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.storage import check_writable, check_writable_file

if TYPE_CHECKING:
    from nemo_prorl.evaluation.benchmark import Benchmark
    from nemo_prorl.evaluation.prompts import Loaded

SHORT = {"benchmarks": "evaluation.benchmarks", "data_dir": "evaluation.data_dir", "out": "evaluation.out"}
PROBLEMS = {"benchmarks", "data_dir", "livecodebench_dates", "puzzles"}
READS = {
    "--list": {"benchmarks", "data_dir"},
    "--write-prompts": {"--write-prompts", *PROBLEMS},
    "benchmarks": {"out", "chunk_samples", *PROBLEMS},
    "--follow": {"--follow", "--once", "--ranks", "chunk_samples", *PROBLEMS},
    "data=FILE": {"data", "data.validation", "--k", "--samples"},
}
"""What an evaluation is asked for -> which of the options that only some of these read."""
EPILOG = """model.path=DIR     the Hugging Face checkpoint
suite=NAME         a list of benchmarks with its settings: paper, reasoning_boundary, reasoning_boundary_puzzles, \
validation, smoke
benchmarks=A,B     these benchmarks instead of a suite's (--list shows all)
data_dir=DIR       folder of the benchmarks' files (default: data/benchmarks)
out=DIR            folder for samples and results of benchmarks (default: evaluations/ and the model's name)
KEY=VALUE          any option of `train --help`, such as validation.num_rollouts=64

data=FILE          all held-out problems of a file instead of benchmarks (docs/data.md has the columns), or \
validation.max_prompts=N of them; may be given several times

After an interruption the same command continues. docs/evaluation.md has the details."""


def main(arguments: Sequence[str]) -> int:
    """Evaluates the checkpoint, prints the scores, and returns the exit code: 1 if --write-prompts left out a benchmark
    whose files are missing."""
    parser = parsing.Parser("evaluate", __doc__, EPILOG)
    parser.flag("--list", "lists the benchmarks, or those of benchmarks=A,B with source and licence")
    parser.path("--write-prompts", "DIR", "only writes the benchmarks' prompts into this folder")
    parser.option(
        "--k", "K,K", "with data=FILE: the k of pass@k (default: 1, 2, 4 ... up to the rollouts per prompt)"
    )
    parser.path("--follow", "RUN", "measures each checkpoint that this run has or saves, until the run ends")
    parser.flag("--once", "with --follow: ends when no checkpoint is left to measure")
    parser.number("--ranks", "N", "with --follow: processes of an evaluation, one for each GPU (default: 1)")
    parser.path("--samples", "FILE", "with data=FILE: writes every response and its score, as JSONL")
    given = parsing.parse_overrides(parser, arguments)
    config = parsing.composed(given.config_name, _overrides(given.overrides))
    form = "benchmarks" if config.evaluation.benchmarks else "data=FILE"
    form = "--follow" if given.follow else "--write-prompts" if given.write_prompts else form
    form = "--list" if given.list else form
    keys = {text.partition("=")[0].removeprefix("evaluation.") for text in given.overrides}
    keys |= {f"--{name.replace('_', '-')}" for name, value in vars(given).items() if value}
    for key in sorted(keys - READS[form]):
        if others := [other for other, read in READS.items() if key in read]:
            belongs = f"does not read {key}, which belongs to {' or '.join(others)}"
            raise ConfigError(f"evaluate with {form} {belongs}: leave it out.")
    if given.list:
        show(_listed(config))
        return 0
    if given.write_prompts is not None:
        _check_benchmarks(form, config)
        loaded, missing = _load(config)
        from nemo_prorl.data.rows import write_rows

        for one in loaded:
            path = given.write_prompts / f"{one.benchmark.name}.parquet"
            write_rows(path, one.rows)
            print(f"{path}  {len(one.rows):,} prompts")
        return 1 if missing else 0
    if given.follow is not None:
        return _follow(given, config)
    with terminal.shown(speaks=rank_from_environment() == 0):
        environment.choose_device(config.trainer.device)
        parsing.check_model(config, trains=False)
        terminal.wait_for("loading PyTorch and the engines")
        if config.evaluation.benchmarks:
            return _evaluate_suite(config)
        return _evaluate_files(config, given.k, given.samples)


def _overrides(words: Sequence[str]) -> list[str]:
    """Returns the overrides, with short names replaced by the options that they stand for."""
    from nemo_prorl.config.compose import quoted

    overrides, files = [], []
    for text in words:
        key, _, value = text.partition("=")
        if key == "data":
            files.append(value)
        elif key == "benchmarks" and not value.startswith("["):
            overrides.append(f"{SHORT[key]}=[{value}]")
        elif key in SHORT:
            overrides.append(f"{SHORT[key]}={value if key == 'benchmarks' else quoted(value)}")
        else:
            overrides.append(text)
    if files:
        # A configuration limits the validations of a training; whoever asks for a file wants all of it.
        overrides.insert(0, "validation.max_prompts=0")
        overrides.append(f"data.validation=[{','.join(map(quoted, files))}]")
    return overrides


def _evaluate_suite(config: RunConfig) -> int:
    parsing.check_functions(config, of_benchmarks=True)
    loaded, missing = _load(config)
    if config.evaluation.out:
        check_writable(f"evaluation.out={config.evaluation.out}", Path(config.evaluation.out))
    parsing.prepare_engines()
    from nemo_prorl.evaluation import run

    lines = run.evaluate_suite(config, loaded, missing)
    if rank_from_environment() == 0:
        show(lines)
    return 0


def _check_benchmarks(form: str, config: RunConfig) -> None:
    if not config.evaluation.benchmarks:
        raise ConfigError(f"{form} needs benchmarks: write suite=validation or benchmarks=NAME,NAME.")


def _follow(given: argparse.Namespace, config: RunConfig) -> int:
    suites = [text.partition("=")[2] for text in given.overrides if text.startswith("suite=")]
    if world_size_from_environment() > 1:
        raise ConfigError("--follow starts its ranks itself: write --ranks N instead of torchrun.")
    if not (given.follow / "resolved.yaml").is_file():
        raise ConfigError(f"--follow {given.follow} is no run that has begun: write the folder of one.")
    _check_benchmarks("--follow", config)
    if any(text.startswith("model.path=") for text in given.overrides):
        raise ConfigError("--follow measures the run's checkpoints: leave model.path out.")
    check_writable(f"--follow {given.follow}", given.follow / "validations")
    _load(config)
    from nemo_prorl.evaluation.follow import follow

    suite = suites[0] if suites else "+".join(config.evaluation.benchmarks)
    options = ["--config-name", given.config_name, *given.overrides]
    follow(given.follow, suite, options, num_ranks=given.ranks or 1, once=given.once)
    return 0


def _load(config: RunConfig) -> tuple[list[Loaded], list[Benchmark]]:
    """Returns (loaded benchmarks, benchmarks without files) and prints both. Raises ConfigError if none is loaded."""
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
            terminal.say(line)
        for benchmark in missing:
            terminal.say(
                f"{benchmark.name} is left out: no {' or '.join(benchmark.files)} in {data_dir}. "
                f"Get it from {benchmark.where}."
            )
    if not loaded:
        raise ConfigError(
            f"none of {len(wanted)} benchmarks is in evaluation.data_dir={data_dir}: get one, or write data_dir=DIR."
        )
    return loaded, missing


def _listed(config: RunConfig) -> list[str]:
    """Returns a table of the benchmarks; of those that evaluation.benchmarks names also source, licence and remark."""
    from nemo_prorl.evaluation import catalogue, prompts

    named, data_dir = config.evaluation.benchmarks, Path(config.evaluation.data_dir)
    lines = [f"{'benchmark':<21} {'domain':<12} {'metric':<10} {'problems':>8}  files in {data_dir}"]
    for benchmark in map(catalogue.get, named or catalogue.BENCHMARKS):
        paths = [path.name for path in prompts.find(benchmark, data_dir)]
        state = ", ".join(paths) or ("made here" if benchmark.generate else "none")
        count = f"{benchmark.num_problems:,}" if benchmark.num_problems else "-"
        lines.append(
            f"{benchmark.name:<21} {benchmark.domain:<12} {benchmark.metric.value:<10} {count:>8}  {state}"
        )
        if named:
            about = {
                "files": " or ".join(benchmark.files),
                "from": benchmark.where,
                "licence": benchmark.licence,
                "problems": benchmark.counted_by,
                "remark": benchmark.remark,
            }
            lines += [f"    {key:<10}{text}" for key, text in about.items() if text]
    return [*lines, *([] if named else ["", "`evaluate --list benchmarks=NAME` says where one comes from."])]


def _evaluate_files(config: RunConfig, ks: str | None, samples: Path | None) -> int:
    from nemo_prorl.commands.starting import check_data

    if not config.data.validation:
        raise ConfigError(
            "nothing to evaluate is given: write suite=smoke, benchmarks=NAME,NAME, or data=FILE with held-out prompts."
        )
    check_data("data", config.data.validation)
    config.data.train = {}  # not needed, and its files may be missing
    most = config.validation.num_rollouts
    chosen = [2**i for i in range(most.bit_length())]
    if ks is not None:
        chosen = [int(part) for part in ks.split(",") if part.isdigit() and 1 <= int(part) <= most]
        if len(chosen) != len(ks.split(",")):
            raise ConfigError(
                f"--k {ks} must be whole numbers from 1 to validation.num_rollouts={most}, such as --k 1,8."
            )
    if samples is not None:
        check_writable_file(f"--samples {samples}", samples)
    with _aside() as folder:
        parsing.check_functions(config, into=folder)
        parsing.prepare_engines()
        from nemo_prorl.evaluation import run

        scores = run.evaluate_files(config, chosen, folder, samples)
    if rank_from_environment() == 0:
        show(f"{name:<32} {score:{'.0f' if 'num_' in name else '.4f'}}" for name, score in scores.items())
    return 0


@contextmanager
def _aside() -> Iterator[Path]:
    """Yields a temporary folder. It is deleted at the end, unless somebody may want to read its logs: after an
    evaluation that failed, and if reward functions have written something, which is then said."""
    folder, stays = Path(tempfile.mkdtemp(prefix="nemo_prorl-")), True
    try:
        yield folder
        written = [log for log in sorted(folder.glob("reward_function.*.log")) if log.stat().st_size]
        for log in written:
            terminal.say(f"The output of a reward function is in {log}.")
        stays = bool(written)
    except (ConfigError, KeyboardInterrupt):
        stays = False
        raise
    finally:
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)
