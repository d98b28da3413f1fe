"""The command line: python -m nemo_prorl train | demo | import | export | evaluate.

Arguments, options and files are checked before torch or vLLM is imported, so a mistake costs a second. It is one line
on standard error and exit code 2, and is said once however many ranks make it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from nemo_prorl.config import ConfigError, Precision, RunConfig
from nemo_prorl.layout import rank_from_environment, world_size_from_environment

CONF_DIR = Path(__file__).resolve().parents[1] / "conf"
SPEAKING_TIME_S = 5.0
"""Launchers end every rank as soon as one has ended: the silent ones wait until the first has said what is wrong."""


_T = TypeVar("_T")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument like every other mistake, instead of printing its usage on every rank."""

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"python -m nemo_prorl {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (`{self.prog} --help` shows what can be given).")


def train(arguments: Sequence[str]) -> int:
    """Runs one stage, from a Hugging Face checkpoint or from where an earlier run stopped."""
    from nemo_prorl.compose import check_inputs
    from nemo_prorl.help import options_text

    parser = _Parser("train", _summary(train), options_text(CONF_DIR))
    given = _parse_overrides(parser, arguments)
    config = _composed(given.config_name, given.overrides)
    check_inputs(config, world_size_from_environment())
    _check_model(config)
    _prepare()
    from nemo_prorl import run

    return _run_unless_stopped(lambda: run.train(config))


def demo(arguments: Sequence[str]) -> int:
    """Trains a small reasoning policy on this machine in minutes, and shows that it learned."""
    parser = _Parser("demo", _summary(demo))
    parser.add_argument("--smoke", action="store_true", help="a few steps only: shows that everything runs")
    parser.add_argument("--seed", type=int, default=1, help="of data and sampling (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder (default: runs/demo)")
    options = parser.parse_args(arguments)
    _prepare()
    from nemo_prorl import demo as demonstration

    return demonstration.main(options)


def import_(arguments: Sequence[str]) -> int:
    """Converts a Hugging Face checkpoint into a Megatron one."""
    from nemo_prorl.engines.megatron.architecture import read_architecture

    parser = _Parser("import", _summary(import_))
    parser.add_argument("hf_dir", type=Path, metavar="HF_DIR", help="folder of the Hugging Face checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must not exist, or be empty")
    options = parser.parse_args(arguments)
    read_architecture(options.hf_dir)
    _check_vacant(options.out)
    _prepare()
    from nemo_prorl import conversion

    conversion.import_hf(options.hf_dir, options.out)
    print(f"wrote {options.out}")
    return 0


def export(arguments: Sequence[str]) -> int:
    """Converts a checkpoint of a run into a Hugging Face one, with configuration and tokenizer."""
    parser = _Parser("export", _summary(export))
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of the checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; must not exist, or be empty")
    parser.add_argument(
        "--dtype", choices=list(Precision.__members__), help="of the weights (default: as in the checkpoint)"
    )
    options = parser.parse_args(arguments)
    if not options.checkpoint.is_dir():
        raise ConfigError(f"CHECKPOINT={options.checkpoint} is not a folder: write that of a checkpoint.")
    _check_vacant(options.out)
    _prepare()
    from nemo_prorl import conversion

    conversion.export_hf(options.checkpoint, options.out, dtype=options.dtype)
    print(f"wrote {options.out}")
    return 0


def evaluate(arguments: Sequence[str]) -> int:
    """Measures pass@1 and pass@k of a Hugging Face checkpoint with the graders of training."""
    from nemo_prorl.compose import check_files, quoted

    parser = _Parser(
        "evaluate",
        _summary(evaluate),
        "model=DIR   the Hugging Face checkpoint\ndata=FILE   held-out prompts; may be given more than once\n"
        "KEY=VALUE   any option of `train --help`, such as validation.num_rollouts=64",
    )
    parser.add_argument(
        "--k", metavar="K,K", help="which pass@k (default: 1, 2, 4 ... up to the rollouts a prompt)"
    )
    parser.add_argument(
        "--samples", type=Path, metavar="FILE", help="file for every response and its score, as JSONL"
    )
    given = _parse_overrides(parser, arguments)
    overrides, files = [], []
    for text in given.overrides:
        key, _, value = text.partition("=")
        if key == "data":
            files.append(value)
        else:
            overrides.append(f"model.path={quoted(value)}" if key == "model" else text)
    if files:
        overrides.append(f"data.validation=[{','.join(quoted(file) for file in files)}]")
    config = _composed(given.config_name, overrides)
    _check_model(config)
    if not config.data.validation:
        raise ConfigError("data is not set: write data=FILE with held-out prompts.")
    check_files("data", config.data.validation)
    ks = _parse_ks(given.k, config.validation.num_rollouts)
    _prepare()
    from nemo_prorl import run

    scores = _run_unless_stopped(lambda: run.evaluate(config, ks, given.samples))
    if rank_from_environment() == 0:
        for name, score in scores.items():
            print(f"{name:<32} {score:.4f}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "demo": demo,
    "import": import_,
    "export": export,
    "evaluate": evaluate,
}


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command: 0, 1 when a run had to stop, 2 for a user's mistake, 130 for Ctrl-C. Anything else
    rises."""
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_usage())
            return 0 if arguments else 2
        if arguments[0] not in COMMANDS:
            raise ConfigError(f"{arguments[0]} is not a command: write one of {', '.join(COMMANDS)}.")
        return COMMANDS[arguments[0]](arguments[1:])
    except ConfigError as error:
        return _say(error, 2)
    except KeyboardInterrupt:
        return _say("interrupted; the same command continues from the last checkpoint.", 130)


def _say(error: object, code: int) -> int:
    """The main rank says it at once. Another speaks only if it is still there later: then it was its mistake alone."""
    rank = rank_from_environment()
    if rank:
        time.sleep(SPEAKING_TIME_S)
    print(f"error{f' on rank {rank}' if rank else ''}: {error}", file=sys.stderr, flush=True)
    return code


def _run_unless_stopped(command: Callable[[], _T]) -> _T:
    """Turns the ends that a run may come to (run.STOPS) into a sentence and exit code 1."""
    from nemo_prorl import run

    try:
        return command()
    except run.STOPS as reason:
        raise SystemExit(_say(reason, 1)) from None


def _usage() -> str:
    commands = [f"  {name:<9} {_summary(command)}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: python -m nemo_prorl COMMAND ...",
            "",
            "Prolonged reinforcement learning with verifiable rewards, on Megatron-Core and vLLM.",
            "",
            *commands,
            "",
            "`python -m nemo_prorl COMMAND --help` shows what it takes.",
        ]
    )


def _summary(command: Callable[..., int]) -> str:
    return (command.__doc__ or "").strip()


def _parse_overrides(parser: _Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """--config-name and overrides in any order."""
    parser.add_argument(
        "--config-name", default="train", metavar="NAME", help="a configuration of conf/ (default: train)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="sets an option")
    return parser.parse_intermixed_args(arguments)


def _composed(config_name: str, overrides: Sequence[str]) -> RunConfig:
    from nemo_prorl.compose import compose

    return compose(config_name, overrides, conf_dir=CONF_DIR)


def _check_model(config: RunConfig) -> None:
    from nemo_prorl.engines.megatron.check import CHECKPOINT_MARK, check_model

    if (Path(config.model.path) / CHECKPOINT_MARK).is_file():
        raise ConfigError(
            f"model.path={config.model.path} is a Megatron checkpoint, which vLLM does not read: write the Hugging "
            "Face folder, or make one with `python -m nemo_prorl export`."
        )
    check_model(config.model.path, config, world_size_from_environment())


def _check_vacant(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"OUT={folder} exists: write a folder that does not exist yet, or is empty.")


def _prepare() -> None:
    """Torch and vLLM read the environment while they are imported: from here on it may happen."""
    from nemo_prorl.engines import environment

    environment.prepare()


def _parse_ks(text: str | None, num_rollouts: int) -> list[int]:
    if text is None:
        return [2**i for i in range(num_rollouts.bit_length())]
    ks = [int(part) for part in text.split(",") if part.isdigit() and 1 <= int(part) <= num_rollouts]
    if len(ks) != len(text.split(",")):
        raise ConfigError(
            f"--k {text} must be whole numbers from 1 to validation.num_rollouts={num_rollouts}, such as --k 1,8."
        )
    return ks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
