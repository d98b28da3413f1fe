"""Files that a chain names but that do not exist yet, with the commands that make them."""

from __future__ import annotations

from pathlib import Path

from nemo_prorl.cluster.plan.chain import Chain
from nemo_prorl.config import is_hub_name
from nemo_prorl.config.makers import command_for


def missing_files(chain: Chain) -> dict[str, str]:
    """Returns path -> what makes it, for each missing file, in the order in which the stages need them.

    Example: {"data/eurus/train.parquet": "python -m nemo_prorl data build eurus"}
    """
    wanted: dict[str, bool] = {}
    for config in chain:
        model = config.model.path
        wanted[model or "model.path"] = bool(model) and (Path(model) / "config.json").is_file()
        if not config.data.train:
            wanted["data.train"] = False
        for path in (*config.data.train, *config.data.validation):
            wanted[path] = Path(path).exists() or is_hub_name(path)
    advice = {"model.path": "write model.path=FOLDER", "data.train": "write 'data.train={FILE: 1}'"}
    other = "write another path, or the file (docs/data.md has the format)"
    missing = (path for path, is_there in wanted.items() if not is_there)
    return {path: command_for(path) or advice.get(path, other) for path in missing}
