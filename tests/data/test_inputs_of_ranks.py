"""Tests of data files in a job of several ranks: one rank reads them, all get the same prompts, and all refuse what one
cannot read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, DataConfig, RunConfig
from nemo_prorl.data import inputs
from nemo_prorl.data.rows import FileContent, read_content, write_rows
from nemo_prorl.distributed import initialise
from tests.data.conftest import CharacterTokenizer, make_row
from tests.engines.conftest import run_ranks

FILE = "prompts.parquet"


def damaged(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def shorter(path: Path) -> None:
    write_rows(path, [make_row("prompts/0")])


CASES: dict[str, tuple[int, Callable[[Path], None], str]] = {
    "missing on the main rank": (0, Path.unlink, "does not exist"),
    "missing elsewhere": (2, Path.unlink, "does not exist"),
    "another file": (1, shorter, "has another size on"),
    "of the same size, and not Parquet": (1, damaged, "is not Parquet"),
}
"""(rank whose machine has the fault, the fault, the message on every rank)"""


def read_as_one_rank(folder: Path) -> dict[str, tuple[str, list[str], int]]:
    """Returns for every case: this rank's message, its prompts, and how many files it has read completely."""
    ranks, found = initialise(1, 1), {}
    for case in ("", *CASES):
        os.chdir(folder / case / f"machine{ranks.layout.rank}")
        num_read = 0

        def counted(path: Path) -> FileContent:
            nonlocal num_read
            num_read += 1
            return read_content(path)

        inputs.read_content = counted  # type: ignore[attr-defined]
        config = RunConfig(data=DataConfig(train={FILE: 1.0}))
        try:
            prompts, *_ = inputs.read_prompts(config, CharacterTokenizer(), ranks)
            found[case] = ("", [prompt.uid for prompt in prompts.take(4)], num_read)
        except ConfigError as error:
            found[case] = (str(error), [], num_read)
    return found


@pytest.mark.slow
def test_one_rank_reads_the_files_and_all_ranks_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    for case in ("", *CASES):
        for rank in range(3):
            path = tmp_path / case / f"machine{rank}" / FILE
            write_rows(path, [make_row(f"prompts/{index}") for index in range(9)])
            if case and CASES[case][0] == rank:
                CASES[case][1](path)
    ranks = run_ranks(read_as_one_rank, 3, folder=tmp_path, timeout_s=120)
    uids = [rank[""][1] for rank in ranks]
    assert uids == [uids[0]] * 3
    assert len(set(uids[0])) == 4
    assert [rank[""][2] for rank in ranks] == [1, 0, 0]
    for case, (_, _, sentence) in CASES.items():
        said = {rank[case][0] for rank in ranks}
        assert len(said) == 1, "the same on every rank"
        assert sentence in said.pop()
