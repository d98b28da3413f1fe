"""Does prolonged RL solve what the base policy cannot? README.md explains the design and the result.

    make experiment NAME=boundary [ARGS="--quick"]
    make experiment NAME=boundary ARGS="--seeds 1 2 3 4 --beside experiments/boundary/results.json"

Takes a small base policy, trains every arm from it with `train`, samples every held-out problem before, during and
after with `evaluate`, and writes figures, tables and results.json about all runs that are finished in the folder.
Nothing that is finished is done again: after an interruption the same command continues. --quick does all of it in
small: it shows that the benchmark works, and nothing about the question.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from experiments.boundary import measure, report
from experiments.boundary.arms import (
    ARMS,
    CONTROL,
    RL_TEMPERATURE,
    UPDATES_PER_STEP,
    fine_tune_apart,
    train_arm,
)
from experiments.boundary.measure import Counts, base_name, measured_name
from experiments.boundary.results import Results, Run, from_json, gather, policy_digest, training_of
from nemo_prorl.config import RewardConfig
from nemo_prorl.data.rows import RowFile
from nemo_prorl.demo import build
from nemo_prorl.questions.arms import checkpoint_at
from nemo_prorl.reward_sources.service import reward_service


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything there is."""

    steps: int
    """Steps of each stage."""
    num_samples: int
    """Samples of each held-out problem from every checkpoint; the largest k of pass@k."""
    base_samples: int
    """The same from the base policy, of which the claim is that it never solves something."""
    temperatures: Sequence[float]
    """At which the base policy is measured too. The papers evaluate at 0.6 and train at 1.2."""
    short: int
    """Steps of the short run: a tenth of the others."""


FULL = Scale(steps=80, num_samples=128, base_samples=512, temperatures=(0.6, 1.2), short=24)
QUICK = Scale(steps=2, num_samples=2, base_samples=4, temperatures=(1.2,), short=1)
PARALLEL = 2
"""Runs side by side; each uses one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Makes what is missing in a folder."""

    out: Path
    url: str
    scale: Scale

    @property
    def base(self) -> Path:
        """Returns the folder of the base policy and the prompts."""
        return self.out / "base"

    def build_base(self, *, is_new: bool) -> None:
        """Builds it. is_new: trains another base policy than the shipped one, in a process of its own, because a process
        holds one engine."""
        if not self.base.is_dir():
            build.build(self.base)
            if is_new:
                policy = build.policy_folder(self.base)
                shutil.rmtree(policy)
                subprocess.run([sys.executable, "-m", "experiments.boundary.base_policy", str(policy)], check=True)

    def measure_base(self, temperature: float = measure.TEMPERATURE) -> Counts:
        """Returns the base policy's counts."""
        is_usual = temperature == measure.TEMPERATURE
        num_samples = self.scale.base_samples if is_usual else self.scale.num_samples
        return self._counts(build.policy_folder(self.base), base_name(temperature), num_samples, temperature)

    def train(self, arm: str, seed: int, *, is_watched: bool) -> None:
        """Trains an arm of RL and measures its last checkpoint, or if it is watched, the end of every stage."""
        folder = self.out / f"{arm}-{seed}"
        steps = [self.scale.short] if ARMS[arm].is_short else [self.scale.steps] * len(build.LARGEST)
        train_arm(folder, self.base, self.url, ARMS[arm], seed=seed, steps=steps)
        ends = list(accumulate(steps))
        for number, step in enumerate(ends):
            if is_watched or step == ends[-1]:
                self._counts(checkpoint_at(folder, step).path, measured_name(arm, seed, number))

    def control(self, seed: int, num_rollouts: Callable[[], int]) -> None:
        """Fine-tunes on as many samples of the base as the arm `resets` drew, with as many updates, and measures.

        num_rollouts: waits for that arm and returns how many it drew.
        """
        prompts = list(build.train_files(self.base, len(build.LARGEST) - 1))
        policy = self.out / f"{CONTROL}-{seed}/policy"
        if not policy.is_dir():
            policy.parent.mkdir(exist_ok=True)
            samples = measure.sample(
                policy.parent / "samples.jsonl",
                build.policy_folder(self.base),
                prompts,
                self.url,
                num_samples=max(1, round(num_rollouts() / sum(len(RowFile(path)) for path in prompts))),
                temperature=RL_TEMPERATURE,
                seed=seed,
            )
            fine_tune_apart(
                build.policy_folder(self.base),
                policy,
                samples,
                prompts,
                updates=UPDATES_PER_STEP * self.scale.steps * len(build.LARGEST),
                seed=seed,
            )
        self._counts(policy, measured_name(CONTROL, seed, 0))

    def _counts(
        self,
        model: Path,
        name: str,
        num_samples: int | None = None,
        temperature: float = measure.TEMPERATURE,
    ) -> Counts:
        return measure.counts_of(
            model,
            self.out / f"measured/{name}.jsonl",
            [build.measured_file(self.base)],
            self.url,
            num_samples=num_samples or self.scale.num_samples,
            temperature=temperature,
        )


def main() -> None:
    """Runs what is missing, seed by seed, and reports on all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, CONTROL], default=[*ARMS, CONTROL])
    parser.add_argument("--quick", action="store_true", help="all of it in small, with one seed")
    parser.add_argument(
        "--beside",
        type=_results,
        metavar="FILE",
        help="a results.json of the same base policy: its runs are shown too and not repeated",
    )
    parser.add_argument(
        "--new-base", action="store_true", help="train the base policy instead of taking the shipped one"
    )
    parser.add_argument("--out", type=Path, help="folder (default: runs/boundary, or runs/boundary_quick)")
    options = parser.parse_args()
    options.arms = [arm for arm in measure.ALL_ARMS if arm in options.arms]
    if options.quick and options.beside:
        parser.error("--quick draws too few samples to stand --beside others: leave one of them out")
    out: Path = options.out or Path("runs/boundary_quick" if options.quick else "runs/boundary")
    seeds = options.seeds[:1] if options.quick else options.seeds
    recorded: Mapping[str, Mapping[int, Run]] = options.beside.runs if options.beside else {}
    drawn = {seed: run.training.rollouts for seed, run in recorded.get("resets", {}).items() if run.training}
    wanted = [(arm, seed) for seed in seeds for arm in options.arms if seed not in recorded.get(arm, {})]
    for arm, seed in wanted:
        known = ("resets", seed) in wanted or seed in drawn or (out / f"resets-{seed}").is_dir()
        if arm == CONTROL and not known:
            parser.error(f"the control needs the arm resets of seed {seed}: name both in --arms")
    (out / "measured").mkdir(parents=True, exist_ok=True)
    with reward_service(RewardConfig(), out) as url:
        bench = Bench(out=out, url=url, scale=QUICK if options.quick else FULL)
        bench.build_base(is_new=options.new_base)
        if options.beside and options.beside.policy != policy_digest(bench.base):
            sys.exit(
                f"error: the runs of --beside began from another base policy than {bench.base}: leave it out."
            )
        with ThreadPoolExecutor(PARALLEL) as pool:
            starts = {measure.TEMPERATURE: pool.submit(bench.measure_base)}
            runs = dict[tuple[str, int], Future[None]]()

            def rollouts(seed: int) -> int:
                if ("resets", seed) in runs:
                    runs["resets", seed].result()
                return drawn[seed] if seed in drawn else training_of(out / f"resets-{seed}").rollouts

            for arm, seed in wanted:  # the control comes after the arm that it waits for
                runs[arm, seed] = (
                    pool.submit(bench.control, seed, partial(rollouts, seed))
                    if arm == CONTROL
                    else pool.submit(bench.train, arm, seed, is_watched=arm == "resets" and seed == seeds[0])
                )
            starts |= {one: pool.submit(bench.measure_base, one) for one in bench.scale.temperatures}
            for run in runs.values():
                run.result()
    results = gather(out, {temperature: start.result() for temperature, start in starts.items()})
    print(report.write(out, results.beside(options.beside) if options.beside else results))
    print(f"in {out}: figures (*.png), numbers.md, results.json")


def _results(path: str) -> Results:
    try:
        return from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise argparse.ArgumentTypeError(f"{path} is not a results.json of this benchmark") from None


if __name__ == "__main__":
    main()
