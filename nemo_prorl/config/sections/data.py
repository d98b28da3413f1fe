"""data.*: training and held-out problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from re import fullmatch

from nemo_prorl.config.sections.checks import require


class DataMix(Enum):
    uniform = "uniform"
    difficulty = "difficulty"


@dataclass(slots=True, kw_only=True)
class DataConfig:
    """Problems: files (JSON Lines, JSON, CSV, Parquet), folders of them, or OWNER/NAME of data sets on the Hugging Face
    hub; docs/data.md has the columns."""

    train: dict[str, float] = field(default_factory=dict)
    """Weight of each training file in the mix: path -> weight. On the command line, one path or a list of paths is
    enough where all weights are the same."""
    mix: DataMix = DataMix.uniform
    """How problems are drawn within their file. uniform: each once an epoch. difficulty: after the first epoch, with
    the weight sqrt(q (1 - q)) + data.mix_epsilon, where q is the mean score when a problem was last sampled, each score
    clipped to [0, 1]; the ones that the policy solves half of the time return most often."""
    mix_epsilon: float = 0.05
    """Added to every weight of data.mix=difficulty, whose roots are at most 0.5."""
    mix_retest: float = 0.1
    """Share of the draws of data.mix=difficulty that take the problem sampled the longest ago, so that none is lost."""
    validation: list[str] = field(default_factory=list)
    """Held-out files, for validation."""

    def __post_init__(self) -> None:
        for path, weight in self.train.items():
            require(weight > 0, f"data.train.{path}", weight, "greater than 0")
        require(0 < self.mix_epsilon <= 1, "data.mix_epsilon", self.mix_epsilon, "in (0, 1]")
        require(0 <= self.mix_retest <= 1, "data.mix_retest", self.mix_retest, "in [0, 1]")


def is_hub_name(text: str) -> bool:
    """Returns whether a text can name a data set on the Hugging Face hub, OWNER/NAME, or a folder of one,
    OWNER/NAME/FOLDER. A path with the suffix of a data file cannot."""
    is_file = text.endswith((".parquet", ".json", ".jsonl", ".csv", ".gz"))
    return not is_file and bool(fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w.-]+)*", text))
