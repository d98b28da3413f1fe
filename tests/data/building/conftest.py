"""A client of the real reward service, and small sources in the schemas of the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import DataBuildConfig
from nemo_prorl.data.building.pipeline import build
from nemo_prorl.data.building.source import Submit, get
from nemo_prorl.data.rows import Row, RowFile
from reward.client import RewardClient


@pytest.fixture(scope="session")
def submit(service: str) -> Iterator[Submit]:
    with RewardClient(urls=[service], request_timeout_s=300.0) as client:
        client.wait_until_ready(120)
        yield client.submit


class Building:
    """Builds sources into a folder of its own. Example: building.run("deepscaler", [{...}, {...}], held_out=1)"""

    def __init__(self, folder: Path, submit: Submit) -> None:
        self.folder, self.submit = folder, submit
        self.out = folder / "data"

    def file(self, name: str, records: Sequence[Mapping[str, Any]]) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return str(path)

    def run(
        self, name: str, records: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> dict[str, Any]:
        if records is not None:
            options["source"] = self.file("source/records.jsonl", records)
        return build(get(name), DataBuildConfig(out=str(self.out), **options), self.submit)

    def rows(self, name: str, split: str = "train") -> list[Row]:
        path = self.out / name / f"{split}.parquet"
        if not path.exists():
            return []
        file = RowFile(path)
        return [file[index] for index in range(len(file))]


@pytest.fixture
def building(tmp_path: Path, submit: Submit) -> Building:
    return Building(tmp_path, submit)


def math_record(problem: str, answer: object = "4", **more: Any) -> dict[str, Any]:
    return {"problem": problem, "answer": answer, "solution": "", **more}


def code_record(
    question: str, tests: Mapping[str, Any] | str, *, ability: str = "code", solution: str | None = None
) -> dict[str, Any]:
    """Returns a record in the schema of PRIME-RL/Eurus-2-RL-Data."""
    truth = tests if isinstance(tests, str) else json.dumps(tests)
    prompt = (
        f"{question}\n\nWrite Python code to solve the problem. Present the code in \n```python\nYour code\n```\n"
        "at the end."
    )
    return {
        "data_source": "codeforces",
        "prompt": [
            {"content": "When tackling complex reasoning tasks ... [ASSESS] [ADVANCE]", "role": "system"},
            {"content": prompt, "role": "user"},
        ],
        "ability": ability,
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"index": 0, "split": "dummy"} | ({"solution": solution} if solution else {}),
    }


def instruction_record(text: str, instructions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a record in the schema of Llama-Nemotron's RL/instruction_following.jsonl: every argument of every rule,
    mostly null."""
    arguments = ("num_words", "relation", "num_sentences", "keywords", "forbidden_words", "language")
    return {
        "input": [{"role": "user", "content": text}],
        "args": {
            "instruction_id_list": list(instructions),
            "instruction_kwargs": [dict.fromkeys(arguments) | dict(given) for given in instructions.values()],
            "num_instructions": len(instructions),
            "task": "verifiable_instruction_following",
        },
        "category": "instruction following",
        "license": "odc-by",
        "reasoning": "off",
        "used_in_training": "yes",
        "version": "v1",
        "system_prompt": "detailed thinking off",
    }
