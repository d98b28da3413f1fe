"""Every recipe trains for three steps on the real engines and the real reward service, through the functions of
`train`.

All recipes share one process and one pair of engines: before each recipe the policy gets its first weights, optimizer
and reference back. `brorl`, which is `prorl_v2` at another scale, repeats its numbers exactly, so the recipes in
between leave nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nemo_prorl import run
from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import compose
from nemo_prorl.config.help import conf_names
from nemo_prorl.data.batch import TrainingRow, train_batch, with_old_logprobs
from nemo_prorl.distributed import initialise
from nemo_prorl.engines.tokenizer import load_tokenizer
from nemo_prorl.run_folder.records import read_digests
from nemo_prorl.run_folder.telemetry import RunLog
from nemo_prorl.training import splitting
from nemo_prorl.training.splitting import split_over_ranks
from nemo_prorl.training.watchdog import Watchdog
from nemo_prorl.types import RunState
from tests.engines.conftest import run_ranks
from tests.training.tiny import ROOT, TIMEOUT_S, Case, steps, timeless

pytestmark = pytest.mark.slow

CONF_DIR = ROOT / "conf"
RECIPES = conf_names(CONF_DIR, "recipe")
NUM_STEPS = 3
OVERRIDES = (
    f"trainer.num_steps={NUM_STEPS}",
    "trainer.prompts_per_step=4",
    "sampler.num_rollouts=4",
    f"validation.interval={NUM_STEPS}",
    "validation.max_prompts=1",
    "validation.num_rollouts=2",
    f"exp_manager.checkpoint_callback_params.every_n_train_steps={NUM_STEPS}",
)

PASSED = "with_a_pass_"
"""Begins the names of runs whose first updates get their old log-probabilities from a pass before them."""
Records = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def records(case: Case) -> Records:
    """Returns the records of each recipe's steps."""
    options = {
        passed + name: [*OVERRIDES, f"recipe={name}", f"reward.urls=[{case.url}]",
                        f"exp_manager.explicit_log_dir={case.run_dir(f'recipe_{passed}{name}')}"]
        for name in RECIPES for passed in ("", PASSED)
    }  # fmt: skip
    run_ranks(train_in_turn, 1, timeout_s=TIMEOUT_S, folder=case.folder, options=options)
    return {name: steps(case.run_dir(f"recipe_{name}")) for name in RECIPES}


def train_in_turn(folder: Path, options: dict[str, list[str]]) -> None:
    """Trains one stage for each entry of `options` in this process, on engines that are built once."""
    configs = {
        name: compose(str(folder / "tiny.yaml"), chosen, conf_dir=CONF_DIR)
        for name, chosen in options.items()
    }
    first = next(iter(configs.values()))
    ranks = initialise(1, 1)
    policy, _ = run.build_policy(first, ranks, run.starting_point(first))
    start = folder / "first weights"
    start.mkdir()
    save = policy.begin_save(start)
    save.write()
    save.finish()

    def the_policy(config: RunConfig, *_: Any) -> tuple[Any, RunState]:
        policy.load(start)
        policy.config = config  # type: ignore[attr-defined]
        return policy, RunState(stage=config.stage.name)

    with run.build_sampler(first, ranks, load_tokenizer(first)) as sampler:

        @contextmanager
        def the_sampler(*_: Any, **__: Any) -> Iterator[Any]:
            yield sampler

        def split_after_a_pass(*arguments: Any) -> list[list[TrainingRow]]:
            updates = split_over_ranks(*arguments)
            if updates[0][0].rollout.old_logprobs is None:
                old = policy.logprobs(train_batch(updates[0]).tokens)
                updates[0] = with_old_logprobs(updates[0], old)
            return updates

        with patch.object(run, "build_policy", the_policy), patch.object(run, "build_sampler", the_sampler):
            for name, config in configs.items():
                split = split_after_a_pass if name.startswith(PASSED) else split_over_ranks
                splitting.split_over_ranks = split  # in this process, which ends with this function
                run_dir = Path(config.exp_manager.explicit_log_dir)
                log = RunLog(run_dir, speaks=True)
                with ExitStack() as at_the_end, Watchdog(run_dir, rank=0, timeout_s=0) as watchdog:
                    run.run_stage(config, run.starting_point(config), ranks, log, watchdog, at_the_end)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains(records: Records, recipe: str) -> None:
    assert [record["step"] for record in records[recipe]] == list(range(1, NUM_STEPS + 1))
    for record in records[recipe]:
        numbers = [value for value in timeless(record).values() if isinstance(value, float)]
        assert all(math.isfinite(value) for value in numbers)
        assert record["optimizer/grad_norm"] > 0
        assert 0 <= record["sampler/logprob_abs_diff_max"] < 1e-3
        moved = record["optimizer/num_updates"] > record["step"]  # by an earlier update of the step
        assert (record["objective/approx_kl_to_old"] > 0) == moved


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"prorl", "brorl"}))
def test_a_recipe_makes_a_difference(records: Records, recipe: str) -> None:
    """Recipes differ from the first updates on, with the same rollouts where the temperature is the same."""
    for name in set(records) - {"brorl", recipe}:
        mine, other = timeless(records[recipe][0]), timeless(records[name][0])
        assert mine["optimizer/grad_norm"] != other["optimizer/grad_norm"], name


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_first_update_without_a_pass_before_it_is_the_same_to_the_last_bit(
    case: Case, records: Records, recipe: str
) -> None:
    passed = case.run_dir(f"recipe_{PASSED}{recipe}")
    assert [timeless(record) for record in steps(passed)] == [timeless(record) for record in records[recipe]]
    hashes = [
        [(record["phases"], record["updates"]) for record in read_digests(folder).steps.values()]
        for folder in (case.run_dir(f"recipe_{recipe}"), passed)
    ]
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == NUM_STEPS


def test_brorl_is_prorl_v2_at_the_same_scale(records: Records) -> None:
    assert [timeless(r) for r in records["brorl"]] == [timeless(r) for r in records["prorl_v2"]]
