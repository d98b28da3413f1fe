"""How each prompt fared, in small Parquet files with equal columns.

    RUN/difficulty/step-00000040.parquet          every prompt that the step sampled, trained on or not
    RUN/validations/step-00000040-STAGE.parquet   every held-out prompt of the validation that followed the step

Two runs that validate the same prompts can be compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.storage import StepFiles, replacing_file, step_files
from nemo_prorl.run_folder.validation_metrics import CORRECT
from nemo_prorl.types import RolloutGroup

if TYPE_CHECKING:
    import pyarrow as pa


BANDS = {
    "difficulty/num_never": "no rollout",
    "difficulty/num_seldom": "up to 1/4",
    "difficulty/num_sometimes": "up to 3/4",
    "difficulty/num_mostly": "over 3/4",
    "difficulty/num_always": "every rollout",
}
"""Metric -> the range of pass rates that it counts."""
NOW, BEFORE = "difficulty/revisited_pass_rate", "difficulty/previous_pass_rate"
"""Mean over a step's prompts that were sampled before: at this visit, and at the previous one."""


def difficulty_files(run_dir: Path) -> StepFiles:
    """Returns the run's difficulty files, one for every step that it has trained."""
    return step_files(run_dir, "difficulty")


def validation_files(run_dir: Path) -> StepFiles:
    """Returns the run's validation files. A file is named after its stage and the step that its validation
    followed."""
    return step_files(run_dir, "validations")


def write_difficulty(run_dir: Path, step: int, groups: Sequence[RolloutGroup]) -> None:
    """Writes the prompts of one step, without prompts of which no rollout was graded."""
    write_prompts(difficulty_files(run_dir).path(step), step, groups)


def write_validation(run_dir: Path, stage: str, step: int, groups: Sequence[RolloutGroup]) -> None:
    """Writes the held-out prompts of a stage's validation, which followed `step`."""
    write_prompts(validation_files(run_dir).path(step, stage), step, groups)


def write_prompts(path: Path, step: int, groups: Sequence[RolloutGroup]) -> None:
    """Writes a row for each prompt of which a rollout was graded, if there is one. Uses the scores before shaping, so
    that they do not depend on the penalties of a stage."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for group in groups:
        scores = [member.verdict.score or 0.0 for member in group.members]
        if not scores:
            continue
        uid, _, epoch = group.prompt.uid.rpartition("#")
        row = {
            "step": step,
            "uid": uid or epoch,
            "epoch": int(epoch) if uid else 0,
            "domain": group.prompt.domain,
            "source": group.prompt.source,
            "num_rollouts": len(scores),
            "reward_mean": fmean(scores),
            "pass_rate": fmean(score >= CORRECT for score in scores),
        }
        rows.append(row)
    if rows:
        with replacing_file(path) as aside:
            pq.write_table(pa.Table.from_pylist(rows), aside)


def read_difficulty(run_dir: Path) -> tuple[pa.Table, list[str]]:
    """Returns (rows, names of files that cannot be read). A row is a time that a prompt was sampled, in the order of
    the steps, with the columns step, uid, epoch, domain, source, num_rollouts, reward_mean and pass_rate. Raises
    ConfigError if there are no files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = difficulty_files(run_dir).all()
    if not files:
        raise ConfigError(
            f"{run_dir} has no difficulty/ with files of steps: write the folder of a run that has trained for a step."
        )
    parts, damaged = [], []
    for _, path in files:
        try:
            parts.append(pq.read_table(path))
        except (pa.ArrowException, OSError):
            damaged.append(path.name)
    return pa.concat_tables(parts) if parts else pa.table({}), damaged


def difficulty_metrics(run_dir: Path) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Returns (the metrics by step, names of files that cannot be read); both empty for a run without difficulty
    files."""
    if not difficulty_files(run_dir).all():
        return {}, []
    table, damaged = read_difficulty(run_dir)
    if not table.num_rows:
        return {}, damaged
    steps, rates = table["step"].to_numpy(), table["pass_rate"].to_numpy()
    prompts = table["uid"].combine_chunks().dictionary_encode().indices.to_numpy()
    numbers, position = np.unique(steps, return_inverse=True)
    bands = np.select([rates == 0, rates <= 0.25, rates <= 0.75, rates < 1], [0, 1, 2, 3], default=4)
    counts = np.zeros((len(numbers), len(BANDS)))
    np.add.at(counts, (position, bands), 1)
    rows = (dict(zip(BANDS, map(float, row), strict=True)) for row in counts)
    found = dict(zip(map(int, numbers), rows, strict=True))
    order = np.argsort(prompts, kind="stable")  # the table is ordered by step
    again = np.flatnonzero(prompts[order][1:] == prompts[order][:-1]) + 1
    now, before = order[again], order[again - 1]
    num_again = np.bincount(position[now], minlength=len(numbers))
    for metric, visits in ((NOW, now), (BEFORE, before)):
        sums = np.bincount(position[now], weights=rates[visits], minlength=len(numbers))
        for index in np.flatnonzero(num_again):
            found[int(numbers[index])][metric] = float(sums[index] / num_again[index])
    return found, damaged


def read_rewards(run_dir: Path, stage: str, step: int) -> dict[str, float]:
    """Returns uid -> mean reward of each held-out prompt in the stage's validation after `step`. Raises
    FileNotFoundError if there was no such validation."""
    import pyarrow.parquet as pq

    table = pq.read_table(validation_files(run_dir).path(step, stage), columns=["uid", "reward_mean"])
    return dict(zip(table["uid"].to_pylist(), table["reward_mean"].to_pylist(), strict=True))


def summary(table: pa.Table) -> dict[str, dict[str, float]]:
    """Returns domain -> how a run fared on its prompts, in alphabetical order, and at last the same for "all" domains.
    table: the rows of `read_difficulty`.

    prompts, visits: their number, and how often they were sampled. first, last: mean over prompts of the pass rate when
    they were first and last sampled. never, always: share of the prompts that no rollout ever solved, and that every
    rollout solved, each time that they were sampled.
    """
    visits: dict[str, dict[str, list[float]]] = {}
    for domain, uid, rate in zip(
        *(table[name].to_pylist() for name in ("domain", "uid", "pass_rate")), strict=True
    ):
        visits.setdefault(domain, {}).setdefault(uid, []).append(rate)
    rates = {domain: list(by_uid.values()) for domain, by_uid in sorted(visits.items())}
    rates["all"] = list(chain.from_iterable(rates.values()))
    return {
        domain: {
            "prompts": len(of_prompts),
            "visits": sum(map(len, of_prompts)),
            "first": fmean(of_visits[0] for of_visits in of_prompts),
            "last": fmean(of_visits[-1] for of_visits in of_prompts),
            "never": fmean(max(of_visits) == 0.0 for of_visits in of_prompts),
            "always": fmean(min(of_visits) == 1.0 for of_visits in of_prompts),
        }
        for domain, of_prompts in rates.items()
    }
