"""A pytest plugin (`-p tests.gpu.emulated.plugin`, as in scripts/test_te.sh) with which Transformer Engine's layers run
on the CPU, in this process and in those that tests start (machine.py)."""

from __future__ import annotations

from nemo_prorl.engines import environment

environment.prepare()  # before torch is imported

from tests.gpu.emulated import machine  # noqa: E402

machine.install()


def pytest_collection_finish() -> None:
    """Makes the server that forks ranks import this module first. By now tests/engines/conftest.py is imported."""
    from tests.engines.conftest import PROCESSES

    PROCESSES.set_forkserver_preload([__name__, "tests.engines.imported"])
