"""What sbatch's options ask for, against what Slurm 22.05 gave for the same spellings."""

from __future__ import annotations

import shlex

import pytest

from nemo_prorl.cluster.allocation import Allocation, allocation, read_options
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
        ("--gpus-per-node=h100:3", {}, 4, 3),
        ("--gpus-per-node=h100:2,a100:1", {}, 4, 3),
        ("--gres=gpu:8", {}, 4, 8),
        ("--gres=gpu:h100:8,license:1", {}, 4, 8),
        ("--gres=gpu:2 --gpus-per-node=2", {}, 4, 2),
        ("--gres=lustre:1", {}, 4, 8),
        ("-G 32", {}, 4, 8),
        ("--gpus=h100:16 -N 2", {}, 2, 8),
        ("", {"SBATCH_GPUS_PER_NODE": "4"}, 4, 4),
        ("--gpus-per-node=2", {"SBATCH_GPUS_PER_NODE": "4"}, 4, 2),
        ("", {"SBATCH_GRES": "gpu:8", "SBATCH_ACCOUNT": "a"}, 4, 8),
        ("--mem=10G --time 1:00 -p big --exclude=n1", {}, 4, 8),
    ],
)
def test_spellings(options: str, variables: dict[str, str], num_nodes: int, gpus: int) -> None:
    found = allocation(LAUNCHER, variables, shlex.split(options))
    assert (found.num_nodes, found.gpus_per_node) == (num_nodes, gpus)


@pytest.mark.parametrize(
    ("options", "variables", "must_say"),
    [
        ("--nodes=2-4", {}, "--nodes=2-4 is no certain number of nodes"),
        ("-N 1k", {}, "--nodes=1k is no certain number"),
        ("-N 0", {}, "--nodes=0 is no certain number"),
        ("--gres=gpu:2", {}, "--gpus-per-node=8 and --gres=gpu:2 ask for different numbers of GPUs: write only "
         "--gpus-per-node=2"),
        ("--gpus-per-node=2", {"SBATCH_GRES": "gpu:4"}, "write only --gpus-per-node=2"),
        ("-G 7", {}, "--gpus=7 is not the same number of GPUs for each of 4 nodes"),
        ("-G 8", {}, "ask for different numbers of GPUs: write only --gpus-per-node=2"),
        ("--gpus-per-node=2x", {}, "--gpus-per-node=2x is not the same number"),
        ("--gpus-per-task=1", {}, "--gpus-per-task leaves the GPUs of a node open"),
        ("", {"SBATCH_GPUS_PER_TASK": "1"}, "--gpus-per-task leaves"),
        ("--gpus-per-n=3", {}, "--gpus-per-n=3 is an abbreviation: write --gpus-per-node in full"),
        ("--dependency=singleton", {}, "--dependency is not for submit"),
        ("-d singleton", {}, "--dependency is not for submit"),
        ("--array=1-3", {}, "--array is not for submit"),
        ("", {"SBATCH_CLUSTERS": "other"}, "--clusters is not for submit"),
        ("--test-only", {}, "--test-only is not for submit"),
    ],
)  # fmt: skip
def test_what_leaves_the_size_open_is_refused(options: str, variables: dict[str, str], must_say: str) -> None:
    with pytest.raises(ConfigError) as refused:
        allocation(LAUNCHER, variables, shlex.split(options))
    assert must_say in str(refused.value)


def test_a_launcher_without_options_has_one_node_and_one_rank() -> None:
    for text in ("#!/bin/sh\n", "#SBATCH --exclusive\n"):
        assert allocation(text, {}, []) == Allocation(num_nodes=1, gpus_per_node=1)


@pytest.mark.parametrize(
    ("options", "variables", "is_fine"),
    [
        ("", {}, False),
        ("--gpus-per-node=4", {}, True),
        ("--exclusive=user", {}, True),
        ("--exclusive", {"SBATCH_EXCLUSIVE": "user"}, False),
        ("", {"SBATCH_EXCLUSIVE": "user"}, True),
    ],
)
def test_whole_nodes_are_asked_for_by_their_gpus(
    options: str, variables: dict[str, str], is_fine: bool
) -> None:
    """With --exclusive Slurm gives all GPUs of a node; launchers count --gpus-per-node."""
    launcher = "#SBATCH --exclusive\n#SBATCH --gres=gpu:4\n"
    if is_fine:
        assert allocation(launcher, variables, shlex.split(options)).gpus_per_node == 4
    else:
        with pytest.raises(ConfigError, match="write --gpus-per-node=4, by which a launcher counts"):
            allocation(launcher, variables, shlex.split(options))


def test_a_header_that_cannot_be_read_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="an #SBATCH line of the launcher cannot be read"):
        allocation("#!/bin/sh\n\n#SBATCH --comment='it\n", {}, [])


def test_flags_take_no_value() -> None:
    assert read_options(["--exclusive", "-N", "2", "x"]) == {"exclusive": "", "nodes": "2"}
