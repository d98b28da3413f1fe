"""What sbatch's options ask for, against what Slurm 22.05 gave for the same spellings."""

from __future__ import annotations

import shlex

import pytest

from nemo_prorl.cluster.allocation import cluster_of
from nemo_prorl.config import ConfigError

LAUNCHER = """#!/usr/bin/env bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8   # whole nodes
#SBATCH --exclusive
##SBATCH --nodes=9
echo --nodes=7
#SBATCH --nodes=6
"""


@pytest.mark.parametrize(
    ("options", "variables", "num_nodes", "gpus"),
    [
        ("", {}, 4, 8),
        ("--nodes=2", {}, 2, 8),
        ("--nodes 2", {}, 2, 8),
        ("-N 2", {}, 2, 8),
        ("-N2", {}, 2, 8),
        ("--nodes=2-2", {}, 2, 8),
        ("--nodes=1 -N 3", {}, 3, 8),
        ("--gpus-per-node 3", {}, 4, 3),
        ("--gpus-per-n=3 --time-min=3", {}, 4, 3),
        ("--gpus-per-node=h100:2,a100:1", {}, 4, 3),
        ("--gpus-per-node=0", {}, 4, 1),
        ("--gres=lustre:1", {}, 4, 8),
        ("", {"SBATCH_GPUS_PER_NODE": "4", "SBATCH_ACCOUNT": "a"}, 4, 4),
        ("--gpus-per-node=2", {"SBATCH_GPUS_PER_NODE": "4"}, 4, 2),
        ("--mem=10G --time 1:00 -p big --exclude=n1 --exclusive=user", {}, 4, 8),
    ],
)
def test_spellings(options: str, variables: dict[str, str], num_nodes: int, gpus: int) -> None:
    found = cluster_of(LAUNCHER, variables, shlex.split(options))
    assert (found.num_nodes, found.gpus_per_node) == (num_nodes, gpus)


@pytest.mark.parametrize(
    ("options", "variables", "must_say"),
    [
        ("--nodes=2-4", {}, "--nodes=2-4 is no certain number"),
        ("-N 1k", {}, "--nodes=1k is no certain number"),
        ("-N 0", {}, "--nodes=0"),
        ("--gpus-per-node=2x", {}, "--gpus-per-node=2x is no certain number"),
        ("--gres=gpu:h100:2,license:1", {}, "--gres leaves open"),
        ("", {"SBATCH_GRES": "gpu:4"}, "--gres leaves open"),
        ("-G 32", {}, "--gpus leaves open"),
        ("", {"SBATCH_GPUS_PER_TASK": "1"}, "--gpus-per-task leaves open"),
        ("--gpus-per=3", {}, "options of sbatch cannot be read: ambiguous option: --gpus-per"),
        ("--nodes", {}, "options of sbatch cannot be read: argument"),
        ("-d singleton", {}, "--dependency is not for submit"),
        ("--array=1-3", {}, "--array is not for submit"),
        ("", {"SBATCH_CLUSTERS": "other"}, "--clusters is not for submit"),
        ("--test-only", {}, "--test-only is not for submit"),
    ],
)
def test_what_leaves_the_size_open_is_refused(options: str, variables: dict[str, str], must_say: str) -> None:
    with pytest.raises(ConfigError, match=must_say):
        cluster_of(LAUNCHER, variables, shlex.split(options))


def test_a_launcher_without_options_has_one_node_and_one_rank() -> None:
    assert str(cluster_of("#!/bin/sh\n", {}, [])) == "1 x 1 GPUs"


def test_a_header_that_cannot_be_read_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="an #SBATCH line of the launcher cannot be read"):
        cluster_of("#!/bin/sh\n\n#SBATCH --comment='it\n", {}, [])
