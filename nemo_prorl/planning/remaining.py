"""Files that a chain names but that do not exist yet, with the commands that make them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nemo_prorl.compose import is_hub_name
from nemo_prorl.planning.chain import Chain

MAKERS = (
    (r"models/(DeepSeek-R1-\S+)", "hf download deepseek-ai/\\1 \\\\\n          --local-dir \\g<0>"),
    (r"data/eval/(\w+)\.parquet", r"python -m nemo_prorl evaluate benchmarks=\1 --write-prompts data/eval"),
    (
        r"data/scp116k/train\.parquet",
        "python -m nemo_prorl data build scp116k \\\\\n          endpoint=http://127.0.0.1:8000/v1 "
        "model=Qwen/Qwen2.5-32B-Instruct  # or another judge",
    ),
    (r"data/(\w+)/(train|validation)\.parquet", r"python -m nemo_prorl data build \1"),
    (r"runs/tiny/\S+", "python -m nemo_prorl demo"),
)
"""(pattern of the whole path, command that makes the file); the first match counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Example: Missing(path="data/eurus/train.parquet", maker="python -m nemo_prorl data build eurus")"""

    path: str
    maker: str


def missing_files(chain: Chain) -> list[Missing]:
    """Returns each missing file once, in the order in which the stages need them."""
    wanted: dict[str, bool] = {}
    for config in chain:
        model = config.model.path
        wanted[model or "model.path"] = bool(model) and (Path(model) / "config.json").is_file()
        if not config.data.train:
            wanted["data.train"] = False
        for path in (*config.data.train, *config.data.validation):
            wanted[path] = Path(path).exists() or is_hub_name(path)
    return [Missing(path=path, maker=_maker(path)) for path, is_there in wanted.items() if not is_there]


def _maker(path: str) -> str:
    for pattern, maker in MAKERS:
        if found := re.fullmatch(pattern, path):
            return found.expand(maker)
    return {"model.path": "write model.path=FOLDER", "data.train": "write 'data.train={FILE: 1}'"}.get(
        path, "write another path, or the file (docs/data.md has the format)"
    )
