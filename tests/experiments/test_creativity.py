"""Tests of experiments/creativity: the index against its definition, and the command on two small evaluations."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import experiments.creativity.__main__ as command  # noqa: E402
from experiments.creativity.index import creativity_indices  # noqa: E402
from nemo_prorl.evaluation import results  # noqa: E402
from tests.evaluation.test_comparison import result  # noqa: E402


def brute_force_index(text: list[str], corpus: list[list[str]]) -> float:
    """Computes the index by its definition: for L from 5 to 12, the sum of the shares of words outside of all runs of
    at least L words that occur in the corpus."""
    total = 0.0
    for least in range(5, 13):
        covered = [False] * len(text)
        for length in range(least, len(text) + 1):
            runs = {tuple(d[i : i + length]) for d in corpus for i in range(len(d) - length + 1)}
            for start in range(len(text) - length + 1):
                if tuple(text[start : start + length]) in runs:
                    covered[start : start + length] = [True] * length
        total += covered.count(False) / len(text)
    return total


def test_the_creativity_index_is_that_of_its_definition() -> None:
    rng = np.random.default_rng(1)
    letters = list("abcd")
    corpus = [list(rng.choice(letters, 120)) for _ in range(3)]
    texts = [list(rng.choice(letters, 40)), corpus[0][20:50], corpus[1][:9] + ["z"] * 9 + corpus[2][5:16]]
    found = creativity_indices([" ".join(text) for text in texts], (" ".join(d) for d in corpus))
    assert found == pytest.approx([brute_force_index(text, corpus) for text in texts])
    assert found[1] == 0.0
    assert creativity_indices(["z " * 20, "too short"], []) == [8.0, None]


def test_the_command_prints_a_line_a_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    for name, correct in (("start", [0, 1, 2]), ("last", [4, 5, 6])):
        results.write(tmp_path / name / results.RESULTS, {"key": "k"}, [result("aime2024", correct)])
        (tmp_path / name / "samples").mkdir()
        line = '{"uid": "aime2024/0", "sample": 0, "key": "k", "response": "%s", "num_tokens": 1, "finish": "stop"}\n'
        (tmp_path / name / "samples" / "aime2024.rank0.jsonl").write_text(line % ("word " * 15))
        folders.append(str(tmp_path / name))
    (tmp_path / "corpus.txt").write_text("word " * 30)
    monkeypatch.setattr(sys, "argv", ["creativity", *folders, "--corpus", str(tmp_path / "corpus.txt")])
    command.main()
    said = capsys.readouterr().out
    assert f"creativity index of aime2024 (0 to 8): {folders[0]} 0.000, {folders[1]} 0.000" in said
