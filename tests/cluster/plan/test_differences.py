"""Tests of the differences between resolved configurations."""

from dataclasses import replace

from nemo_prorl.cluster.plan.differences import Difference, differences, flattened
from nemo_prorl.config import DataConfig, KlEstimator, RunConfig, SamplerConfig, StageConfig
from nemo_prorl.config.compose import to_dict


def test_equal_configurations_differ_in_nothing() -> None:
    assert differences(RunConfig(), RunConfig()) == []


def test_values_are_written_as_a_user_writes_them() -> None:
    old, new = RunConfig(), RunConfig(sampler=SamplerConfig(num_rollouts=32, enforce_eager=True))
    new.algorithm.kl_beta = 1e-3
    new.algorithm.kl_estimator = KlEstimator.k1
    assert differences(old, new) == [
        Difference(key="algorithm.kl_beta", old="0.0001", new="0.001"),
        Difference(key="algorithm.kl_estimator", old="k3", new="k1"),
        Difference(key="sampler.num_rollouts", old="16", new="32"),
        Difference(key="sampler.enforce_eager", old="false", new="true"),
    ]


def test_files_of_the_mix_are_compared_one_by_one() -> None:
    old = RunConfig(data=DataConfig(train={"a.parquet": 1.0, "b.parquet": 2.0}, validation=["v", "w"]))
    new = RunConfig(data=DataConfig(train={"a.parquet": 3.0, "c.parquet": 4.0}, validation=["v"]))
    assert differences(old, new) == [
        Difference(key="data.train.a.parquet", old="1", new="3"),
        Difference(key="data.train.c.parquet", old="-", new="4"),
        Difference(key="data.validation", old="v, w", new="v"),
        Difference(key="data.train.b.parquet", old="2", new="-"),
    ]


def test_the_way_back_is_the_same_turned_round() -> None:
    old = RunConfig(seed=3, data=DataConfig(train={"a": 1.0}))
    new = RunConfig(seed=4, data=DataConfig(train={"b": 1.0}))
    there = {(item.key, item.old, item.new) for item in differences(old, new)}
    assert there == {(item.key, item.new, item.old) for item in differences(new, old)}


def test_who_follows_whom_is_no_difference() -> None:
    assert differences(RunConfig(), replace(RunConfig(), stage=StageConfig(name="x", parent="main"))) == []


def test_every_option_is_compared() -> None:
    """Compares with a walk over the plain dictionary, which does not know the options."""

    def leaves(value: object, prefix: str = "") -> set[str]:
        if isinstance(value, dict) and value:
            return {key for name, item in value.items() for key in leaves(item, f"{prefix}.{name}")}
        return {prefix[1:]} if value != {} else set()

    config = RunConfig(data=DataConfig(train={"a.b": 1.0}))
    assert set(flattened(config)) == leaves(to_dict(config))
