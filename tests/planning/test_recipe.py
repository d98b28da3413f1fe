"""The eight runs against the papers' table, written down here a second time (2507.12507 section 4.2, table 1;
2505.24864 appendix E). What the papers leave open is held where conf/stage/ says what was chosen."""

from pathlib import Path

import pytest
import yaml

from nemo_prorl.compose import compose
from nemo_prorl.config import ControllerAction, ControllerMode, RunConfig
from nemo_prorl.planning.chain import Chain, load_chain, recipe_names

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
# (run, parent, longest response, rollouts a prompt, domains, are endless responses penalised, hard reset before it)
TABLE = [
    ("run1", "", 8_192, 16, FOUR, False, False),
    ("run2", "run1", 8_192, 16, FOUR, False, True),
    ("run3", "run2", 8_192, 16, FIVE, False, True),
    ("run4", "run3", 8_192, 16, FIVE, True, True),
    ("run5", "run4", 8_192, 16, FIVE, True, True),
    ("run6", "run5", 8_192, 32, FIVE, True, True),
    ("run7", "run6", 8_192, 32, FIVE, True, True),
    ("run8", "run7", 16_384, 16, FIVE, True, True),
]


@pytest.fixture(scope="module")
def recipe() -> Chain:
    return load_chain(recipe_names(CONF_DIR), [], config_name="train", conf_dir=CONF_DIR)


@pytest.fixture(scope="module")
def runs(recipe: Chain) -> dict[str, RunConfig]:
    return {config.stage.name: config for config in recipe}


def test_there_are_eight_in_their_order(recipe: Chain) -> None:
    assert [config.stage.name for config in recipe] == [row[0] for row in TABLE]


@pytest.mark.parametrize(
    ("name", "parent", "max_response_tokens", "num_rollouts", "domains", "penalised", "reset"),
    TABLE,
    ids=lambda v: str(v),
)
def test_each_run_is_the_papers(
    runs: dict[str, RunConfig],
    name: str,
    parent: str,
    max_response_tokens: int,
    num_rollouts: int,
    domains: tuple[str, ...],
    penalised: bool,
    reset: bool,
) -> None:
    config = runs[name]
    assert config.stage.parent == parent
    assert config.sampler.max_response_tokens == max_response_tokens
    assert config.sampler.num_rollouts == num_rollouts
    assert config.data.train == dict(DOMAINS[domain] for domain in domains)
    assert (config.shaping.termination_factor < 1) is penalised
    if reset:
        assert (config.stage.reset_reference, config.stage.reset_optimizer) == (True, True)
        assert config.stage.reset_data is False


@pytest.mark.parametrize("name", [row[0] for row in TABLE])
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
    assert {signal: getattr(controller, signal).action for signal in signals} == dict.fromkeys(
        signals, ControllerAction.end_stage
    )


def test_longer_responses_do_not_end_the_run_that_makes_room_for_them(runs: dict[str, RunConfig]) -> None:
    assert runs["run8"].controller.response_length.action is ControllerAction.ignore


@pytest.mark.parametrize("name", [row[0] for row in TABLE[1:]])
def test_a_child_says_itself_what_it_inherits(name: str) -> None:
    written = yaml.safe_load((CONF_DIR / "stage" / f"{name}.yaml").read_text())["stage"]
    assert set(written) == {"name", "parent", "reset_reference", "reset_optimizer", "reset_data"}


def test_a_run_on_a_laptop_keeps_the_laptops_data_and_model() -> None:
    config = compose("laptop", ["stage=run2"], conf_dir=CONF_DIR)
    assert config.model.path == "runs/tiny/policy"
    assert all(path.startswith("runs/tiny/") for path in (*config.data.train, *config.data.validation))
