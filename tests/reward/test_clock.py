"""Tests of what counts as sleep: neither computing, nor waiting for a processor or for a parent that waits for one."""

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reward.sandbox import clock
from tests.reward.serving import ROOT

PARENT = """
import os, sys, time
from reward.sandbox.clock import SleepMeter
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    {child}
    os._exit(0)
meter = SleepMeter(os.getpid())
meter.sample()
{parent}
print(meter.sample())
"""
COMPUTE = "begun = time.process_time()\nwhile time.process_time() - begun < 0.6: pass"


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell sleep from starvation"
)
@pytest.mark.parametrize(
    ("child", "parent", "low", "high"),
    [
        ("time.sleep(60)", "time.sleep(0.6)", 0.5, 60.0),
        ("os.read(read, 1)", COMPUTE, 0.0, 0.4),
        ("pass", "time.sleep(0.6)", 0.0, 0.4),
    ],
    ids=["asleep", "waits for a busy parent", "has ended"],
)
def test_what_counts_as_sleep(child: str, parent: str, low: float, high: float) -> None:
    source = PARENT.format(child=child, parent=parent) + "os.kill(pid, 9)"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert low <= float(done.stdout) <= high


def test_where_children_cannot_be_seen_their_sleep_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_on_another_kernel(path: str, *rest: Any) -> Any:
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return builtins.open(path, *rest)

    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        sleep = clock.SleepMeter(sleeper.pid)
        monkeypatch.setattr(clock, "open", open_on_another_kernel, raising=False)
        assert sleep.sample() is None
        sleeper.kill()
    assert sleep.sample() == 0.0, "the process is gone"
