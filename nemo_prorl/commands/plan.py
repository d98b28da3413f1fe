"""Shows what a chain of stages changes, costs and lacks, and refuses one that cannot work."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_prorl.commands.output import show
from nemo_prorl.commands.parsing import CONF_DIR, Parser, parse_overrides

DESCRIPTION = """\
stage=NAME  that stage of conf/stage/ alone, at the end of the chain that leads to it
            (default: the whole recipe, run1 to run8)
KEY=VALUE   any option of `train --help`; it holds for every stage, as it would on the command line of each"""


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    from nemo_prorl.planning import chain as chains
    from nemo_prorl.planning.fit import Cluster, check_chain, model_of
    from nemo_prorl.planning.remaining import missing_files
    from nemo_prorl.planning.text import chain_text, remaining_text, stage_text

    parser = Parser("plan", __doc__, DESCRIPTION)
    parser.add_argument("--nodes", type=int, default=4, help="of the cluster (default: 4, ProRL's)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of a node (default: 8, ProRL's)")
    given = parse_overrides(parser, arguments)
    stages = [text.partition("=")[2] for text in given.overrides if text.startswith("stage=")]
    chain = chains.load_chain(
        stages[-1:] or chains.recipe_names(CONF_DIR),
        [text for text in given.overrides if not text.startswith("stage=")],
        config_name=given.config_name,
        conf_dir=CONF_DIR,
    )
    cluster = Cluster(num_nodes=given.nodes, gpus_per_node=given.gpus_per_node)
    model = model_of(chain[0])
    check_chain(chain, cluster, model)
    lines = (stage_text if stages else chain_text)(chain, cluster, model)
    show([*lines, *remaining_text(missing_files(chain), model)])
    return 0
