from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for all tests. With PRORL_NEED_SLURM=1 (continuous integration) a missing Slurm is an error."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [tool for tool in NEEDED if shutil.which(tool, path=path) is None]
    if missing and not os.environ.get("PRORL_NEED_SLURM"):
        pytest.skip(f"needs Slurm ({', '.join(missing)} missing): apt-get install slurm-wlm munge")
    assert not missing, f"PRORL_NEED_SLURM is set, but {', '.join(missing)} is missing"
    # Not pytest's folder, because the path of munge's socket may have only about 100 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        made = Cluster(Path(folder))
        try:
            made.up()
            yield made
        finally:
            made.down()
