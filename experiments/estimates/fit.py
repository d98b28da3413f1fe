"""Fits the constants of `plan --time` to published step times, and prints how well they meet the rows held out.

    python -m experiments.estimates.fit

The fitted rows decide Derates and RANGE in nemo_prorl/cluster/scale/roofline.py and the mean length of verl's responses
in published.py: write there what is printed. The table is the one in experiments/estimates.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from math import exp, log
from pathlib import Path

import numpy as np

from experiments.estimates import published
from experiments.estimates.published import ROWS, STEP, Row
from nemo_prorl.cluster.plan.chain import load_chain, paper_stages
from nemo_prorl.cluster.plan.estimate import PAPER_GPU_HOURS
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS
from nemo_prorl.cluster.scale.layouts import plan_of
from nemo_prorl.cluster.scale.roofline import RANGE, Derates
from nemo_prorl.cluster.scale.known import PAPER_MODEL, shape_of
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.types import FloatArray

FITTED_PARTS = ("sampling", "passes", "updates")
"""Parts whose seconds depend on the derates."""
PRIOR = Derates(sampling=0.6, matrices=0.6, half_width=2048.0)
"""Where a constant stays that the rows do not decide."""
PRIOR_WEIGHT = 0.1
"""A constant that is off by a factor f counts as much as a row that is off by f to this power."""
NAMES = [each.name for each in fields(Derates)]


def residuals(values: FloatArray) -> FloatArray:
    """Returns log(published / estimate) of the parts of the fitted rows, and the weighted distances from PRIOR.
    `values`: logarithms of the derates and of verl's mean length."""
    *logs, verl_tokens = values
    derates = Derates(**dict(zip(NAMES, map(exp, logs), strict=True)))
    rows = [replace(row, mean_tokens=exp(verl_tokens)) if row.gpu is published.H20 else row for row in ROWS]
    factors = [row.factors(derates) for row in rows if not row.is_held_out]
    off = [log(of[part]) for of in factors for part in FITTED_PARTS if part in of]
    return np.array(
        [*off, *(PRIOR_WEIGHT * (each - log(p)) for each, p in zip(logs, astuple(PRIOR), strict=True))]
    )


def fit() -> tuple[Derates, float]:
    """Returns the derates and verl's mean length with the least squares, by damped Gauss-Newton steps."""
    values = np.log([*astuple(PRIOR), published.VERL_MEAN_TOKENS])
    for _ in range(30):
        here = residuals(values)
        slopes = np.array([(residuals(values + 1e-4 * unit) - here) / 1e-4 for unit in np.eye(len(values))])
        step = np.linalg.solve(slopes @ slopes.T + 1e-3 * np.eye(len(values)), -slopes @ here)
        while np.sum(residuals(values + step) ** 2) > np.sum(here**2) and np.abs(step).max() > 1e-6:
            step /= 2
        values = values + step
    *logs, verl_tokens = values
    return Derates(**dict(zip(NAMES, map(exp, logs), strict=True))), exp(verl_tokens)


def whole(row: Row) -> float:
    """Returns published over estimated seconds of a row: of the step, or of all its parts together."""
    estimate = row.estimate()
    parts = [STEP] if STEP in estimate else list(estimate)
    return sum(row.seconds[part] for part in parts) / sum(estimate[part] for part in parts)


def paper_hours() -> tuple[float, float]:
    """Returns the GPU hours of ProRL's eight runs, and what the estimated parts of all their steps add up to."""
    conf = Path("conf")
    chain = load_chain(paper_stages(conf), [], config_name="train", conf_dir=conf)
    cluster, model = Cluster(num_nodes=4, gpus_per_node=8), shape_of(PAPER_MODEL)
    cases = [Case(model=model, config=config, cluster=cluster, gpu=GPUS["h100"]) for config in chain]
    seconds = sum(case.config.trainer.num_steps * plan_of(case).time.seconds for case in cases)
    return PAPER_GPU_HOURS, seconds * cluster.num_gpus / 3600


def table() -> Iterator[str]:
    """Yields the lines of a Markdown table of the rows, the held-out ones last."""
    yield "| published by | published | estimate | factor | |"
    yield "|---|---|---|---|---|"
    for row in sorted(ROWS, key=lambda row: (row.is_held_out, row.is_small)):
        estimate = row.estimate()
        parts = [STEP] if STEP in estimate else list(estimate)
        seconds, estimated = (sum(of[part] for part in parts) for of in (row.seconds, estimate))
        several = "two parts of a step" if len(parts) == 2 else "three parts of a step"
        what = "step" if STEP in parts else "update" if row.is_update_only else several
        kind = "**held out**" if row.is_held_out else "fitted"
        yield f"| {row.name}: {what} | {seconds:.3g} s | {estimated:.3g} s | {seconds / estimated:.2f} | {kind} |"
    hours, estimated = paper_hours()
    factor = hours / estimated
    yield f"| ProRL 1.5B, 32 H100: all of it | {hours:,} h | {estimated:,.0f} h | {factor:.2f} | **held out** |"


if __name__ == "__main__":
    print(*fit())
    factors = [whole(row) for row in ROWS if not row.is_held_out]
    print(f"factors of fitted rows {min(factors):.2f} to {max(factors):.2f}; RANGE is {RANGE}")
    for row in ROWS:
        print(f"{row.name:32}", {part: round(factor, 2) for part, factor in row.factors().items()})
    print(*table(), sep="\n")
