"""Converts a run's checkpoint into a Hugging Face one, with configuration, tokenizer and model card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_prorl.commands.parsing import Parser, check_vacant
from nemo_prorl.config import ConfigError, Precision
from nemo_prorl.engines import environment
from nemo_prorl.run_folder.checkpoints import STATE_FILE, locate_checkpoint

SIZE_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def main(arguments: Sequence[str]) -> int:
    """Writes the checkpoint as a Hugging Face folder and returns exit code 0."""
    parser = Parser("export", __doc__)
    parser.path("checkpoint", "CHECKPOINT", "folder of a checkpoint, or of a run for its newest checkpoint")
    parser.path("out", "OUT", "folder to write; must be empty or not exist yet")
    parser.add_argument(
        "--dtype",
        choices=list(Precision.__members__),
        help="precision of the weights (default: the policy's; fp32: the optimizer's main weights)",
    )
    parser.add_argument(
        "--max-shard-size",
        default="5GB",
        metavar="SIZE",
        help="size of the largest file, such as 500MB (default: 5GB); one file is held in memory",
    )
    options = parser.parse_args(arguments)
    if not options.checkpoint.is_dir():
        raise ConfigError(f"CHECKPOINT={options.checkpoint} is not a folder: write that of a checkpoint.")
    shard_bytes = parse_size(options.max_shard_size)
    check_vacant(options.out)
    environment.prepare()
    checkpoint = locate_checkpoint(options.checkpoint)
    from nemo_prorl.engines.megatron import conversion

    if checkpoint != options.checkpoint:
        print(f"exporting {checkpoint}")
    card = model_card(checkpoint)
    conversion.export_hf(checkpoint, options.out, dtype=options.dtype, shard_bytes=shard_bytes, card=card)
    size = sum(file.stat().st_size for file in options.out.glob("*.safetensors"))
    print(f"wrote {options.out} ({size / 1e6:,.1f} MB of weights)")
    return 0


def parse_size(text: str) -> int:
    """Returns the number of bytes. Raises ConfigError if `text` is not a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)", text)
    size = int(float(match[1]) * SIZE_UNITS[match[2]]) if match else 0
    if not size:
        raise ConfigError(
            f"--max-shard-size {text} is no size: write a number and a unit, such as 500MB or 5GB."
        )
    return size


def model_card(checkpoint: Path) -> str:
    """Returns the README.md of the exported folder; empty if no run wrote the checkpoint. It contains no path, because
    it may be published."""
    import yaml

    if not (checkpoint / STATE_FILE).is_file():
        return ""
    record = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    state, provenance = record["state"], record["provenance"]
    run_dir = checkpoint.resolve().parents[1]
    recorded = run_dir / "stages" / f"{state['stage']}.yaml"
    base = ""  # the name of the model's folder, without its path
    if recorded.is_file():
        config = yaml.safe_load(recorded.read_text(encoding="utf-8"))
        base = Path(config["model"]["path"]).name
    scores = ["No validation was made.", ""]
    if state["validation"]:
        last = state["validation"][-1]
        numbers = {name: f"{value:.4f}" for name, value in last.items() if name != "step"}
        if record["score"] is not None:
            numbers = {"monitored metric of this checkpoint": f"{record['score']:.4f}", **numbers}
        scores = [f"## Held-out scores at step {last['step']}", "", *_table("metric", "value", numbers), ""]
    last_reset = f", the last after step {state['last_reset_step']}" if state["num_resets"] else ""
    facts = {
        "run": run_dir.name,
        "stage": state["stage"],
        "step": f"{state['step']} ({state['stage_step']} of this stage)",
        "optimizer updates": state["num_updates"],
        "resets of the reference": f"{state['num_resets']}{last_reset}",
        "base model": base or "not recorded",
        "nemo_prorl": f"commit {provenance.get('commit', 'unknown')}",
        **provenance.get("versions", {}),
    }
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [reinforcement-learning, prorl]",
        *([f"base_model: {base}"] if base else []),
        "# license: to be written before this is published; it follows from the base model and the data",
        "---",
        "",
        f"# {run_dir.name}, stage {state['stage']}, step {state['step']}",
        "",
        "Trained by reinforcement learning with verifiable rewards (ProRL, arXiv 2505.24864 and 2507.12507).",
        "",
        *_table("", "", facts),
        "",
        *scores,
        "## Licence",
        "",
        "Not stated here: that of the base model, and of the data it was trained on, applies.",
    ]
    return "\n".join(lines) + "\n"


def _table(left: str, right: str, rows: Mapping[str, Any]) -> list[str]:
    return [f"| {left} | {right} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
