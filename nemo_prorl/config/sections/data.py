"""data.*: training and held-out problems; and the options of `data build`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from re import fullmatch

from nemo_prorl.config.sections.checks import ConfigError, at_least, positive, require
from nemo_prorl.config.sections.reward import RewardConfig

DataMix = StrEnum("DataMix", ["uniform", "difficulty"])
Credit = StrEnum("Credit", ["training", "corrected"])
Prefixes = StrEnum("Prefixes", ["failures", "successes", "solutions"])


@dataclass(slots=True, kw_only=True)
class DataConfig:
    """Problems: files (JSON Lines, JSON, CSV, Parquet), folders of them, or OWNER/NAME of data sets on the Hugging Face
    hub; docs/data.md has the columns."""

    train: dict[str, float] = field(default_factory=dict)
    """Weight of each training file in the mix: path -> weight. On the command line, one path or a list of paths is
    enough where all weights are the same."""
    mix: DataMix = DataMix.uniform
    """How problems are drawn within their file. uniform: each once an epoch. difficulty: after the first epoch, with
    the weight 0.5 s + 0.05, where s is the standard deviation of a problem's scores when it was last sampled over the
    file's largest; the ones that the policy solves half of the time return most often. A tenth of the draws take the
    problem sampled the longest ago, so that none is lost."""
    validation: list[str] = field(default_factory=list)
    """Held-out files, for validation."""

    def __post_init__(self) -> None:
        for path, weight in self.train.items():
            require(weight > 0, f"data.train.{path}", weight, "greater than 0")


def is_hub_name(text: str) -> bool:
    """Returns whether a text can name a data set on the Hugging Face hub, OWNER/NAME, or a folder of one,
    OWNER/NAME/FOLDER. A path with the suffix of a data file cannot."""
    is_file = text.endswith((".parquet", ".json", ".jsonl", ".csv", ".gz"))
    return not is_file and bool(fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w.-]+)*", text))


@dataclass(slots=True, kw_only=True)
class DataBuildConfig:
    """`data build`: what is read, how much of it is kept, and which model judges where a judge is needed."""

    source: str = ""
    """A file, a folder or a data set on the hub; empty: the published one."""
    revision: str = ""
    """Commit or tag of a data set on the hub; empty: the newest."""
    out: str = "data"
    """Folder in which each data set gets a folder of its name."""
    limit: int = 0
    """Maximum number of records to read, for a trial; 0: all."""
    rows: int = -1
    """Training rows to keep; -1: as many as ProRL's set has; 0: all."""
    held_out: int = -1
    """Rows kept out of training for validation; -1: ProRL's 100 per task of reasoning_gym, and none of other
    sources."""
    credit: Credit = Credit.training
    """Score of the training rows of reasoning_gym. training: nothing for an answer that ignores the question;
    corrected: the library's continuous score (ProRL)."""
    against: list[str] = field(default_factory=list)
    """Evaluation files and folders that no row may overlap with, such as against=[a.jsonl,b/]."""
    seed: int = 1
    """Seed for choosing rows and for generated problems."""
    endpoint: str = ""
    """OpenAI-compatible server, such as http://127.0.0.1:8000/v1."""
    model: str = ""
    """Name of the model at the endpoint (ProRL: GPT-4o)."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's API key; a local server needs none."""
    concurrency: int = 32
    """Concurrent requests to the endpoint."""
    max_retries: int = 8
    """Retries of a request after 429, 5xx or a lost connection."""
    endpoint_timeout_s: float = 600.0
    """Timeout of a request."""
    max_reply_tokens: int = 4096
    """Most tokens of a reply, reasoning included."""
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        at_least("", self, -1, ["rows", "held_out"])
        at_least("", self, 0, ["limit", "max_retries"])
        at_least("", self, 1, ["concurrency", "max_reply_tokens"])
        positive("", self, ["endpoint_timeout_s"])
        if self.reward.function:
            raise ConfigError(
                "reward.function grades rollouts, and data build asks the reward service about gold answers: leave it "
                "out."
            )


@dataclass(slots=True, kw_only=True)
class BegunConfig:
    """`data build begun`: which answers begin the rows, and where they are cut."""

    prefixes: Prefixes = Prefixes.failures
    """Answers that are cut. failures: rare wrong ones; successes: rare right ones; solutions: a column of a file."""
    run: str = ""
    """Run with exp_manager.record_rollouts; its held-out problems get no row."""
    since: int = 0
    """First step whose records count."""
    rare: float = 0.25
    """Largest share of a problem's recorded answers that such answers may be."""
    source: str = ""
    """File of problems with solutions."""
    column: str = "solution"
    """Their column."""
    cut: float = 0.5
    """Share of the working that is kept, to the nearest end of a line or sentence where half of the siblings that begin
    so have its outcome. The working ends before </think>, <answer> or a box."""
    per_problem: int = 4
    """Most rows of a problem, of the newest steps."""
    against: list[str] = field(default_factory=list)
    """More files and folders of held-out problems."""
    out: str = "data"
    """Folder in which the set gets a folder, such as begun_failures."""

    def __post_init__(self) -> None:
        at_least("", self, 0, ["since"])
        at_least("", self, 1, ["per_problem"])
        for name in ("rare", "cut"):
            require(0 < getattr(self, name) < 1, name, getattr(self, name), "between 0 and 1")
        if (self.prefixes is Prefixes.solutions) is not bool(self.source):
            raise ConfigError("source=FILE and prefixes=solutions belong together: write both, or none.")
        if not self.run and not self.source:
            raise ConfigError("run=RUN is missing: name the folder of a run with recorded rollouts.")
