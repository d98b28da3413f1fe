"""What a policy can solve: samples of every held-out problem, counted, and what follows from the counts."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.boundary.arms import ARMS, CONTROL
from nemo_prorl.algorithm.pass_at_k import bootstrap_interval, mean_pass_at_k, pass_at_k
from nemo_prorl.demo import build
from nemo_prorl.demo.solved import Counts, count
from nemo_prorl.evaluation.comparison import MARGIN, classify_gain
from nemo_prorl.evaluation.results import BootstrapMean
from nemo_prorl.run_folder.storage import replace_text

ALL_ARMS = (*ARMS, CONTROL)
TEMPERATURE = 1.0
"""With top_p 1: the policy's own distribution."""


def base_name(temperature: float = TEMPERATURE) -> str:
    """Returns the name of the files about the base policy."""
    return f"base-{temperature}"


def measured_name(arm: str, seed: int | str, number: int) -> str:
    """Returns the name of the files about the checkpoint at the end of a stage, counted from 0."""
    return f"{arm}-{seed}-{number}"


_COUNTS = ".counts.json"
_PRORL = (sys.executable, "-m", "nemo_prorl")


def sample(
    out: Path,
    model: Path,
    prompts: Sequence[Path],
    url: str,
    *,
    num_samples: int,
    temperature: float,
    seed: int = 1,
) -> Path:
    """Samples and grades with `evaluate`, unless `out` is there. Returns `out`, with a line of JSON a sample."""
    if not out.is_file():
        aside = out.with_suffix(".partial")
        options = {
            "model.path": model,
            "reward.urls": f"[{url}]",
            "validation.num_rollouts": num_samples,
            "validation.temperature": temperature,
            "seed": seed,
        }
        command = [*_PRORL, "evaluate", "--config-name", "laptop", "--samples", str(aside), "--k", "1"]
        command += [f"data={path}" for path in prompts]
        command += [f"{key}={value}" for key, value in options.items()]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env={"OMP_NUM_THREADS": "1", **os.environ}
        )
        os.replace(aside, out)
    return out


def counts_of(
    checkpoint: Path,
    out: Path,
    prompts: Sequence[Path],
    url: str,
    *,
    num_samples: int,
    temperature: float,
) -> Counts:
    """Measures a checkpoint of training, or a policy in Hugging Face format. `out` keeps the samples; beside it, the
    counts."""
    kept = out.with_suffix(_COUNTS)
    if not kept.is_file():
        with in_hugging_face_format(checkpoint) as model:
            samples = sample(out, model, prompts, url, num_samples=num_samples, temperature=temperature)
        replace_text(kept, json.dumps(count(samples)) + "\n")
    return _read(kept)


@contextmanager
def in_hugging_face_format(checkpoint: Path) -> Iterator[Path]:
    """Gives a policy's folder in Hugging Face format, exported for the time of the block if it is a checkpoint of
    training."""
    with tempfile.TemporaryDirectory() as aside:
        policy = checkpoint
        if not (checkpoint / "config.json").is_file():
            policy = Path(aside) / "policy"
            subprocess.run([*_PRORL, "export", checkpoint, policy], check=True, stdout=subprocess.DEVNULL)
        yield policy


def _read(kept: Path) -> Counts:
    return {uid: (n, c) for uid, (n, c) in json.loads(kept.read_text(encoding="utf-8")).items()}


def last_number(arm: str) -> int:
    """Returns the number of an arm's last checkpoint: of the stages, counted from 0."""
    return len(build.LARGEST) - 1 if arm in ARMS and not ARMS[arm].is_short else 0


def finished(out: Path) -> dict[str, dict[int, list[Counts]]]:
    """Returns arm -> seed -> counts of the measured checkpoints in order, for runs whose last one has been measured."""
    runs: dict[str, dict[int, list[Counts]]] = {}
    for arm in ALL_ARMS:
        last = last_number(arm)
        ends = out.glob(f"measured/{measured_name(arm, '*', last)}{_COUNTS}")
        for seed in sorted(int(path.name.split("-")[-2]) for path in ends):
            names = (f"measured/{measured_name(arm, seed, number)}{_COUNTS}" for number in range(last + 1))
            kept = [out / name for name in names]
            runs.setdefault(arm, {})[seed] = [_read(path) for path in kept if path.is_file()]
    return runs


def at(counts: Counts, k: int) -> float:
    """Returns the mean of pass@k over problems."""
    return mean_pass_at_k(counts.values(), k)


def interval(runs: Sequence[Counts], k: int) -> tuple[float, float]:
    """Returns the bootstrap's 95 % interval of pass@k over problems, of which each counts with its mean over runs."""
    means = [statistics.fmean(pass_at_k(*run[uid], k) for run in runs) for uid in runs[0]]
    return bootstrap_interval(means, num_resamples=1000, seed=0)


def difference(before: Counts, after: Counts, k: int) -> BootstrapMean:
    """Returns the paired difference in pass@k over the same problems, with its 95 % interval."""
    values = [pass_at_k(*after[uid], k) - pass_at_k(*of, k) for uid, of in before.items()]
    low, high = bootstrap_interval(values, num_resamples=1000, seed=0)
    return BootstrapMean(value=sum(values) / len(values), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What training did to a level, with checkpoints in order."""

    name: str
    """diminish, plateau or sustained, by nemo_prorl.evaluation.comparison's rule on pass@k."""
    certain: bool
    at_1: float
    at_k: float
    """Differences of the last checkpoint to the start."""

    @property
    def sharpened(self) -> bool:
        """Returns whether known solutions became more likely without new ones: pass@1 rises, pass@k does not."""
        return self.name == "diminish" and self.at_1 > MARGIN


def change(checkpoints: Sequence[Counts], k: int) -> Change:
    """Classifies a level by the paper's three kinds (ProRL, section 4.2)."""
    start, *between, last = checkpoints
    gain = difference(start, last, k)
    name, certain = classify_gain(gain, [difference(one, last, k) for one in between])
    return Change(name=name, certain=certain, at_1=difference(start, last, 1).value, at_k=gain.value)
