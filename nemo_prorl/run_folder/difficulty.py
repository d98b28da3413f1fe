"""How each prompt fared, in small Parquet files with equal columns.

    RUN/difficulty/step-00000040.parquet          every prompt that the step sampled, trained on or not
    RUN/validations/step-00000040-STAGE.parquet   every held-out prompt of the validation that followed the step

Two runs that validate the same prompts can be compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.storage import read_or_refuse, read_or_skip, step_files
from nemo_prorl.run_folder.tables import read_table, write_rows
from nemo_prorl.types import CORRECT, RolloutGroup

if TYPE_CHECKING:
    import pandas as pd


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


def write_prompts(
    run_dir: Path, folder: str, step: int, groups: Sequence[RolloutGroup], stage: str = ""
) -> None:
    """Writes a row for each prompt of which a rollout was graded, if there is one. Uses the scores before shaping, so
    that they do not depend on the penalties of a stage. folder: "difficulty", or "validations" of a stage."""
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
    write_rows(step_files(run_dir, folder).path(step, stage), rows)


def read_difficulty(run_dir: Path) -> pd.DataFrame:
    """Returns a row for each time that a prompt was sampled, in the order of the steps, with the columns step, uid,
    epoch, domain, source, num_rollouts, reward_mean and pass_rate. Skips files that cannot be read. Raises ConfigError
    if there are no files."""
    import pyarrow as pa

    files = step_files(run_dir, "difficulty").all()
    if not files:
        raise ConfigError(
            f"{run_dir} has no difficulty/ with files of steps: write the folder of a run that has trained for a step."
        )
    parts = [part for _, path in files if (part := read_or_skip(path, read_table)) is not None]
    return (pa.concat_tables(parts) if parts else pa.table({})).to_pandas()


def difficulty_metrics(run_dir: Path) -> dict[int, dict[str, float]]:
    """Returns the metrics by step; empty for a run without difficulty files."""
    if not step_files(run_dir, "difficulty").all() or (rows := read_difficulty(run_dir)).empty:
        return {}
    rates = rows["pass_rate"]
    bands = np.select([rates == 0, rates <= 0.25, rates <= 0.75, rates < 1], [0, 1, 2, 3], default=4)
    for number, metric in enumerate(BANDS):
        rows[metric] = (bands == number).astype(float)
    rows[NOW], rows[BEFORE] = rates, rows.groupby("uid")["pass_rate"].shift()
    counts = rows.groupby("step")[[*BANDS]].sum()
    again = rows.dropna(subset=[BEFORE]).groupby("step")[[NOW, BEFORE]].mean()
    found = {int(step): row for step, row in counts.to_dict("index").items()}
    for step, means in again.to_dict("index").items():
        found[int(step)] |= means
    return found


def read_rewards(run_dir: Path, stage: str, step: int, column: str = "reward_mean") -> dict[str, float]:
    """Returns uid -> mean reward, or another column, of each held-out prompt in the stage's validation after `step`.
    Raises ConfigError if its file is not there or cannot be read."""
    path = step_files(run_dir, "validations").path(step, stage)
    read = partial(read_table, columns=["uid", column])
    table = read_or_refuse(path, read, "delete the folder of that run, to train it again")
    return dict(zip(table["uid"].to_pylist(), table[column].to_pylist(), strict=True))


def summary(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Returns domain -> how a run fared on its prompts, in alphabetical order, and at last the same for "all" domains.
    rows: those of `read_difficulty`.

    prompts, visits: their number, and how often they were sampled. first, last: mean over prompts of the pass rate when
    they were first and last sampled. never, always: share of the prompts that no rollout ever solved, and that every
    rollout solved, each time that they were sampled.
    """
    rates = rows.groupby(["domain", "uid"])["pass_rate"]
    prompts = rates.agg(["size", "first", "last", "min", "max"])
    by_domain = {str(domain): part for domain, part in prompts.groupby("domain")}
    return {
        domain: {
            "prompts": len(part),
            "visits": int(part["size"].sum()),
            "first": float(part["first"].mean()),
            "last": float(part["last"].mean()),
            "never": float((part["max"] == 0).mean()),
            "always": float((part["min"] == 1).mean()),
        }
        for domain, part in {**by_domain, "all": prompts}.items()
    }
