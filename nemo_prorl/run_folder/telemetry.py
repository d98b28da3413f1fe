"""Where metrics and messages go: metrics.jsonl, run.log, Lightning's loggers if configured, and the terminal.

A resumed run repeats the steps after its checkpoint. Their earlier records are deleted, so that an interrupted run has
the same records as one that was not interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_prorl.config import RunConfig
from nemo_prorl.run_folder import terminal
from nemo_prorl.run_folder.difficulty import write_prompts
from nemo_prorl.run_folder.formats import duration
from nemo_prorl.run_folder.loggers import Loggers
from nemo_prorl.run_folder.metrics_file import METRICS_FILE, append_metrics, rewind_metrics
from nemo_prorl.run_folder.records import DigestLog
from nemo_prorl.run_folder.samples import GradedText, write_samples
from nemo_prorl.run_folder.storage import STEP_FOLDERS, step_files
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, PROMPT_MEAN

if TYPE_CHECKING:
    from types import TracebackType

    from nemo_prorl.types import RolloutGroup, RunState


class RunLog:
    """The messages of a run, on standard error and in RUN/run.log, to which every process of the run appends."""

    def __init__(self, run_dir: Path, *, speaks: bool) -> None:
        """speaks: whether this is the main rank; the others write nothing."""
        self._path = run_dir / "run.log" if speaks else None

    def say(self, text: str) -> None:
        if self._path is not None:
            terminal.say(text)
            self.note(text)

    def note(self, text: str) -> None:
        """Adds the text to the file, each line with the UTC time, without printing it."""
        if self._path is None:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{now} {line}\n" for line in text.splitlines()))


class Telemetry:
    """Writes everything that a run records. Only the main rank has one. Leaving it as a context tells the loggers
    whether the run succeeded."""

    def __init__(
        self,
        config: RunConfig,
        *,
        log: RunLog,
        state: RunState,
        watch: Callable[[Mapping[str, Any]], Sequence[str]] = lambda record: (),
    ) -> None:
        """state: where the run begins or resumes; records of later steps are deleted. watch: gets every record, those
        of earlier processes first, and returns what to log about a new one."""
        self._run_dir = run_dir = Path(config.exp_manager.explicit_log_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        self._metrics = run_dir / METRICS_FILE
        past = rewind_metrics(self._metrics, state.num_records, state.step, log.say)
        for record in past:
            watch(record)
        self._watch = watch
        for folder in STEP_FOLDERS:
            step_files(run_dir, folder).take_back(state.step)
        self.digests = DigestLog(run_dir, state.step)
        self._stage = state.stage
        first_step = state.step + 1 if state.num_records else 0
        self._loggers = Loggers(config, first_step=first_step, past=past, say=log.say)
        self.is_paused = False
        """Whether the run goes on in another process, so that its loggers need not get everything now."""
        self._log = log
        self._progress = Progress(config.trainer.num_steps)

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_pause = self.is_paused or kind is KeyboardInterrupt
        self._loggers.close("success" if kind is None else "failed", is_pause=is_pause)

    def step(self, record: Mapping[str, Any], *, stage_step: int) -> None:
        """Records the metrics of a finished step, or of the validation at the start or end of a stage.

        Leaves out numbers that are not finite, which JSON cannot represent, such as the KL of a token that the clip
        discards, and logs their names."""
        numbers = {key: value for key, value in record.items() if isinstance(value, float)}
        if not_finite := [key for key, value in numbers.items() if not isfinite(value)]:
            self._log.say(f"   not finite after step {record['step']}: {', '.join(not_finite)}")
            record = {key: value for key, value in record.items() if key not in not_finite}
        append_metrics(self._metrics, record)
        self._loggers.log(record)
        if "reward/mean" in record:
            for line in self._progress.lines(record, stage_step):
                self._log.say(line)
        if PROMPT_MEAN in record:
            rewards = sorted(key for key in record if re.fullmatch("validation/[^/]+/score", key))
            parts = ", ".join(f"{key.split('/')[1]} {record[key]:.3f}" for key in rewards)
            means = f"reward {record[PROMPT_MEAN]:.3f}"
            if DOMAIN_MEAN in record:
                means = f"mean over domains {record[DOMAIN_MEAN]:.3f}, over prompts {record[PROMPT_MEAN]:.3f}"
            self._log.say(f"   held out at step {record['step']}: {means} ({parts})")
        for line in self._watch(record):
            self._log.say(f"   {line}")

    def prompts(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Records how hard the prompts were that a step sampled, whether it trained on them or not."""
        write_prompts(self._run_dir, "difficulty", step, groups)

    def held_out(self, step: int, groups: Sequence[RolloutGroup], samples: Sequence[GradedText]) -> None:
        """Records a validation: every prompt's result, and the texts of some rollouts."""
        write_prompts(self._run_dir, "validations", step, groups, self._stage)
        write_samples(self._run_dir, self._stage, step, samples)


@dataclass(frozen=True, slots=True)
class Column:
    """A number of the progress lines."""

    title: str
    metric: str
    width: int
    """In characters, with the space before it."""
    num_decimals: int

    def cell(self, record: Mapping[str, Any]) -> str:
        """Returns the number with as many decimals as there is room for, or a dash."""
        if self.metric not in record:
            return f"{'-':>{self.width}}"
        value = float(record[self.metric])
        texts = [f"{value:.{decimals}f}" for decimals in range(self.num_decimals, -1, -1)]
        text = next((text for text in texts if len(text) < self.width), f"{value:.0e}")
        return f"{text:>{self.width}}"


COLUMNS = (
    Column("reward", "reward/mean", 7, 3),
    Column("pass", "reward/pass_rate", 7, 3),
    Column("KL", "objective/kl_to_reference", 7, 4),
    Column("entropy", "objective/entropy", 8, 3),
    Column("length", "response/tokens_mean", 8, 1),
    Column("useful", "dynamic_sampling/informative_share", 7, 2),
    Column("tok/s", "throughput/tokens_per_s", 8, 0),
    Column("s/step", "time/step_s", 7, 1),
)
LEFT_WIDTH = 8


class Progress:
    """Lines of less than 80 columns about the steps of a stage, with a title now and then."""

    TITLE_EVERY = 20

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._num_shown = 0
        self._shown_s = 0.0

    def lines(self, record: Mapping[str, Any], stage_step: int) -> list[str]:
        """Returns the line of a step, and the title before it where it is due."""
        total = str(self._num_steps)
        width = max(9, 2 * len(total) + 1)
        titles = "".join(f"{column.title:>{column.width}}" for column in COLUMNS)
        is_due = self._num_shown % self.TITLE_EVERY == 0
        self._num_shown += 1
        self._shown_s += float(record.get("time/step_s", 0.0))
        left = duration(self._shown_s / self._num_shown * (self._num_steps - stage_step))
        position = f"{stage_step:>{width // 2}}/{total}"
        cells = "".join(column.cell(record) for column in COLUMNS)
        line = f"{position:<{width}}{cells}{left:>{LEFT_WIDTH}}"
        title = f"{'step'.center(width)}{titles}{'left':>{LEFT_WIDTH}}"
        return [title, line] if is_due else [line]
