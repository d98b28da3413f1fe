"""`evaluate --follow`: measures each checkpoint of a run while it trains, in processes of its own.

    RUN/validations/SUITE/metrics.jsonl          a line per measured checkpoint
    RUN/validations/SUITE/step-00000040-STAGE/   what `evaluate` writes: results.json, results.md, samples/
    RUN/validations/SUITE/tensorboard/           and the files of other loggers that the run has

The run neither waits for it nor reads these files; the report does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_prorl.cluster.local_ranks import run_ranks
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.config.compose import compose
from nemo_prorl.evaluation import results
from nemo_prorl.report.state import facts_of
from nemo_prorl.report.status import ask_for
from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.checkpoints import (
    STATE_FILE,
    Checkpoint,
    checkpoint_name,
    find_checkpoints,
    read_checkpoint,
)
from nemo_prorl.run_folder.lock import alone_at
from nemo_prorl.run_folder.loggers import Loggers
from nemo_prorl.run_folder.metrics_file import METRICS_FILE, append_metrics, read_records
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.storage import MANIFEST_FILE

POLL_S = 30.0


def follow(run_dir: Path, suite: str, options: Sequence[str], *, num_ranks: int, once: bool) -> None:
    """Measures every checkpoint that the run has or saves, oldest first, each once, until the run's last stage has
    ended. options: of `evaluate`, the same for each. once: ends when there is none left.

    Raises ConfigError if another process does the same, or if an evaluation fails; the same call goes on from there.
    """
    folder = run_dir / "validations" / suite
    refusal = f"another evaluate follows {run_dir} with {suite}: wait for its end."
    with alone_at(folder / "lock", refusal):
        lines = folder / METRICS_FILE
        past = read_records(lines)[0] if lines.is_file() else []
        done, config, loggers = {line["checkpoint"] for line in past}, _of_evaluator(run_dir, folder), None
        try:
            while True:
                # Asked before looking, so that a stage's last checkpoint is seen.
                ends = once or _has_ended(run_dir)
                todo = [one for one in find_checkpoints(run_dir) if _identity(one) not in {*done, ""}]
                if not todo and ends:
                    terminal.say(f"no checkpoint of {run_dir} is left to measure; results are in {folder}")
                    return
                if not todo:
                    time.sleep(POLL_S)
                    continue
                if (record := _measured(todo[0], folder, suite, options, num_ranks)) is None:
                    continue
                # The loggers first: what is not in the file is measured again, without sampling, and logged again.
                loggers = loggers or Loggers(
                    config,
                    first_step=past[-1]["step"] + 1 if past else 0,
                    past=past,
                    say=terminal.say,
                )
                loggers.log(record)
                append_metrics(lines, record)
                done.add(record["checkpoint"])
        finally:
            if loggers is not None:
                loggers.close("success")


def _has_ended(run_dir: Path) -> bool:
    """Returns whether the stage that began last is done, or has failed for good, and no job of another one waits."""
    run = RunFolder(run_dir)
    return bool(run.starts) and facts_of(run, ask_for([run_dir]))["state"] in ("done", "failed")


def _identity(checkpoint: Checkpoint) -> str:
    """Returns what tells the checkpoint from one of the same step that a run writes after it was taken back; empty if
    it has just been deleted."""
    with suppress(OSError):
        return hashlib.blake2b((checkpoint.path / STATE_FILE).read_bytes(), digest_size=16).hexdigest()
    return ""


def _measured(
    checkpoint: Checkpoint, folder: Path, suite: str, options: Sequence[str], num_ranks: int
) -> dict[str, Any] | None:
    """Exports and evaluates the checkpoint. Returns its record; None if the run has deleted it before it was read."""
    name, identity = checkpoint_name(checkpoint.state), _identity(checkpoint)
    held, model, out = folder / "checkpoint", folder / "model", folder / name
    for left in (held, model):
        shutil.rmtree(left, ignore_errors=True)
    terminal.say(f"measuring {name} with {suite}")
    is_exported = not run_ranks(["nemo_prorl", "export", str(_held(checkpoint.path, held)), str(model)])
    shutil.rmtree(held, ignore_errors=True)
    if not is_exported and _identity(checkpoint) != identity:
        terminal.say(f"{name} was deleted before it was read: it is left out")
        return None
    last = [f"model.path={model}", f"evaluation.out={out}"]
    if not is_exported or run_ranks(["nemo_prorl", "evaluate", *options, *last], num_ranks=num_ranks):
        raise ConfigError(f"{name} cannot be measured, as said above: mend that, and give the same command.")
    shutil.rmtree(model)
    record: dict[str, Any] = {
        "step": checkpoint.state.step,
        "stage": checkpoint.state.stage,
        "checkpoint": identity,
    }
    for benchmark, found in results.read(out)[1].items():
        numbers = {f"pass_at_{k}": mean.value for k, mean in found.pass_at_k.items()}
        numbers |= {"score": found.score.value, "no_eos_share": found.no_eos_share}
        numbers["response_tokens"] = found.response_tokens["mean"]
        record |= {f"{suite}/{benchmark}/{key}": value for key, value in numbers.items()}
    return record


def _held(path: Path, held: Path) -> Path:
    """Returns a copy of the checkpoint's folder by hard links, which the run's cleaning leaves alone; the folder itself
    where there are no hard links, or if it is being deleted."""

    def link(source: str, target: str) -> None:
        # The run replaces the content of a manifest when it deletes moments.
        (shutil.copyfile if source.endswith(MANIFEST_FILE) else os.link)(source, target)

    with suppress(OSError, ValueError):
        shutil.copytree(path, held, copy_function=link)
        return read_checkpoint(held).path
    return path


def _of_evaluator(run_dir: Path, folder: Path) -> RunConfig:
    """Returns the run's options with its loggers in the evaluator's folder, and with a run of their own at W&B."""
    config = compose(str(run_dir / "resolved.yaml"), [], conf_dir=run_dir)
    given = config.exp_manager.wandb_logger_kwargs
    wandb = {key: value for key, value in given.items() if key not in ("id", "version")}
    wandb["name"] = f"{run_dir.resolve().name} {folder.name}"
    exp_manager = replace(config.exp_manager, explicit_log_dir=str(folder), wandb_logger_kwargs=wandb)
    return replace(config, exp_manager=exp_manager)
