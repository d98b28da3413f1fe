"""Tests the eight runs against the papers' table, which is written down here independently (2507.12507 section 4.2,
table 1; 2505.24864 appendix E), separately from our own choices where the papers are silent."""

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from nemo_prorl.cluster.plan.chain import Chain, load_chain, missing_files, paper_stages
from nemo_prorl.config import ControllerAction, ControllerMode, DataBuildConfig, RunConfig, StartFrom
from nemo_prorl.config.compose import compose, data_build_options
from nemo_prorl.data.building.source import get, sources

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
DOMAINS = {
    "math": ("data/deepscaler/train.parquet", 40_000),
    "code": ("data/eurus/train.parquet", 24_000),
    "stem": ("data/scp116k/train.parquet", 25_000),
    "logic": ("data/reasoning_gym/train.parquet", 37_000),
    "instruction": ("data/llama_nemotron_if/train.parquet", 10_000),
}
FOUR = ("math", "code", "stem", "logic")
FIVE = (*FOUR, "instruction")
# What the papers say; None where they are silent.
# (run, longest response, rollouts per prompt, domains, are endless responses penalised, hard reset before it)
PAPERS = [
    ("run1", 8_192, 16, FOUR, False, False),
    ("run2", 8_192, 16, FOUR, False, True),
    ("run3", 8_192, 16, FIVE, False, None),
    ("run4", 8_192, 16, FIVE, True, None),
    ("run5", 8_192, 16, FIVE, True, None),
    ("run6", 8_192, 32, FIVE, None, True),
    ("run7", 8_192, 32, FIVE, None, True),
    ("run8", 16_384, 16, FIVE, None, None),
]
NAMES = [row[0] for row in PAPERS]


@pytest.fixture(scope="module")
def recipe() -> Chain:
    return load_chain(paper_stages(CONF_DIR), [], config_name="train", conf_dir=CONF_DIR)


@pytest.fixture(scope="module")
def runs(recipe: Chain) -> dict[str, RunConfig]:
    return {config.stage.name: config for config in recipe}


def test_there_are_eight_in_their_order(recipe: Chain) -> None:
    assert [config.stage.name for config in recipe] == NAMES


@pytest.mark.parametrize(
    ("name", "max_response_tokens", "num_rollouts", "domains", "penalised", "reset"),
    PAPERS,
    ids=lambda v: str(v),
)
def test_each_run_is_the_papers(
    runs: dict[str, RunConfig],
    name: str,
    max_response_tokens: int,
    num_rollouts: int,
    domains: tuple[str, ...],
    penalised: bool | None,
    reset: bool | None,
) -> None:
    config = runs[name]
    assert config.sampler.max_response_tokens == max_response_tokens
    assert config.sampler.num_rollouts == num_rollouts
    assert config.data.train == dict(DOMAINS[domain] for domain in domains)
    if penalised is not None:
        assert (config.shaping.termination_factor < 1) is penalised
    if reset:
        assert (config.stage.reset_reference, config.stage.reset_optimizer) == (True, True)


def test_a_run_continues_the_one_before_it(recipe: Chain) -> None:
    assert [config.stage.parent for config in recipe] == ["", *NAMES[:-1]]


def test_what_we_chose_where_the_papers_are_silent(runs: dict[str, RunConfig]) -> None:
    for name, *_, penalised, reset in PAPERS:
        config = runs[name]
        if penalised is not False:
            assert config.shaping.termination_factor == 0.0, "as in the authors' ProRL v2 scripts"
        if reset is not False:
            assert (config.stage.reset_reference, config.stage.reset_optimizer) == (True, True)
            assert config.stage.reset_data is False


@pytest.mark.parametrize("name", NAMES)
def test_what_never_changes(runs: dict[str, RunConfig], name: str) -> None:
    config = runs[name]
    assert config.model.path == "models/DeepSeek-R1-Distill-Qwen-1.5B"
    assert (config.trainer.prompts_per_step, config.trainer.updates_per_step) == (256, 4)
    assert config.trainer.learning_rate == 2e-6
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.2, 0.4)
    assert config.algorithm.kl_beta == 1e-4
    assert config.sampler.temperature == 1.2
    assert config.dynamic_sampling.enabled
    blend = ("aime2024", "codeforces", "gpqa_diamond", "ifeval", "graph_color")
    assert config.data.validation == [f"data/eval/{part}.parquet" for part in blend]


def test_a_little_more_than_two_thousand_steps_of_which_the_last_run_has_two_hundred(recipe: Chain) -> None:
    assert 2_000 < sum(config.trainer.num_steps for config in recipe) <= 2_200
    assert recipe[-1].trainer.num_steps == 200


@pytest.mark.parametrize(
    ("name", "signals"),
    [
        ("run1", {"validation_drop"}),
        ("run2", {"validation_drop", "validation_plateau"}),
        ("run3", {"response_length", "no_eos"}),
        ("run4", {"validation_plateau"}),
        ("run5", {"validation_plateau"}),
        ("run6", {"validation_plateau"}),
        ("run7", {"validation_plateau"}),
    ],
)
def test_the_controller_ends_a_run_on_what_ended_it(
    runs: dict[str, RunConfig], name: str, signals: set[str]
) -> None:
    controller = runs[name].controller
    assert controller.mode is ControllerMode.automatic
    assert {signal: getattr(controller, signal) for signal in signals} == dict.fromkeys(
        signals, ControllerAction.end_stage
    )


def test_longer_responses_do_not_end_the_run_that_makes_room_for_them(runs: dict[str, RunConfig]) -> None:
    assert runs["run8"].controller.response_length is ControllerAction.ignore


def test_what_has_degraded_does_not_become_the_reference(recipe: Chain) -> None:
    """Our choice: a run whose parent may end because validation degrades starts from the parent's best checkpoint."""
    for parent, config in pairwise(recipe):
        degrades = parent.controller.validation_drop is ControllerAction.end_stage
        assert (config.stage.start_from is StartFrom.best) is degrades, config.stage.name


def test_the_data_sets_are_built_as_large_as_they_weigh(recipe: Chain) -> None:
    sizes = {f"data/{source.name}/train.parquet": source.paper_rows for source in sources().values()}
    assert sizes.pop("data/goosereason/train.parquet") == 0  # of a later paper
    assert sizes == dict(DOMAINS.values()) == recipe[-1].data.train


def test_what_is_still_to_do_builds_the_papers_sets(recipe: Chain) -> None:
    """Parses the printed commands as the command line does."""
    makers = missing_files(recipe)
    for path in dict(DOMAINS.values()):
        words = shlex.split(makers[path].replace("\\\n", " "), comments=True)
        assert words[:5] == ["python", "-m", "nemo_prorl", "data", "build"]
        source, options = get(words[5]), data_build_options(words[6:], DataBuildConfig)
        assert path == f"{options.out}/{source.name}/train.parquet"
        assert options.rows == -1
        if source.check_options is not None:
            source.check_options(options)


def test_a_run_on_a_laptop_keeps_the_laptops_data_and_model() -> None:
    config = compose("laptop", ["stage=run2"], conf_dir=CONF_DIR)
    assert config.model.path == "runs/tiny/policy"
    assert all(path.startswith("runs/tiny/") for path in (*config.data.train, *config.data.validation))
