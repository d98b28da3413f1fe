"""What a step measures of the machine."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from nemo_prorl.training.timing import HOST_FREE, host_memory


def test_host_memory_is_that_of_the_process_and_of_others() -> None:
    """A block that the process takes, and one that a process takes which it starts."""
    before = host_memory()
    block = np.ones(2**27 // 8)
    after = host_memory()
    assert 0.11 < after["host_memory/rank_gib"] - before["host_memory/rank_gib"] < 0.2
    assert 0 < after[HOST_FREE] < 10_000
    del block
    script = "import sys; block = bytearray(b'1' * 2**28); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert host_memory()["host_memory/others_gib"] > 0.25
        child.communicate()
