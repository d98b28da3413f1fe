"""Tests that all ranks of a run have the same reward functions, and that a resumed run reports a change."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, RewardConfig
from nemo_prorl.distributed import Layout, Ranks
from nemo_prorl.reward_sources.functions.agreement import agreed_digests, digest, what_changed


class Scripted(Ranks):
    """Rank 0 of two ranks; the other sends what the test gives."""

    other: Any = None

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other(value)]


def two_ranks(other: Any) -> Ranks:
    made = type("Scripted", (Scripted,), {"other": staticmethod(other)})
    return made(layout=Layout(rank=0, world_size=2, tensor_parallel=1, pipeline_parallel=1))  # type: ignore[no-any-return]


def a_function(tmp_path: Path) -> RewardConfig:
    (tmp_path / "f.py").write_text("def score(responses): ...\n")
    return RewardConfig(function=[f"{tmp_path}/f.py:score"])


def test_equal_files_are_agreed_on(tmp_path: Path) -> None:
    config = a_function(tmp_path)
    assert agreed_digests(config, two_ranks(lambda mine: mine)) == {
        config.function[0]: digest(config.function[0])
    }


def test_a_machine_with_another_file_is_named(tmp_path: Path) -> None:
    config = a_function(tmp_path)
    ranks = two_ranks(lambda mine: mine and ("node7", dict.fromkeys(mine[1], "0" * 64)))
    with pytest.raises(ConfigError, match=r"f\.py:score is another file on node7 than on"):
        agreed_digests(config, ranks)


def test_a_machine_without_the_file_is_named_on_every_rank(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot be read on {re.escape(platform.node())}"):
        agreed_digests(RewardConfig(function=[f"{tmp_path}/nowhere.py:score"]), two_ranks(lambda mine: mine))
    lacking = two_ranks(lambda mine: ConfigError("f.py:score cannot be read on node7"))
    with pytest.raises(ConfigError, match="cannot be read on node7"):
        agreed_digests(a_function(tmp_path), lacking)


def test_a_change_is_one_sentence_and_nothing_known_is_none() -> None:
    before, now = {"a.py:f": "weight 1, file 12"}, {"a.py:f": "weight 1, file 34", "service": "weight 2"}
    assert what_changed(before, before) == what_changed({}, now) == ""
    assert what_changed(before, now) == (
        "the reward has changed since the last checkpoint: it was a.py:f (weight 1, file 12), and is now "
        "a.py:f (weight 1, file 34) + service (weight 2)"
    )
