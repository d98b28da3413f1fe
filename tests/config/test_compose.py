import re
from pathlib import Path

import pytest
import yaml

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
        "model.logprob_chunk_tokens=1024",
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
        "seed=1e3",  # a whole number with an exponent
        "trainer.learning_rate=1",  # an integer is a number
        "data.validation=['${oc.env:HOME}/a.jsonl']",
    )
    assert config.algorithm.clip_high == 0.28
    assert config.trainer.num_steps == 7
    assert config.model.fp8 is Fp8Recipe.off
    assert config.reward.urls == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    assert config.exp_manager.checkpoint_callback_params.save_last_k == 3
    assert config.model.path == "/models/a b"
    assert (config.seed, config.trainer.learning_rate) == (1000, 1.0)
    assert config.data.validation == [f"{Path.home()}/a.jsonl"]


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


@pytest.mark.parametrize(
    ("override", "must_say"),
    [
        ("trainer.learning_rate=0", "stands for a rate of Adam: with trainer.optimizer=sgd write a number"),
        ("controller.reset_reference=false", "which has no moments, leaves a reset nothing to do"),
    ],
)
def test_sgd_has_neither_the_rule_nor_moments(override: str, must_say: str) -> None:
    message = mistake("trainer.optimizer=sgd", override)
    assert must_say in message
    assert_one_sentence(message)


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
        (
            "model.fp8=blockwise",
            "above controller.limits.max_nats=0.15 a run stops: write controller.limits.max_nats=0.25.",
        ),
        ("reward.urls=7", "takes a list of text"),
        ("data.train={a.jsonl: heavy}", "takes a mapping of text to number"),
        ("data.train={a.jsonl: -1}", "data.train.a.jsonl=-1.0 is out of range"),
        ("algorithm.clip_low=-0.1", "in [0, 1]"),
        ("algorithm.correction_low=3", "greater than algorithm.correction_low=3"),
        ("algorithm.kl_clamp_value=-1", "algorithm.kl_clamp_value=-1.0 is out of range"),
        (
            "algorithm.kl_estimator=k1",
            "has no gradient in the loss, so that it would hold nothing: write k2 or k3",
        ),
        ("algorithm.aggregation_constant=8192", "algorithm.aggregation=sequence_mean_token_sum only"),
        ("trainer.learning_rate=inf", "must be finite"),
        ("algorithm.kl_beta=nan", "algorithm.kl_beta=nan"),
        ("trainer.prompts_per_step=10", "write a multiple of it"),
        ("trainer.sequence_parallel=true", "write trainer.tensor_parallel=2 or more"),
        ("trainer.hang_timeout_s=600", "request_timeout_s x max_attempts = 600 s: write more"),
        ("reward.request_timeout_s=400", "trainer.hang_timeout_s=1800 would take slow grading for a hang"),
        ("shaping.overlong_buffer_share=1.5", "in [0, 1]"),
        ("trainer=big", "trainer is a section of options"),
        ("trainer.num_steps=1,2", "gives several values"),
        ("trainer.num_steps", "sets nothing: write KEY=VALUE, without spaces around ="),
        ("reward.urls=[127.0.0.1:8000]", "which is no URL: write http://HOST:PORT"),
        ("reward.urls=[http://127.0.0.1:99999]", "http://127.0.0.1:99999, which has no usable port"),
        ("exp_manager.explicit_log_dir=' '", "exp_manager.explicit_log_dir is empty"),
        ("trainer.num_steps==1", "write KEY=VALUE"),
        ("reward.urls=[a", "write KEY=VALUE"),
        ("", "write KEY=VALUE"),
        ("stage@algorithm=demo1", "write KEY=VALUE"),
        ("~trainer.num_steps", "which none can do without"),
        ("stage=demo3", "did you mean demo2?"),
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
        (
            "defaults: [run_config, _self_]\nreward: {function: f.py:g}",
            "takes a list of text, such as [f.py:g].",
        ),
        (
            "defaults: [run_config, _self_]\ndata: {train: a.jsonl}",
            "mapping of text to number, such as {a.jsonl: 1}.",
        ),
        ("trainer: {num_steps: 1", "is not readable YAML"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(tmp_path: Path, content: str, must_say: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    message = mistake(name=str(path))
    assert must_say in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "must_say"),
    [
        ("lapto", "did you mean laptop?"),
        ("zebra", "laptop, small, small_cpu, smollm2"),
        ("no.yaml", "does not exist"),
    ],
)
def test_a_missing_configuration_is_one_sentence(name: str, must_say: str) -> None:
    assert must_say in mistake(name=name)


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


def test_a_file_that_takes_no_stage_says_so(tmp_path: Path) -> None:
    write_resolved(composed("stage=demo2"), tmp_path / "resolved.yaml")
    said = mistake("stage=demo1", name=str(tmp_path / "resolved.yaml"))
    assert_one_sentence(said)
    assert "takes no stage=NAME: add '- stage: null' to its defaults" in said
