"""Profiles training steps: the seconds of each phase, its share of this machine's limit, and its functions.

    make profile [ARGS="--shape laptop|smollm2 --steps 8 --out FOLDER KEY=VALUE ..."]

* laptop: conf/laptop.yaml, a policy of under a million parameters and responses of about ten tokens.
* smollm2: conf/smollm2.yaml, a pretrained model of 135 million parameters, with 4 prompts a step.

Trains in this process: one step to warm up, then --steps whose phases are read from the run's metrics.jsonl, as
`report` shows them, and a few that are then computed again under cProfile, which slows Python down. For each phase
lists our functions by cumulative seconds, and all functions by their own seconds. Other threads (the reward client,
writing a checkpoint) and the canary are not listed. KEY=VALUE are options of the run.

The limit is the rate of a large matrix product, measured in the same process. A phase's share of it is the operations
that its results need, over its seconds in the run, over that rate. Operations on padding are not needed; those on a
prompt are, once for each rollout, but in sampling once for all siblings.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.engines import environment

environment.prepare()  # before torch and vLLM are imported

from benchmarks.runs import build_tiny_policy  # noqa: E402
from nemo_prorl import distributed  # noqa: E402
from nemo_prorl.cluster.scale.here import ROWS, measured_flops  # noqa: E402
from nemo_prorl.cluster.scale.roofline import Operations, operations  # noqa: E402
from nemo_prorl.commands import train  # noqa: E402
from nemo_prorl.config import RunConfig  # noqa: E402
from nemo_prorl.demo import language  # noqa: E402
from nemo_prorl.engines.megatron.architecture import Architecture, read_architecture  # noqa: E402
from nemo_prorl.questions import rerun  # noqa: E402
from nemo_prorl.run_folder.run import OTHER, OUTSIDE_STEP, PHASES, read_run  # noqa: E402
from nemo_prorl.training.step import StepResult  # noqa: E402
from nemo_prorl.training.timing import Stopwatch  # noqa: E402
from nemo_prorl.types import RolloutTokens  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
NUM_STEPS = {"laptop": (8, 3), "smollm2": (2, 1)}
"""Shape -> timed steps, unless --steps says how many, and profiled steps."""
NUM_LISTED = 4
"""Functions of each kind listed for each phase."""
REST = "other"
"""Name of the time outside of all phases, also between steps."""
WIDTH = 2048
"""Width of the matrix whose product is the limit: larger ones are not faster on one core."""
KERNEL = re.compile(r"^<.*(mm\b|addmm_|matmul|attention)|vocab_parallel.*_product")
"""Place of a function that computes a matrix product or attention. Attention's backward pass is called from C++."""


def main() -> None:
    """Trains, and prints the profile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=NUM_STEPS, default="laptop")
    parser.add_argument("--steps", type=int, default=0, help="timed steps (default: 8; smollm2 2)")
    parser.add_argument("--out", type=Path, default=Path("runs/profile"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the run")
    options = parser.parse_args()
    num_timed, num_profiled = NUM_STEPS[options.shape]
    num_timed = options.steps or num_timed
    folder = options.out / options.shape
    shutil.rmtree(folder / "run", ignore_errors=True)
    if options.shape == "smollm2":
        language.build()
    else:
        build_tiny_policy()
    overrides = [
        *(["trainer.prompts_per_step=4"] if options.shape == "smollm2" else ()),
        *options.overrides,
        f"trainer.num_steps={1 + num_timed + num_profiled}",
        "data.validation=[]",
        f"exp_manager.checkpoint_callback_params.every_n_train_steps={1 + num_timed}",
        f"exp_manager.explicit_log_dir={folder / 'run'}",
    ]
    if code := train.main(["--config-name", options.shape, *overrides]):
        sys.exit(code)
    steps = {record["step"]: record for record in read_run(folder / "run").full_records}
    print_phases(options.shape, [steps[step] for step in range(2, 2 + num_timed)])
    profiles, results = profile(folder / "run", 2 + num_timed, 1 + num_timed + num_profiled)
    print_limits([(steps[step], result) for step, result in results.items()], profiles)
    print_functions(profiles, len(results))


# ------------------------------------------------------------------------------------- profiles
class ProfilingStopwatch(Stopwatch):
    """A step's stopwatch, which also profiles each of its phases."""

    def __init__(self) -> None:
        self.profiles: defaultdict[str, cProfile.Profile] = defaultdict(cProfile.Profile)
        self._phase = ""
        """The phase that is being profiled; empty if none is."""
        super().__init__()
        self.switch_to("")

    def restart(self) -> None:
        super().restart()
        self.switch_to(REST)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        before = self._phase
        self.switch_to(name if before else "")
        try:
            with super().measure(name):
                yield
        finally:
            self.switch_to(before)

    def switch_to(self, phase: str) -> None:
        """Profiles this phase from now on, or nothing."""
        if self._phase:
            self.profiles[self._phase].disable()
        self._phase = phase
        if phase:
            self.profiles[phase].enable()


def profile(
    run_dir: Path, first: int, last: int
) -> tuple[Mapping[str, cProfile.Profile], Mapping[int, StepResult]]:
    """Computes these steps of a run again, which may begin at an earlier checkpoint, and returns phase -> profile, and
    step -> result."""
    plan = rerun.plan(run_dir, first, last)
    stopwatch = ProfilingStopwatch()
    results = []
    with rerun.machinery(plan, distributed.initialise(1, 1), stopwatch=stopwatch) as (stepper, state):
        for result in rerun.steps_again(plan, stepper, state):
            stopwatch.switch_to("")
            results.append(result)
    return stopwatch.profiles, dict(zip(plan.steps, results, strict=True))


# ------------------------------------------------------------------------------------- operations
def operations_of(result: StepResult, model: Architecture) -> dict[str, float]:
    """Returns phase -> floating-point operations that its results need; 0 for a phase that was left out."""
    config, prepared = result.config, result.collection.prepared
    of_update = set() if config.algorithm.takes_kl_from_rewards else {row.key for row in result.rows[0]}
    old = [row for key, row in prepared.items() if key not in of_update]
    reference = [row for row in prepared.values() if row.reference_logprobs is not row.old_logprobs]
    trained = [row.rollout for rows in result.rows for row in rows]
    return {
        "sampling_s": sum(forward(result.collection.rollouts.values(), model, shared_prompts=True).forward),
        "old_logprobs_s": sum(forward(old, model).forward),
        "reference_logprobs_s": sum(forward(reference, model).forward),
        "updates_s": sum(forward(trained, model).update(config.model.recompute)),
    }


def forward(
    rollouts: Iterable[RolloutTokens], model: Architecture, *, shared_prompts: bool = False
) -> Operations:
    """Returns the operations of a forward pass over rollouts under a causal mask. shared_prompts: siblings need those
    of their prompt only once."""
    num_tokens = response_tokens = attended = 0
    known = set[str]()
    for rollout in rollouts:
        start = len(rollout.prompt.token_ids) if rollout.prompt.uid in known else 0
        known |= {rollout.prompt.uid} if shared_prompts else set()
        num_tokens += rollout.length - start
        response_tokens += len(rollout.token_ids)
        attended += (rollout.length * (rollout.length + 1) - start * (start + 1)) // 2
    return operations(model, num_tokens=num_tokens, response_tokens=response_tokens, attended=attended)


def padding_of(result: StepResult) -> float:
    """Returns the share of padding in the tokens that the updates' passes compute."""
    from nemo_prorl.engines.megatron.microbatch import plan_micro_batches  # imports Megatron

    budget, needed, computed = result.config.trainer.micro_batch_tokens, 0, 0
    for batch in result.batches:
        lengths = batch.tokens.lengths_B
        needed += lengths.sum()
        computed += sum(len(rows) * lengths[rows].max() for rows in plan_micro_batches(lengths, budget))
    return 1 - needed / computed


# ------------------------------------------------------------------------------------- what is printed
def print_phases(shape: str, steps: Sequence[Mapping[str, Any]]) -> None:
    """Prints the mean seconds of each phase, and their share of a step."""

    def mean_s(key: str) -> float:
        return float(sum(step.get(key, 0.0) for step in steps)) / len(steps)

    step_s = mean_s("time/step_s")
    print(f"\n{shape}: {len(steps)} steps, {mean_s('throughput/num_tokens'):,.0f} response tokens each")
    print(f"{'':34}{'s/step':>10}{'share':>9}")
    for key, name in [*PHASES.items(), (OTHER, "everything else"), ("time/step_s", "a step")]:
        print(f"{name:34}{mean_s(key):>10.3f}{mean_s(key) / step_s:>9.2%}")
    for key, name in OUTSIDE_STEP.items():
        if seconds := max(step.get(key, 0.0) for step in steps):
            print(f"{f'between steps: {name}, largest':34}{seconds:>10.3f}")


def print_limits(
    steps: Sequence[tuple[Mapping[str, Any], StepResult]], profiles: Mapping[str, cProfile.Profile]
) -> None:
    """Prints the share of the machine's limit that each phase reaches. steps: record and result of each; the profiles
    are of the same steps."""
    config = steps[0][1].config
    model = read_architecture(config.model.path)
    widest, limit = (rate(widths, config) for widths in ((model.hidden_size, model.ffn_size), (WIDTH, WIDTH)))
    found = [operations_of(result, model) for _, result in steps]
    padding = np.mean([padding_of(result) for _, result in steps])
    print(
        f"\nThe limit is {limit / 1e9:.0f} GFLOP/s, in products of {ROWS} x {WIDTH} x {WIDTH}; the model's widest\n"
        f"layer reaches {widest / 1e9:.0f}. Padding is {padding:.0%} of the tokens in updates. Means of {len(steps)} "
        "step(s),\nthe last column under cProfile:"
    )
    print(f"{'':34}{'s/step':>10}{'GFLOP':>9}{'of limit':>10}{'in kernels, s':>15}")
    for phase in found[0]:
        seconds = np.mean([record.get(f"time/{phase}", 0.0) for record, _ in steps])
        flop = np.mean([of_step[phase] for of_step in found])
        functions = pstats.Stats(profiles[phase]).stats if flop else {}  # type: ignore[attr-defined]
        kernels_s = sum(row[2] for function, row in functions.items() if KERNEL.search(place(*function)))
        name = PHASES[f"time/{phase}"]
        share = flop / limit / seconds if flop else 0.0
        print(f"{name:34}{seconds:>10.3f}{flop / 1e9:>9.1f}{share:>10.1%}{kernels_s / len(steps):>15.3f}")


def rate(widths: tuple[int, int], config: RunConfig) -> float:
    """Returns the largest of five measured rates of products with a matrix of these widths."""
    return max(measured_flops(widths, config.model.precision, config.trainer.cpu_threads) for _ in range(5))


def print_functions(profiles: Mapping[str, cProfile.Profile], num_steps: int) -> None:
    """Prints the functions with the largest times of each phase."""
    names = {key.partition("/")[2]: name for key, name in PHASES.items()}
    for phase, profile in profiles.items():
        stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        lines = [
            (place(*function), num_calls, own_s / num_steps, total_s / num_steps)
            for function, (_, num_calls, own_s, total_s, _) in stats.items()
        ]
        total = sum(own_s for _, _, own_s, _ in lines)
        print(f"\n{names.get(phase, phase)}: {total:.3f} s/step under cProfile. Our functions, cumulative:")
        ours = [line for line in lines if line[0].startswith(("nemo_prorl/", "reward/"))]
        for where, num_calls, _, total_s in sorted(ours, key=lambda line: -line[3])[:NUM_LISTED]:
            print(f"  {total_s:>9.3f} s {num_calls / num_steps:>9,.0f} calls  {where}")
        print("  All functions, without their calls:")
        for where, num_calls, own_s, _ in sorted(lines, key=lambda line: -line[2])[:NUM_LISTED]:
            print(f"  {own_s:>9.3f} s {num_calls / num_steps:>9,.0f} calls  {where}")


def place(file: str, line: int, function: str) -> str:
    """Returns a function's place, with our files relative to the repository, and others relative to site-packages."""
    path = file.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
    return function if file == "~" else f"{path}:{line} {function}"


if __name__ == "__main__":
    main()
