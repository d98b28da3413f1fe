"""Tests that every warning appears if and only if its cause is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

from nemo_prorl.report.health import bests_of, checks_of, measurement_differences, num_tokens, wall_s
from nemo_prorl.run_folder.run import RunFolder, read_run
from nemo_prorl.run_folder.starts import Start
from nemo_prorl.run_folder.validation_metrics import MEASUREMENT, PROMPT_MEAN
from tests.report.made_up_runs import DOMAINS

Change = Callable[[dict[str, Any]], dict[str, Any]]


def warnings(run: RunFolder) -> dict[str, str]:
    return {check.title: check.text for check in checks_of(run) if not check.is_fine}


def with_values(run: RunFolder, **values: Any) -> RunFolder:
    """Returns the run as if its files said this."""
    changed = copy(run)
    changed.__dict__.update(values)
    return changed


def since_31(**metrics: float) -> Change:
    """Returns records with other values from step 31 on."""
    return lambda record: record | metrics if record["step"] > 30 and "reward/mean" in record else record


def test_a_healthy_run_has_no_warning(make_run: Callable[..., RunFolder], long_run: RunFolder) -> None:
    assert warnings(make_run()) == {}
    assert warnings(long_run) == {}
    assert len(checks_of(long_run)) >= 8


def test_progress_is_what_status_says(make_run: Callable[..., RunFolder]) -> None:
    """Nobody should submit a second job where Slurm has requeued the first."""
    run = make_run()
    (check,) = (check for check in checks_of(run) if check.title == "Progress")
    assert (check.is_fine, check.text) == (True, "The run is done: ended (all its steps).")
    now = time.time()
    start = Start(stage="run2", began=now, seen=now, num_ranks=1, on_gpus=False, job="35", end="no GPU")
    text = warnings(with_values(run, outcomes={}, starts=[start]))["Progress"]
    assert text.startswith(
        "The run is stopped: stopped 0 s ago: no GPU. What to do: submit again: it begins again,"
    )
    assert text.endswith("unless a job of it is in the queue.")


@pytest.mark.parametrize(
    ("title", "change", "said"),
    [
        ("Sampler and trainer", since_31(**{"sampler/logprob_abs_diff_mean": 0.2}), "by more than 0.15 nats"),
        ("Sampler and trainer", since_31(**{"sampler/canary_abs_diff_mean": 0.2}), "canary_abs_diff_mean is 0.2"),
        ("Sampler and trainer", since_31(**{"sampler/num_still_wrong_tensors": 3.0}), "3 tensors of the sampler are"),
        ("Sampler and trainer", lambda r: r | {"sampler/num_wrong_tensors": float(r["step"] == 50)},
         "1 recent refits brought wrong tensors"),
        ("Yield of dynamic sampling", since_31(**{"dynamic_sampling/informative_share": 0.1}), "10%"),
        ("Grading", since_31(**{"dynamic_sampling/num_failed_rollouts": 400.0}), "were not graded"),
        ("Temperature", lambda r: r | {"objective/entropy": 5.5}, "5.5 nats of entropy a token at"),
        ("Largest ratio", lambda r: r | {"objective/ratio_max": 11.0} if r["step"] == 60 else r, "is 11"),
        ("Grading time", since_31(**{"grading/exposed_s": 300.0}), "more workers"),
        ("Validation", lambda r: {k: v for k, v in r.items() if "validation" not in k}, "data.validation"),
        ("Validation", lambda r: {k: v for k, v in r.items() if r["step"] <= 0 or "validation" not in k},
         "60 steps ago, where one is due every 20"),
        ("Gradients", lambda r: r | {"optimizer/grad_norm": 9.0} if r["step"] > 40 else r, "times the run's median"),
    ],
)  # fmt: skip
def test_a_cause_has_its_warning_and_no_other(
    title: str, change: Change, said: str, make_run: Callable[..., RunFolder]
) -> None:
    found = warnings(make_run(change))
    assert list(found) == [title]
    assert said in found[title]


def test_rollouts_of_a_domain_that_the_last_step_lacks_were_graded_too(
    make_run: Callable[..., RunFolder],
) -> None:
    counts = {f"reward/{domain}/num_rollouts": 100.0 for domain in DOMAINS}

    def change(record: dict[str, Any]) -> dict[str, Any]:
        """Fails 100 of 10,000 rollouts in the last 20 steps; 1.23% if stem did not count."""
        if "reward/mean" not in record:
            return record
        made = record | counts | {"dynamic_sampling/num_failed_rollouts": 5.0}
        return {key: value for key, value in made.items() if record["step"] < 60 or "/stem/" not in key}

    assert "1.00%" in warnings(make_run(change))["Grading"]


def test_rollouts_of_older_weights_may_differ(make_run: Callable[..., RunFolder]) -> None:
    run = make_run(since_31(**{"sampler/logprob_abs_diff_mean": 0.2, "sampler/updates_behind": 4.0}))
    (said,) = (check for check in checks_of(run) if check.title == "Sampler and trainer")
    assert said.is_fine
    assert "0.2 nats" in said.text
    assert "sampler.ahead" in said.text


CLIP, BOUNDED, CISPO = (
    {"algorithm.objective": objective, "algorithm.dual_clip": dual_clip}
    for objective, dual_clip in (("clip", 0.0), ("clip", 3.0), ("cispo", 0.0))
)


@pytest.mark.parametrize(
    ("metrics", "options", "title", "said"),
    [
        ({"objective/ratio_max": 23.0}, CLIP, "Largest ratio", "Set algorithm.dual_clip=3"),
        ({"objective/ratio_max": 23.0}, BOUNDED, "Largest ratio", "is 23"),
        ({"objective/ratio_max": 23.0}, CISPO, "Largest ratio", "is 23"),
    ],
)
def test_options_decide_what_is_much(
    metrics: dict[str, float],
    options: dict[str, Any],
    title: str,
    said: str,
    make_run: Callable[..., RunFolder],
) -> None:
    """A large ratio is dangerous where nothing bounds it."""
    run = make_run(since_31(**metrics))
    configs = {stage: {**others, **options} for stage, others in run.configs.items()}
    text = warnings(with_values(run, configs=configs)).get(title, "")
    assert said in text
    assert bool(said) == bool(text)
    assert ("dual_clip=3" in text) == ("dual_clip=3" in said)


def test_the_reset_controller_is_asked_until_a_reset_answers(make_run: Callable[..., RunFolder]) -> None:
    def drop(record: dict) -> dict:
        if record["step"] < 200 or "validation/score" not in record:
            return record | {"num_resets": 0}
        worse = {key: 0.4 * record[key] for key in record if key.startswith("validation/") and "score" in key}
        return record | worse | {"num_resets": 0}

    def drop_and_reset(record: dict) -> dict:
        return drop(record) | {"num_resets": int(record["step"] >= 290)}

    options = {"num_steps": 300, "num_stages": 1, "validation_interval": 10}
    assert "validation_drop" in warnings(make_run(drop, **options))["Reset controller"]
    assert "Reset controller" not in warnings(make_run(drop_and_reset, **options))


def test_a_warning_of_the_controller_is_shown_while_it_is_recent(make_run: Callable[..., RunFolder]) -> None:
    def few_until(last: int) -> Callable[[dict], dict]:
        return lambda record: (
            record | {"objective/effective_sample_share": 0.3 if record["step"] <= last else 0.9}
        )

    options = {"num_steps": 300, "num_stages": 1, "validation_interval": 10}
    assert "It warns (effective_sample)" in warnings(make_run(few_until(300), **options))["Reset controller"]
    assert "Reset controller" not in warnings(make_run(few_until(200), **options))


def test_unread_lines_and_failures_are_said(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run().folder
    text = (folder / "metrics.jsonl").read_text().splitlines()
    text[40] = text[40][:50]
    (folder / "metrics.jsonl").write_text("\n".join(text) + "\n")
    said = warnings(read_run(folder))["Damaged files"]
    assert said.startswith("1 line(s) of metrics.jsonl cannot be read and are left out")
    (folder / "stages" / "run2.failed").write_text('{"reason": "disk full"}')
    assert "disk full" in warnings(read_run(folder))["Progress"]


def test_sums_and_bests(make_run: Callable[..., RunFolder]) -> None:
    def flat(record: dict) -> dict:
        return (
            record | {"validation/math/score": 0.9 if record["step"] == 20 else 0.2}
            if "validation/score" in record
            else record
        )

    run = make_run(flat)
    assert num_tokens(run) == 60 * 24e6
    expected = sum(record["time/step_s"] for record in run.steps) + 240 * len(run.validations)
    assert wall_s(run) == pytest.approx(expected)
    (math,) = [best for best in bests_of(run) if best.domain == "math"]
    assert (math.first, math.last, math.best, math.best_step) == (0.2, 0.2, 0.9, 20)
    assert [best.domain for best in bests_of(run)] == [
        "mean over domains", "mean over prompts", "code", "instruction", "logic", "math", "stem",
    ]  # fmt: skip


def test_the_best_is_the_newest_of_equal_ones_that_measured_the_same(
    make_run: Callable[..., RunFolder],
) -> None:
    """The validations of steps 0, 20 and 30 measured something else, and had higher rewards."""

    def measured(record: dict[str, Any]) -> dict[str, Any]:
        is_other = record["step"] >= 40
        named = {PROMPT_MEAN: 0.4 if is_other else 0.9, MEASUREMENT: "b" if is_other else "a"}
        return record | named if PROMPT_MEAN in record else record

    (best,) = [
        best for best in bests_of(make_run(measured, num_stages=2)) if best.domain == "mean over prompts"
    ]
    assert (best.first, best.best, best.best_step) == (0.4, 0.4, 60)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", [{"num_steps": 60}, {"num_steps": 400, "num_stages": 1}])
def test_a_healthy_run_has_no_warning_whatever_its_noise(
    seed: int, options: dict[str, int], make_run: Callable[..., RunFolder]
) -> None:
    assert warnings(make_run(seed=seed, **options)) == {}


def measures(name: str, since: int = 0) -> Change:
    """Returns records whose validations from step `since` on carry this name."""
    return lambda r: r | {MEASUREMENT: name} if PROMPT_MEAN in r and r["step"] >= since else r


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["1", "1"], ""),
        (["1"], ""),
        (["1", None], ""),
        (["1", "2", "1"], "of these runs cannot be set side by side: their validations differ in prompts or graders."),
        (["1", "1", ""], "cannot be set side by side: what one of them measured is not recorded."),
        (["", ""], "cannot be set side by side: what one of them measured is not recorded."),
    ],
)  # fmt: skip
def test_runs_that_measure_different_things_are_told_so(
    names: list[str | None], said: str, make_run: Callable[..., RunFolder]
) -> None:
    """None: a run without validation."""

    def without(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if "validation" not in key}

    sentence = measurement_differences(
        [make_run(without if name is None else measures(name)) for name in names]
    )
    assert bool(sentence) == bool(said)
    assert said in sentence


def test_the_sentence_names_the_options_that_differ(make_run: Callable[..., RunFolder]) -> None:
    runs = [
        with_values(make_run(measures(name)), configs={"run2": {"validation.temperature": temperature}})
        for name, temperature in (("1", 0.6), ("2", 1.0))
    ]
    assert "their validations differ in validation.temperature." in measurement_differences(runs)


def test_a_curve_that_begins_to_measure_something_else_is_named(make_run: Callable[..., RunFolder]) -> None:
    runs = [make_run(measures("1")), make_run(measures("1", since=40))]
    assert "In run1 validation began to measure something else on the way" in measurement_differences(runs)
