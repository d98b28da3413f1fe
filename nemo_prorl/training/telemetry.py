"""Metrics: metrics.jsonl always, Lightning's loggers by configuration, and one line a step for whoever watches.

A resumed run does some steps again. Whatever was told about them before is taken back, so that the record of a run
that was interrupted is that of one that was not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.config import ConfigError, ExpManagerConfig, RunConfig
from nemo_prorl.nemo_toolkit import nemo_loggers, wants_nemo
from nemo_prorl.storage import replace_text
from nemo_prorl.training.held_out import DOMAIN_MEAN, PROMPT_MEAN

if TYPE_CHECKING:
    from types import TracebackType

    from nemo_prorl.training.samples import Sample
    from nemo_prorl.types import RolloutGroup, RunState


class RunLog:
    """What a run says: on standard error, and with the time in RUN/run.log, which grows from one process to the next.
    Only the main rank speaks."""

    def __init__(self, run_dir: Path, *, speaks: bool) -> None:
        self._path = run_dir / "run.log" if speaks else None

    def say(self, text: str) -> None:
        if self._path is not None:
            print(text, file=sys.stderr, flush=True)
            self.note(text)

    def note(self, text: str) -> None:
        """In the file alone: what is said elsewhere, or only interests who looks back."""
        if self._path is None:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{now} {line}\n" for line in text.splitlines()))


class MetricsFile:
    """One JSON object a line, appended and flushed at once: a reader of a live run sees every finished step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint counts on the lines that lead up to it

    def rewind(self, num_records: int, step: int) -> None:
        """Keeps the first `num_records` records, those that lead up to `step`: what follows is done again."""
        if not self._path.exists():
            return
        kept = [record for record in read_metrics(self._path)[:num_records] if record["step"] <= step]
        replace_text(self._path, "".join(json.dumps(record) + "\n" for record in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records; a last line that was cut off by a crash is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def lightning_loggers(config: ExpManagerConfig, *, first_step: int) -> list[Any]:
    """The loggers that exp_manager asks for; they take back what they know of `first_step` and later, where they can.

    Raises ConfigError when one needs a package that is missing.
    """
    loggers: list[Any] = []
    wanted = {
        "create_tensorboard_logger": (
            "TensorBoardLogger",
            # One folder however often the run is resumed; without a version Lightning makes a new one each time.
            {
                "save_dir": config.explicit_log_dir,
                "name": "tensorboard",
                "version": "",
                "purge_step": first_step,
            },
        ),
        "create_wandb_logger": (
            "WandbLogger",
            {"save_dir": config.explicit_log_dir, **config.wandb_logger_kwargs},
        ),
        "create_mlflow_logger": ("MLFlowLogger", dict(config.mlflow_logger_kwargs)),
    }
    for switch, (class_name, arguments) in wanted.items():
        if not getattr(config, switch):
            continue
        import lightning.pytorch.loggers as available

        try:
            loggers.append(getattr(available, class_name)(**arguments))
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"exp_manager.{switch}=true needs a package that is not installed ({error}): install it, or write "
                f"exp_manager.{switch}=false."
            ) from error
    return loggers


class Telemetry:
    """Where the main rank's numbers go; a context that tells the loggers how the run ended. Other ranks have none."""

    COLUMNS = (
        ("reward", "reward/mean", "{:.3f}"),
        ("pass", "reward/pass_rate", "{:.3f}"),
        ("KL", "objective/kl_to_reference", "{:.4f}"),
        ("entropy", "objective/entropy", "{:.3f}"),
        ("length", "response/tokens_mean", "{:.1f}"),
        ("useful", "dynamic_sampling/informative_share", "{:.0%}"),
        ("tok/s", "throughput/tokens_per_s", "{:.0f}"),
        ("s/step", "time/step_s", "{:.1f}"),
    )

    def __init__(self, config: RunConfig, *, log: RunLog, state: RunState) -> None:
        """`state`: where the run begins or goes on. What was recorded of later steps is taken back."""
        from nemo_prorl.training.difficulty import DifficultyLog  # heavy; many only read metrics here
        from nemo_prorl.training.samples import SampleLog

        exp_manager = config.exp_manager
        run_dir = Path(exp_manager.explicit_log_dir)
        self._file = MetricsFile(run_dir / "metrics.jsonl")
        self._file.rewind(state.num_records, state.step)
        self._difficulty = DifficultyLog(run_dir, step=state.step)
        self._samples = SampleLog(run_dir, step=state.step)
        make_loggers = nemo_loggers if wants_nemo(exp_manager) else lightning_loggers
        self._loggers = make_loggers(exp_manager, first_step=state.step + 1 if state.num_records else 0)
        self._log = log
        self._num_steps = config.trainer.num_steps
        self._num_shown = 0
        self._shown_s = 0.0

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for logger in self._loggers:
            logger.finalize("success" if kind is None else "failed")

    def step(self, record: Mapping[str, Any], *, stage_step: int) -> None:
        """One finished step (or the state before the first): file, loggers, terminal.

        Numbers that are not finite, such as the ratio of a token that the clip discards, have no place in JSON: they
        are named and left out."""
        not_finite = [
            key for key, value in record.items() if isinstance(value, float) and not isfinite(value)
        ]
        if not_finite:
            self._log.say(f"   not finite after step {record['step']}: {', '.join(not_finite)}")
            record = {key: value for key, value in record.items() if key not in not_finite}
        self._file.append(record)
        numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
        for logger in self._loggers:
            logger.log_metrics(numbers, step=int(record["step"]))
        if "reward/mean" in record:
            self._show(record, stage_step)
        if PROMPT_MEAN in record:
            self._log.say(_validation_line(record))

    def prompts(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Every prompt that a step sampled, kept or not."""
        self._difficulty.write(step, groups)

    def held_out(self, step: int, samples: Sequence[Sample]) -> None:
        """What is kept of a validation's rollouts."""
        self._samples.write(step, samples)

    def _show(self, record: Mapping[str, Any], stage_step: int) -> None:
        if self._num_shown % 20 == 0:
            self._log.say(
                "   step  " + "  ".join(f"{title:>8}" for title, _, _ in self.COLUMNS) + "      left"
            )
        self._num_shown += 1
        self._shown_s += float(record.get("time/step_s", 0.0))
        left_s = self._shown_s / self._num_shown * (self._num_steps - stage_step)
        cells = [form.format(record[key]) if key in record else "-" for _, key, form in self.COLUMNS]
        minutes, seconds = divmod(int(left_s), 60)
        self._log.say(
            f"{stage_step:>4}/{self._num_steps:<4}"
            + "  ".join(f"{cell:>8}" for cell in cells)
            + f"  {minutes:>4}m{seconds:02d}s"
        )


def _validation_line(record: Mapping[str, Any]) -> str:
    domains = sorted(
        key.split("/")[1]
        for key in record
        if key.startswith("validation/") and key.endswith("/reward") and key.count("/") == 2
    )
    parts = ", ".join(f"{domain} {record[f'validation/{domain}/reward']:.3f}" for domain in domains)
    means = f"reward {record[PROMPT_MEAN]:.3f}"
    if DOMAIN_MEAN in record:
        means = f"mean over domains {record[DOMAIN_MEAN]:.3f}, over prompts {record[PROMPT_MEAN]:.3f}"
    return f"   held out at step {record['step']}: {means} ({parts})"
