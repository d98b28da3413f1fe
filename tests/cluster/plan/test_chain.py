"""Tests of which stages form a chain, of the message for those that do not, and of differences between stages."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_prorl.cluster.plan.chain import Chain, differences, flattened, in_order, load_chain, paper_stages
from nemo_prorl.config import ConfigError, DataConfig, KlEstimator, RunConfig, SamplerConfig, StageConfig
from nemo_prorl.config.compose import to_dict


def stages(parents: Mapping[str, str]) -> list[RunConfig]:
    return [RunConfig(stage=StageConfig(name=name, parent=parent)) for name, parent in parents.items()]


def names_of(chain: Chain) -> list[str]:
    return [config.stage.name for config in chain]


@pytest.fixture
def conf_dir(tmp_path: Path) -> Path:
    """A folder conf/ with the stages a -> b -> c."""
    (tmp_path / "stage").mkdir()
    (tmp_path / "train.yaml").write_text("defaults: [run_config, _self_, {stage: null}]\n")
    for name, parent in {"a": "", "b": "a", "c": "b"}.items():
        write_stage(tmp_path, name, parent)
    return tmp_path


def write_stage(conf_dir: Path, file: str, parent: str, name: str = "") -> None:
    text = f"# @package _global_\nstage: {{name: {name or file}, parent: '{parent}'}}\n"
    (conf_dir / "stage" / f"{file}.yaml").write_text(text)


def load(conf_dir: Path, names: list[str], *overrides: str) -> Chain:
    return load_chain(names, overrides, config_name="train", conf_dir=conf_dir)


@settings(deadline=None, max_examples=50)
@given(st.permutations([f"s{i}" for i in range(6)]), st.randoms(use_true_random=False))
def test_every_chain_is_put_in_order_however_its_files_are_named(order: list[str], random: object) -> None:
    links = list(zip(["", *order], order, strict=False))
    random.shuffle(links)  # type: ignore[attr-defined]
    assert names_of(in_order(stages({name: parent for parent, name in links}))) == order


@pytest.mark.parametrize("parents", [{"a": "b", "b": "c", "c": "a"}, {"a": "", "b": "c", "c": "b"}])
def test_a_circle_is_refused_and_shown(parents: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="circle, ") as caught:
        in_order(stages(parents))
    shown = str(caught.value).split("circle, ")[1].split(":")[0].split(" -> ")
    assert shown[0] == shown[-1], "a circle has no beginning"
    assert {(child, parent) for parent, child in pairwise(shown)} == {
        (name, parent) for name, parent in parents.items() if name in shown
    }


@pytest.mark.parametrize(
    ("parents", "words"),
    [
        ({"a": "", "b": "", "c": "a"}, "stages a and b have no parent"),
        ({"a": "", "b": "", "c": ""}, "stages a, b and c have no parent"),
        ({"a": "", "b": "a", "c": "a"}, "stages b and c all continue stage a"),
    ],
)
def test_a_chain_with_two_beginnings_or_a_fork_is_refused(parents: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        in_order(stages(parents))


@pytest.mark.medium
def test_parents_are_followed_to_the_beginning_and_overrides_hold_for_every_stage(conf_dir: Path) -> None:
    chain = load(conf_dir, ["c"], "seed=7")
    assert [(config.stage.name, config.seed) for config in chain] == [("a", 7), ("b", 7), ("c", 7)]
    assert names_of(load(conf_dir, ["b", "c", "a"])) == ["a", "b", "c"]


@pytest.mark.medium
def test_another_name_and_parent_are_those_of_the_named_stage_only(conf_dir: Path) -> None:
    assert names_of(load(conf_dir, ["c"], "stage.parent=a")) == ["a", "c"]
    assert names_of(load(conf_dir, ["c"], "stage.name=mine")) == ["a", "b", "mine"]
    with pytest.raises(ConfigError, match="write stage=NAME beside it"):
        load(conf_dir, ["b", "c"], "stage.parent=a")


def test_a_parent_without_a_file_is_refused_with_the_closest_name(conf_dir: Path) -> None:
    write_stage(conf_dir, "long_name", "b")
    write_stage(conf_dir, "d", "lnog_name")
    with pytest.raises(ConfigError, match=r"stage d continues stage lnog_name.*did you mean long_name"):
        load(conf_dir, ["d"])
    with pytest.raises(ConfigError, match=r"stage=zzz.*there are a, b, c"):
        load(conf_dir, ["zzz"])


def test_a_stage_that_is_not_named_after_its_file_is_refused(conf_dir: Path) -> None:
    write_stage(conf_dir, "d", "c", name="other")
    with pytest.raises(ConfigError, match=r"conf/stage/d\.yaml calls its stage other"):
        load(conf_dir, ["d"])


def test_the_recipe_is_the_numbered_runs(conf_dir: Path) -> None:
    for name in ("run1", "run12", "run_x", "rerun3"):
        write_stage(conf_dir, name, "")
    assert paper_stages(conf_dir) == ["run1", "run12"]


def test_values_are_written_as_a_user_writes_them() -> None:
    old, new = RunConfig(), RunConfig(sampler=SamplerConfig(num_rollouts=32, enforce_eager=True))
    new.algorithm.kl_beta = 1e-3
    new.algorithm.kl_estimator = KlEstimator.k1
    assert list(differences(old, new).items()) == [
        ("algorithm.kl_beta", ("0.0001", "0.001")),
        ("algorithm.kl_estimator", ("k3", "k1")),
        ("sampler.num_rollouts", ("16", "32")),
        ("sampler.enforce_eager", ("false", "true")),
    ]


def test_files_of_the_mix_are_compared_one_by_one() -> None:
    old = RunConfig(data=DataConfig(train={"a.parquet": 1.0, "b.parquet": 2.0}, validation=["v", "w"]))
    new = RunConfig(data=DataConfig(train={"a.parquet": 3.0, "c.parquet": 4.0}, validation=["v"]))
    assert list(differences(old, new).items()) == [
        ("data.train.a.parquet", ("1", "3")),
        ("data.train.c.parquet", ("-", "4")),
        ("data.validation", ("v, w", "v")),
        ("data.train.b.parquet", ("2", "-")),
    ]


def test_who_follows_whom_is_no_difference() -> None:
    assert differences(RunConfig(), replace(RunConfig(), stage=StageConfig(name="x", parent="main"))) == {}


def test_every_option_is_compared() -> None:
    """Compares with a walk over the plain dictionary, which does not know the options."""

    def leaves(value: object, prefix: str = "") -> set[str]:
        if isinstance(value, dict) and value:
            return {key for name, item in value.items() for key in leaves(item, f"{prefix}.{name}")}
        return {prefix[1:]} if value != {} else set()

    config = RunConfig(data=DataConfig(train={"a.b": 1.0}))
    assert set(flattened(config)) == leaves(to_dict(config))
