"""One long run and its report, which the tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.run_folder.run import RunFolder, read_run
from tests.report.made_up_runs import write_run


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of 3,000 steps in eight stages, like the papers', that is cut off while its last line is
    written."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    write_run(folder, num_steps=3000, num_stages=8, is_done=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3001, "stage": "run8", "reward/me')
    return folder


@pytest.fixture(scope="session")
def long_run(long_folder: Path) -> RunFolder:
    return read_run(long_folder)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """Writes a small run. make_run(records=..., **options of write_run): `records` is a function that changes its
    records."""

    def make(
        change: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record, **options: Any
    ) -> RunFolder:
        import json

        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        records = [change(record) for record in write_run(folder, **options)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return read_run(folder)

    return make
