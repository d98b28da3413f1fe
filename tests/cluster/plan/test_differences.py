"""Tests of the differences between resolved configurations."""

from dataclasses import replace

from nemo_prorl.cluster.plan.differences import differences, flattened
from nemo_prorl.config import DataConfig, KlEstimator, RunConfig, SamplerConfig, StageConfig
from nemo_prorl.config.compose import to_dict


def test_equal_configurations_differ_in_nothing() -> None:
    assert differences(RunConfig(), RunConfig()) == {}


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


def test_the_way_back_is_the_same_turned_round() -> None:
    old = RunConfig(seed=3, data=DataConfig(train={"a": 1.0}))
    new = RunConfig(seed=4, data=DataConfig(train={"b": 1.0}))
    back = {key: (was, now) for key, (now, was) in differences(new, old).items()}
    assert differences(old, new) == back


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
