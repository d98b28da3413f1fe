import re
import sys
from pathlib import Path

import pytest
import yaml

from nemo_prorl.commands.starting import check_inputs
from nemo_prorl.config import ConfigError, Fp8Recipe, RunConfig
from nemo_prorl.config.compose import OTHERS, compose, quoted, to_dict
from nemo_prorl.config.help import options
from nemo_prorl.run_folder.origin import write_resolved

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"


def composed(*overrides: str, name: str = "train") -> RunConfig:
    return compose(name, overrides, conf_dir=CONF_DIR)


def mistake(*overrides: str, name: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        composed(*overrides, name=name)
    return str(caught.value)


def assert_one_sentence(message: str) -> None:
    assert "\n" not in message
    assert message.endswith((".", "?"))
    assert len(re.findall(r"[.?!] [A-Z]", message)) == 0


def test_without_what_is_written_it_is_the_dataclass() -> None:
    written = ["model.path=''", "data.train={}", "data.validation=[]", "controller.mode=manual"]
    written += [
        "trainer.micro_batch_tokens=32768",
        "sampler.release_memory=false",
        "sampler.memory_fraction=0.5",
    ]
    assert composed(*written) == RunConfig()


def test_overrides_reach_their_options_with_their_types() -> None:
    config = composed(
        "algorithm.clip_high=0.28",
        "trainer.num_steps=7",
        "model.fp8=off",
        "reward.urls=[http://127.0.0.1:8000,http://127.0.0.1:8001]",
        "exp_manager.checkpoint_callback_params.save_last_k=3",
        "model.path=/models/a b",
    )
    assert config.algorithm.clip_high == 0.28
    assert config.trainer.num_steps == 7
    assert config.model.fp8 is Fp8Recipe.off
    assert config.reward.urls == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    assert config.exp_manager.checkpoint_callback_params.save_last_k == 3
    assert config.model.path == "/models/a b"


def test_the_names_of_other_trainers_lead_to_options_that_there_are() -> None:
    assert set(OTHERS.values()) <= set(options())
    assert not set(OTHERS) & {key.rpartition(".")[2] for key in options()}


@pytest.mark.parametrize(
    "path",
    [
        "runs/demo",
        "/a/b-c.d_e",
        "it's/a b",
        "a,b/c",
        "1/2",
        "x={y}/z",
        "true",
        "\\/",
        "a\\",
        "it\\'s",
        "a\\\\b",
        "ü/ß",
    ],
)
def test_any_path_goes_through_the_grammar(path: str) -> None:
    assert composed(f"model.path={quoted(path)}").model.path == path


@pytest.mark.parametrize(
    ("text", "must_say"),
    [
        ("reward: {function: f.py:g}", "takes a list of text, such as [f.py:g]."),
        ("data: {train: a.jsonl}", "takes a mapping of text to number, such as {a.jsonl: 1}."),
    ],
)
def test_what_the_command_line_takes_in_short_is_spelt_out_for_yaml(
    tmp_path: Path, text: str, must_say: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults: [run_config, _self_]\n{text}\n")
    with pytest.raises(ConfigError, match=re.escape(must_say)):
        compose(str(file), [], conf_dir=CONF_DIR)


def test_a_plain_path_needs_no_quotes() -> None:
    assert quoted("runs/demo") == "runs/demo"


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    assert composed("trainer.num_steps=1e3").trainer.num_steps == 1000


def test_an_integer_is_a_number() -> None:
    assert composed("trainer.learning_rate=1").trainer.learning_rate == 1.0


def test_a_mapping_is_replaced_as_a_whole_and_extended_by_entry() -> None:
    assert composed("data.train=data/a.jsonl").data.train == {"data/a.jsonl": 1.0}
    assert composed("data.train=[a.jsonl,openai/gsm8k/main]").data.train == {
        "a.jsonl": 1.0,
        "openai/gsm8k/main": 1.0,
    }
    whole = composed("data.train={a.jsonl: 1}", "data.train={data/b.jsonl: 2.5}")
    assert whole.data.train == {"data/b.jsonl": 2.5}
    extended = composed("data.train={a.jsonl: 1}", "data.train.b.v2.jsonl=3")
    assert extended.data.train == {"a.jsonl": 1.0, "b.v2.jsonl": 3.0}
    assert composed("exp_manager.wandb_logger_kwargs.project=x").exp_manager.wandb_logger_kwargs == {
        "project": "x"
    }


def test_problems_of_ones_own_are_not_validated_on_those_of_the_configuration() -> None:
    assert composed("data.train=a.jsonl").data.validation == []
    assert composed("data.train=a.jsonl", "data.validation=[b.jsonl]").data.validation == ["b.jsonl"]
    configured = composed().data.validation
    assert configured
    assert composed("data.train.b.jsonl=3").data.validation == configured, "added to the mix"
    assert composed("data.train=a.jsonl", "stage=demo2").data.validation == configured, "a link of a chain"


def test_a_stage_changes_what_the_configuration_says_and_an_override_changes_both() -> None:
    assert composed("stage=demo2").stage.parent == "demo1"
    assert composed("stage.parent=other", "stage=demo2").stage.parent == "other"


def test_environment_variables_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_TEST_MODEL", "/models/x")
    assert composed("model.path=${oc.env:PRORL_TEST_MODEL}").model.path == "/models/x"


@pytest.mark.parametrize(
    ("override", "must_say"),
    [
        ("algorithm.clip_hihg=0.3", "did you mean algorithm.clip_high?"),
        ("clip_high=0.3", "did you mean algorithm.clip_high?"),
        ("sampler.num_steps=3", "did you mean trainer.num_steps?"),
        ("+algorithm.clip_hihg=0.3", "did you mean algorithm.clip_high?"),
        ("algorithm.learning_rat=1", "did you mean trainer.learning_rate?"),
        ("validaton.interval=3", "did you mean validation.interval?"),
        ("num_generations=8", "did you mean sampler.num_rollouts?"),
        ("actor.clip_ratio_high=0.28", "did you mean algorithm.clip_high?"),
        ("model.path=~/models/a", "begins a path with ~, which shells do not expand here: write $HOME."),
        ("seed=-1", "seed=-1 is out of range: it must be from 0 to 2^32 - 1"),
        ("seed=4294967296", "seed=4294967296 is out of range"),
        ("trainer.foo=1", "trainer.foo is not an option: `train --help` lists"),
        ("quantum=1", "quantum is not an option"),
        ("hydra.run.dir=x", "hydra.run.dir is not an option"),
        ("trainer.num_steps=abc", "trainer.num_steps takes a whole number"),
        ("trainer.num_steps=1.5", "trainer.num_steps=1.5"),
        ("seed=true", "seed takes a whole number"),
        ("trainer.learning_rate=null", "trainer.learning_rate takes a number"),
        ("trainer.sequence_parallel=maybe", "takes true or false"),
        ("model.fp8=of", "one of off, delayed, tensorwise, blockwise"),
        ("reward.urls=7", "takes a list of text"),
        ("data.train={a.jsonl: heavy}", "takes a mapping of text to number"),
        ("data.train={a.jsonl: -1}", "data.train.a.jsonl=-1.0 is out of range"),
        ("algorithm.clip_low=-0.1", "in [0, 1]"),
        ("algorithm.correction_low=3", "greater than algorithm.correction_low=3"),
        ("algorithm.kl_clamp_value=-1", "algorithm.kl_clamp_value=-1.0 is out of range"),
        ("algorithm.aggregation_constant=8192", "algorithm.aggregation=sequence_mean_token_sum only"),
        ("trainer.learning_rate=inf", "must be finite"),
        ("algorithm.kl_beta=nan", "algorithm.kl_beta=nan"),
        ("trainer.prompts_per_step=10", "write a multiple of it"),
        ("trainer.sequence_parallel=true", "write trainer.tensor_parallel=2 or more"),
        ("trainer.hang_timeout_s=600", "request_timeout_s x max_attempts = 600 s: write more"),
        (
            "reward.request_timeout_s=400",
            "trainer.hang_timeout_s=1800 would take a slow reward service for a hang",
        ),
        ("shaping.overlong_buffer_share=1.5", "in [0, 1]"),
        ("trainer=big", "trainer is a section of options"),
        ("trainer.num_steps=1,2", "gives several values"),
        ("trainer.num_steps", "sets nothing: write KEY=VALUE, without spaces around ="),
        ("reward.urls=[127.0.0.1:8000]", "which is no URL: write http://HOST:PORT"),
        ("trainer.num_steps==1", "write KEY=VALUE"),
        ("reward.urls=[a", "write KEY=VALUE"),
        ("", "write KEY=VALUE"),
        ("stage@algorithm=demo1", "write KEY=VALUE"),
        ("~trainer.num_steps", "which none can do without"),
        ("stage=demo3", "did you mean stage=demo2?"),
        ("stage=zebra", "there are demo1, demo2"),
        ("model.path=${oc.env:PRORL_NOT_SET}", "PRORL_NOT_SET"),
        ("seed=???", "seed is not set"),
    ],
)
def test_a_mistake_in_an_override_is_one_sentence(override: str, must_say: str) -> None:
    message = mistake(override)
    assert must_say in message
    assert_one_sentence(message)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("content", "must_say"),
    [
        ("defaults: [run_config, _self_]\ntrainer: {num_stepz: 1}", "did you mean trainer.num_steps?"),
        (
            "defaults: [run_config, _self_]\ntrainer: {num_steps: many}",
            "trainer.num_steps takes a whole number",
        ),
        (
            "defaults: [run_config, _self_]\nsampler: {max_response_length: 8096}",
            "sampler.max_response_length is not an option: did you mean sampler.max_response_tokens?",
        ),
        ("defaults: [run_config, _self_]\nmodel: {fp8: off}", "write it in quotes"),
        ("defaults: [run_config, _self_]\nalgorithm: {clip_low: 2}", "in [0, 1]"),
        ("defaults: [run_config, _self_]\nalgorithm: {correction_high: .inf}", "must be finite"),
        ("defaults: [run_config, _self_]\nalgorithm: {dual_clip: 0.5}", "0 or greater than 1"),
        ("defaults: [run_config, _self_]\ntrainer: 5", "cannot be composed"),
        ("defaults: [run_config, _self_, stage: demo9]", "cannot be composed"),
        ("defaults: [run_config, _self_, stage: no]", "cannot be composed"),
        ("trainer: {num_steps: 1}", "does not list run_config first"),
        ("- a list", "must hold options as KEY: VALUE"),
        ("trainer: {num_steps: 1", "is not readable YAML"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(tmp_path: Path, content: str, must_say: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    message = mistake(name=str(path))
    assert must_say in message
    assert "\n" not in message


def test_a_mistake_in_a_stage_names_the_stage(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "train.yaml").write_text("defaults: [run_config, _self_, stage: null]")
    (tmp_path / "stage" / "run1.yaml").write_text("# @package _global_\nsampler: {num_rolouts: 4}")
    with pytest.raises(ConfigError, match=r"did you mean sampler\.num_rollouts") as caught:
        compose("train", ["stage=run1"], conf_dir=tmp_path)
    assert "stage/run1.yaml" in str(caught.value)


def test_a_missing_configuration_is_one_sentence(tmp_path: Path) -> None:
    assert "did you mean laptop?" in mistake(name="lapto")
    assert "laptop, small, small_cpu, smollm2, stories, train" in mistake(name="zebra")
    assert "does not exist" in mistake(name=str(tmp_path / "nothing.yaml"))


@pytest.mark.medium
@pytest.mark.parametrize("name", ["train", "laptop", "stories"])
def test_the_resolved_configuration_can_be_fed_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / "resolved.yaml"
    config = composed(
        "stage=demo2",
        "model.fp8=off",
        "model.path='/a=b, c'",
        "data.train={a.b/c d.jsonl: 2}",
        "trainer.learning_rate=2.5e-7",
        "exp_manager.wandb_logger_kwargs={project: x, tags: [a, b], deep: {er: 1}}",
        name=name,
    )
    write_resolved(config, path)
    assert compose(str(path), [], conf_dir=CONF_DIR) == config
    assert compose(str(path), ["trainer.num_steps=3"], conf_dir=CONF_DIR).trainer.num_steps == 3
    assert [file.name for file in path.parent.iterdir()] == ["resolved.yaml"]
    saved = yaml.safe_load(path.read_text())
    assert saved["model"]["fp8"] == "off"
    assert saved.keys() - {"defaults"} == to_dict(config).keys()


class TestInputs:
    @pytest.fixture
    def config(self, tmp_path: Path) -> RunConfig:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text("{}")
        config = composed()
        config.data.train, config.data.validation = {str(prompts): 1.0}, [str(prompts)]
        config.reward.urls = ["http://127.0.0.1:1"]
        return config

    @staticmethod
    def mistake(config: RunConfig, world_size: int = 1) -> str:
        with pytest.raises(ConfigError) as caught:
            check_inputs(config, world_size)
        assert_one_sentence(str(caught.value))
        return str(caught.value)

    def test_passes_when_everything_is_there(self, config: RunConfig) -> None:
        check_inputs(config, 1)

    def test_only_the_main_rank_needs_what_loggers_need(
        self, config: RunConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config.exp_manager.create_wandb_logger = True
        monkeypatch.setitem(sys.modules, "wandb", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        assert "needs the package wandb" in self.mistake(config)
        monkeypatch.setenv("RANK", "3")
        check_inputs(config, 1)

    def test_ranks_that_are_no_whole_replicas(self, config: RunConfig) -> None:
        config.trainer.tensor_parallel = config.trainer.pipeline_parallel = 2
        check_inputs(config, 8)
        assert "start a multiple of 4 ranks" in self.mistake(config, 6)

    def test_no_or_missing_prompts(self, config: RunConfig) -> None:
        config.data.validation = ["/no/such/file.jsonl"]
        assert "data.validation names /no/such/file.jsonl" in self.mistake(config)
        config.data.train = {"/no/such/train.jsonl": 1.0}
        assert "data.train names /no/such/train.jsonl" in self.mistake(config)
        config.data.train = {}
        assert "data.train is empty" in self.mistake(config)

    def test_a_service_that_cannot_be_started(self, config: RunConfig) -> None:
        config.reward.urls, config.reward.python = [], "/no/such/python"
        assert "make setup" in self.mistake(config)

    def test_a_service_of_its_own_on_several_machines(
        self, config: RunConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would listen on the loopback interface of the first machine."""
        config.reward.urls, config.reward.python = [], sys.executable
        monkeypatch.setenv("WORLD_SIZE", "16")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        assert "serves only one machine" in self.mistake(config, 16)
        config.reward.discovery_dir = "/shared/run/reward"
        check_inputs(config, 16)
        config.reward.discovery_dir = ""
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
        check_inputs(config, 16)

    def test_a_run_folder_that_cannot_be_made(self, config: RunConfig, tmp_path: Path) -> None:
        file = tmp_path / "prompts.jsonl"
        config.exp_manager.explicit_log_dir = str(file / "runs" / "mine")
        assert f"{file} is a file, not a folder" in self.mistake(config)

    def test_a_missing_token_file(self, config: RunConfig) -> None:
        config.reward.token_file = "/no/such/token"
        assert "reward.token_file" in self.mistake(config)

    def test_a_logger_whose_package_is_missing(
        self, config: RunConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        config.exp_manager.create_wandb_logger = True
        assert "needs the package wandb" in self.mistake(config)


def test_a_file_that_takes_no_stage_says_so(tmp_path: Path) -> None:
    write_resolved(composed("stage=demo2"), tmp_path / "resolved.yaml")
    said = mistake("stage=demo1", name=str(tmp_path / "resolved.yaml"))
    assert_one_sentence(said)
    assert "takes no stage=NAME: add '- stage: null' to its defaults" in said
