"""Metrics: metrics.jsonl always, Lightning's loggers by configuration, and one line a step for whoever watches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, ExpManagerConfig


class MetricsFile:
    """One JSON object a line, appended and flushed at once: a reader of a live run sees every finished step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def rewind(self, step: int, stage: str, *, stage_step: int) -> None:
        """Drops what a resumed run does again: records after `step`, and all of a stage that begins anew."""
        if not self._path.exists():
            return
        kept = [
            record
            for record in read_metrics(self._path)
            if record["step"] <= step and (stage_step > 0 or record["stage"] != stage)
        ]
        aside = self._path.with_suffix(".rewinding")
        aside.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        os.replace(aside, self._path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records; a last line that was cut off by a crash is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def lightning_loggers(config: ExpManagerConfig) -> list[Any]:
    """The loggers that exp_manager asks for. Raises ConfigError when one needs a package that is missing."""
    loggers: list[Any] = []
    wanted = {
        "create_tensorboard_logger": (
            "TensorBoardLogger",
            {"save_dir": config.explicit_log_dir, "name": "tensorboard"},
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
    """Where the main rank's numbers go. Other ranks have none."""

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

    def __init__(self, config: ExpManagerConfig, *, num_steps: int) -> None:
        self._file = MetricsFile(Path(config.explicit_log_dir) / "metrics.jsonl")
        self._loggers = lightning_loggers(config)
        self._num_steps = num_steps
        self._num_shown = 0
        self._shown_s = 0.0

    def rewind(self, step: int, stage: str, *, stage_step: int) -> None:
        """See MetricsFile.rewind."""
        self._file.rewind(step, stage, stage_step=stage_step)

    def step(self, record: Mapping[str, Any], *, stage_step: int) -> None:
        """One finished step (or the state before the first): file, loggers, terminal."""
        self._file.append(record)
        numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
        for logger in self._loggers:
            logger.log_metrics(numbers, step=int(record["step"]))
        if "reward/mean" in record:
            self._show(record, stage_step)
        if "validation/reward" in record:
            self.say(_validation_line(record))

    def _show(self, record: Mapping[str, Any], stage_step: int) -> None:
        if self._num_shown % 20 == 0:
            self.say("   step  " + "  ".join(f"{title:>8}" for title, _, _ in self.COLUMNS) + "      left")
        self._num_shown += 1
        self._shown_s += float(record.get("time/step_s", 0.0))
        left_s = self._shown_s / self._num_shown * (self._num_steps - stage_step)
        cells = [form.format(record.get(key, float("nan"))) for _, key, form in self.COLUMNS]
        minutes, seconds = divmod(int(left_s), 60)
        self.say(
            f"{stage_step:>4}/{self._num_steps:<4}"
            + "  ".join(f"{cell:>8}" for cell in cells)
            + f"  {minutes:>4}m{seconds:02d}s"
        )

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        for logger in self._loggers:
            logger.finalize("success")


def _validation_line(record: Mapping[str, Any]) -> str:
    domains = sorted(
        key.split("/")[1]
        for key in record
        if key.startswith("validation/") and key.endswith("/reward") and key.count("/") == 2
    )
    parts = ", ".join(f"{domain} {record[f'validation/{domain}/reward']:.3f}" for domain in domains)
    return f"   held out at step {record['step']}: reward {record['validation/reward']:.3f} ({parts})"
