"""Sentences and numbers on a run for the page and `status`: whether it is healthy, what it has reached, and its
cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_prorl.report.panels import names_in
from nemo_prorl.report.state import UNDER_WAY, facts_of
from nemo_prorl.run_folder.run import RunFolder, loop_s
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, MEASURED_OPTIONS, MEASUREMENT, PROMPT_MEAN
from nemo_prorl.training.control.health import Check, Followed


@dataclass(frozen=True, slots=True)
class Best:
    """Held-out reward of a domain, or one of the two means: at the first validation, now, and at its best (of equal
    ones the newest); of the validations that measured the same as the newest."""

    domain: str
    first: float
    last: float
    best: float
    best_step: int


def checks_of(run: RunFolder) -> list[Check]:
    """Returns the findings of all checks that apply, warnings first: those of training/control/health.py, and two of
    the files themselves."""
    followed = Followed(str(run.last["stage"]), run.options, run.folder)
    for record in run.records:
        followed.observe(record)
    facts = facts_of(run)
    advice = f" What to do: {facts['advice']}." if facts["advice"] else ""
    text = f"The run is {facts['state']}: {facts['wrote'].removeprefix('failed: ').rstrip('.')}.{advice}"
    found = [Check("Progress", facts["state"] in (*UNDER_WAY, "done"), text)]
    if run.num_unread_lines:
        text = f"{run.num_unread_lines} line(s) of metrics.jsonl cannot be read and are left out: look for a disk that "
        found.append(Check("Damaged files", False, text + "is full or fails."))
    return sorted([*found, *followed.checks()], key=lambda check: check.is_fine)


def bests_of(run: RunFolder) -> list[Best]:
    """Returns the values for the mean over domains, the mean over prompts, and the domains by name; empty without
    validation."""
    keys = {"mean over domains": DOMAIN_MEAN, "mean over prompts": PROMPT_MEAN}
    keys |= {name: f"validation/{name}/score" for name in names_in("validation/{}/score", run.metric_names)}
    bests = []
    validations = run.validations
    comparable = [one for one in validations if one.get(MEASUREMENT) == validations[-1].get(MEASUREMENT)]
    for domain, key in keys.items():
        if points := [(float(record[key]), int(record["step"])) for record in comparable if key in record]:
            best, step = max(points)  # of equal ones the newest, as `run_folder.checkpoints.by_score` has it
            bests.append(Best(domain, points[0][0], points[-1][0], best, step))
    return bests


def measurement_differences(runs: Sequence[RunFolder]) -> str:
    """Returns why the runs' held-out scores cannot be set side by side: their newest validations measure different
    things, or what they measure is not recorded. Empty if they can."""
    newest = [run.validations[-1] for run in runs if run.validations]
    measured = {one.get(MEASUREMENT, "") for one in newest}
    said = []
    if len(newest) > 1 and (len(measured) > 1 or "" in measured):
        configs = [run.configs.get(str(run.validations[-1]["stage"]), {}) for run in runs if run.validations]
        values = {option: {config.get(option) for config in configs} for option in MEASURED_OPTIONS}
        differing = [option for option, of in values.items() if None not in of and len(of) > 1]
        why = f"their validations differ in {', '.join(differing) or 'prompts or graders'}"
        if "" in measured:
            why = "what one of them measured is not recorded"
        said.append(f"The held-out scores of these runs cannot be set side by side: {why}.")
    changing = [run.name for run in runs if len({one.get(MEASUREMENT) for one in run.validations}) > 1]
    if changing and len(newest) > 1:
        said.append(
            f"In {', '.join(changing)} validation began to measure something else on the way (see Events)."
        )
    return " ".join(said)


def wall_s(run: RunFolder) -> float:
    """Seconds of the recorded steps, validations and saves; without startup and repeated steps."""
    return sum(map(loop_s, run.records))


def num_tokens(run: RunFolder) -> float:
    """Tokens sampled in training."""
    return sum(float(record.get("throughput/num_tokens", 0.0)) for record in run.records)
