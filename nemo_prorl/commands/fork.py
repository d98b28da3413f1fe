"""Trains several continuations of a run from one checkpoint, and says how sure their differences are."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_prorl.commands.ending import say, show
from nemo_prorl.commands.parsing import CONF_DIR, PROGRAM, Parser
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.storage import check_writable

if TYPE_CHECKING:
    from nemo_prorl.questions.arms import ArmRun

DESCRIPTION = """\
  fork runs/mine --at 400 --steps 40 --seeds 3 --arm nothing \\
       --arm 'third_lr: trainer.learning_rate=7e-7' \\
       --arm 'reset: stage.reset_reference=true stage.reset_optimizer=true'

Each arm is a child stage in a folder of its own and only goes on, unless its options reset something; the first is \
what the others are compared with. The run itself is not changed and may be training. Finished arms are not trained \
again: the same command goes on after an interruption, and with more seeds or arms it trains what is new. \
docs/experiments.md says what the table means."""


def main(arguments: Sequence[str]) -> int:
    """Trains what is missing, prints the table and returns the exit code: 1 if an arm failed or was paused."""
    parser = Parser("fork", __doc__, DESCRIPTION)
    parser.path("run_dir", "RUN_DIR", "exp_manager.explicit_log_dir of the run")
    parser.number("--at", "N", "step of a checkpoint of the run", required=True)
    parser.add_argument(
        "--arm",
        action="append",
        required=True,
        metavar="'NAME: KEY=VALUE ...'",
        help="what is different in this arm; a name alone changes nothing. Twice at least",
    )
    parser.number("--steps", "K", "steps that each arm trains", required=True)
    parser.number("--seeds", "S", "seeds of each arm: the run's, and the numbers after it", default=1)
    parser.path("--out", "DIR", "folder of the arms (default: RUN_DIR/forks/N)")
    parser.flag("--prepare", "trains nothing: makes the folders, and prints the commands that train in them")
    parser.number("--ranks", "R", "processes of each arm, on this machine", default=1)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="sets an option in all arms")
    given = parser.parse_intermixed_args(arguments)
    run_dir: Path = given.run_dir
    if not (run_dir / "checkpoints").is_dir():
        raise ConfigError(f"RUN_DIR={run_dir} has no checkpoints/: write the folder of a run.")
    from nemo_prorl.questions import arms

    parsed = [arms.Arm.parsed(text) for text in given.arm]
    if len(parsed) < 2:
        raise ConfigError(
            "--arm is given once: write two arms or more, such as --arm nothing for the run as it is."
        )
    out: Path = given.out or run_dir / "forks" / str(given.at)
    check_writable(f"--out {out}", out)
    checkpoint = arms.checkpoint_at(run_dir, given.at)
    runs = arms.arm_runs(
        run_dir,
        checkpoint,
        parsed,
        common=given.overrides,
        num_seeds=given.seeds,
        num_steps=given.steps,
        out=out,
        conf_dir=CONF_DIR,
    )
    arms.prepare(runs, run_dir, checkpoint, _launcher(checkpoint.state.stage))
    if changed := arms.changed_since(run_dir, checkpoint.state, CONF_DIR):
        others = (
            f"was trained with another {', '.join(changed)}: the arms have the newest options of the stage"
        )
        show([f"warning: step {given.at} of {run_dir} {others}."])
    if given.prepare:
        show(commands_of(runs, given.ranks), exact=True)
    elif code := _train(runs, run_dir, out, num_ranks=given.ranks):
        return code
    return _report(runs, out)


def _launcher(stage: str) -> Path | None:
    """Returns the launcher of a stage; None if it has none."""
    from nemo_prorl.cluster.submit import find_launcher

    try:
        return CONF_DIR.parent / find_launcher(stage, CONF_DIR.parent)
    except ConfigError:
        return None


def commands_of(runs: Sequence[ArmRun], num_ranks: int) -> list[str]:
    """Returns a line of shell for each run that is not finished: a job if the stage has a launcher, else a command for
    `num_ranks` ranks on this machine."""
    from nemo_prorl.questions.arms import JOB_FILE
    from nemo_prorl.questions.table import unfinished

    torchrun = f"torchrun --standalone --nproc-per-node={num_ranks} -m nemo_prorl"
    lines = []
    for run in unfinished(runs):
        words = [*shlex.split(torchrun if num_ranks > 1 else PROGRAM), *run.arguments]
        if (job := run.folder / JOB_FILE).is_file():
            words = ["sbatch", f"--job-name={run.name}", f"--output={run.folder}/slurm-%j.out", str(job)]
        lines.append(shlex.join(words))
    return lines


def _train(runs: Sequence[ArmRun], run_dir: Path, out: Path, *, num_ranks: int) -> int:
    """Trains what is not finished, one after the other. Returns the exit code of the first that neither finished nor
    failed for good, else 0."""
    from nemo_prorl.cluster.local_ranks import run_ranks
    from nemo_prorl.questions.table import cost_sentence, results_of, unfinished
    from nemo_prorl.reward_sources.service import reward_service
    from nemo_prorl.run_folder.run import RunFolder

    if not (left := unfinished(runs)):
        return 0
    results_of(runs)  # raises now what would otherwise stop the table at the end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which pauses the arm that trains
    num_steps = left[0].config.trainer.num_steps
    step_s = RunFolder(run_dir).recent_step_s(20)
    cost = cost_sentence(step_s, num_runs=len(left), num_steps=num_steps, num_ranks=num_ranks)
    show([f"{len(left)} of {len(runs)} trainings are missing, of {num_steps} steps each: {cost}"])
    reward = left[0].config.reward
    with reward_service(reward, out) if reward.starts_service else nullcontext():
        for number, run in enumerate(left, start=1):
            show([f"\n{run.arm.name}, seed {run.seed} ({number} of {len(left)})"])
            code = run_ranks(["nemo_prorl", *run.arguments], num_ranks=num_ranks)
            if not run.is_done and not run.why_failed:
                what = "was paused" if code == 0 else f"ended with exit code {code}"
                then = "correct that first" if code == 2 else "the same command goes on with it"
                return say(f"arm {run.name} {what}: {then}.", code or 1)
    return 0


def _report(runs: Sequence[ArmRun], out: Path) -> int:
    """Prints the table of the finished runs and writes it beside them."""
    from nemo_prorl.questions import table
    from nemo_prorl.run_folder.storage import replace_text

    results = table.results_of(runs)
    if len(results) > 1:
        lines = [*table.table_lines(results, runs)]
        replace_text(out / "fork.json", json.dumps(table.as_json(results), indent=1) + "\n")
        replace_text(out / "fork.txt", "\n".join(lines) + "\n")
        curves = shlex.join(
            [
                *shlex.split(PROGRAM),
                "report",
                *(str(run.folder) for run in runs if run.is_done),
                f"--out={out / 'fork.html'}",
            ]
        )
        show(["", *lines, f"in {out}: fork.txt, fork.json", "their curves, side by side:"])
        show([curves], exact=True)
    return 1 if any(run.why_failed for run in runs) else 0
