"""Takes a run back to the start of a stage or to a step; what came later is set aside, not deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError

DESCRIPTION = """\
For a run that has gone on with a broken reward or the wrong data. Afterwards STAGE begins again as its parent left \
the run or, with --step, goes on from one of its checkpoints. Later checkpoints, markers and records move to \
RUN_DIR/set_aside/TIME, where they keep their places. Stop the run first."""


def main(arguments: Sequence[str]) -> int:
    """Takes the run back and says where it stands. Returns the exit code 0."""
    parser = Parser("rewind", __doc__, DESCRIPTION)
    parser.path("run_dir", "RUN_DIR", "exp_manager.explicit_log_dir of the run")
    parser.add_argument("stage", metavar="STAGE", help="the stage to train again")
    parser.number("--step", "N", "goes on after step N of the run, of which it has a checkpoint")
    given = parser.parse_args(arguments)
    from nemo_prorl.cluster.slurm_queue import is_gone
    from nemo_prorl.run_folder.lock import alone_in
    from nemo_prorl.training.rewinding import rewind

    if not (given.run_dir / "checkpoints").is_dir():
        raise ConfigError(f"RUN_DIR={given.run_dir} has no checkpoints/: write the folder of a run.")
    with alone_in(given.run_dir, is_gone):
        rewound = rewind(given.run_dir, given.stage, given.step)
    last = rewound.last
    where = f"step {last.state.step} of stage {last.state.stage}" if last else "the model, as a new run"
    how = "begins again with" if given.step is None else "goes on after"
    counts = Counter(path.relative_to(given.run_dir).parts[0] for path in rewound.moved)
    moved = ", ".join(f"{count} from {folder}/" for folder, count in counts.items()) or "nothing"
    show([f"stage {given.stage} {how} {where}. Moved to {rewound.aside}: {moved}."])
    return 0
