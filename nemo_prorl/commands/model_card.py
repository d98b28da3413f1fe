"""The README.md of an exported folder. It contains no path of this machine, because it may be published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.evaluation import results, tables
from nemo_prorl.run_folder.checkpoints import STATE_FILE
from nemo_prorl.run_folder.difficulty import read_rewards
from nemo_prorl.run_folder.storage import read_yaml


def model_card(checkpoint: Path, evaluations: Sequence[Path] = ()) -> str:
    """Returns the text; empty if no run wrote the checkpoint. `evaluations`: folders that `evaluate` has filled.
    Raises ConfigError if one of them is something else."""
    if not (checkpoint / STATE_FILE).is_file():
        return ""
    record = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    state, provenance = record["state"], record["provenance"]
    run_dir = checkpoint.resolve().parents[1]
    stages = _stages(run_dir, state["stage"])
    # The first stage's model is the one that all of them started from.
    path = next(iter(stages.values()))["model"]["path"] if stages else ""
    base = name_of(path)
    last_reset = f", the last after step {state['last_reset_step']}" if state["num_resets"] else ""
    facts = {
        "run": run_dir.name,
        "stage": state["stage"],
        "step": f"{state['step']} ({state['stage_step']} of this stage)",
        "optimizer updates": state["num_updates"],
        "resets": f"{state['num_resets']}{last_reset}",
        "base model": base or "not recorded",
        "nemo_prorl": f"commit {provenance.get('commit', 'unknown')}",
        **provenance.get("versions", {}),
    }
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [reinforcement-learning, prorl]",
        *([f"base_model: {base}"] if "models--" in path else []),  # a name of the hub, not of a local folder
        "# license: to be written before this is published; it follows from the base model and the data",
        "---",
        "",
        f"# {run_dir.name}, stage {state['stage']}, step {state['step']}",
        "",
        "Trained by reinforcement learning with verifiable rewards (ProRL, arXiv 2505.24864 and 2507.12507).",
        "",
        *_section("Checkpoint", ("fact", "value"), facts.items()),
        "",
        *_training(stages),
        *_held_out(state, run_dir),
        *_evaluations(evaluations),
        "## Licence",
        "",
        "Not stated here: that of the base model, and of the data it was trained on, applies.",
    ]
    return "\n".join(lines) + "\n"


def name_of(model: str) -> str:
    """Returns the model's name on the hub if its folder is in the hub's cache, models--OWNER--NAME/snapshots/COMMIT;
    else the folder's name."""
    in_cache = [part for part in Path(model).parts if part.startswith("models--")]
    return "/".join(in_cache[-1].split("--")[1:]) if in_cache else Path(model).name


def _stages(run_dir: Path, last: str) -> dict[str, dict[str, Any]]:
    """Returns the options of each stage that led to `last`, the first one first, as far as their files can be read."""
    chain: dict[str, dict[str, Any]] = {}
    while last and last not in chain:
        options = read_yaml(run_dir / "stages" / f"{last}.yaml")
        if not {"model", "stage", "trainer", "sampler", "algorithm", "data"} <= options.keys():
            break
        chain[last], last = options, options["stage"].get("parent", "")
    return dict(reversed(chain.items()))


def _training(stages: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    sizes = ("steps", "prompts x rollouts", "response tokens", "learning rate", "KL weight")
    rows: list[tuple[Any, ...]] = []
    shares: dict[str, list[str]] = {}
    for name, options in stages.items():
        trainer, sampler, algorithm = options["trainer"], options["sampler"], options["algorithm"]
        size = f"{trainer['prompts_per_step']} x {sampler['num_rollouts']}"
        how = f"advantage {algorithm['advantage']}, objective {algorithm['objective']}"
        limits = (trainer["num_steps"], size, sampler["max_response_tokens"], trainer["learning_rate"])
        rows.append((name, *limits, algorithm["kl_beta"], how))
        for file, share in options["data"]["train"].items():
            shares.setdefault("/".join(Path(file).parts[-2:]), []).append(f"{share:g} in {name}")
    if rows:
        yield from [*_section("Stages", ("stage", *sizes, "recipe"), rows), ""]
        files = ((file, ", ".join(of_stages)) for file, of_stages in shares.items())
        yield from [*_section("Data", ("file", "weight"), files), ""]


def _held_out(state: Mapping[str, Any], run_dir: Path) -> Iterator[str]:
    """Yields the last validation before the checkpoint: its metrics and, where each prompt's result is recorded, the
    interval of the mean reward."""
    if not state["validation"]:
        yield from ["No validation was made.", ""]
        return
    last = state["validation"][-1]
    rows = (
        (name, f"{value:,.0f}" if name.rpartition("/")[2].startswith("num_") else f"{value:.4f}")
        for name, value in last.items()
        if name != "step"
    )
    yield from _section(f"Held-out scores at step {last['step']}", ("metric", "value"), rows)
    try:
        rewards = list(read_rewards(run_dir, state["stage"], last["step"]).values())
    except ConfigError:
        rewards = []
    if rewards:
        mean = results.estimate(rewards)
        yield ""
        yield (
            f"Mean reward of {len(rewards):,} prompts: {mean.value:.4f}, 95 % interval {mean.low:.4f} to "
            f"{mean.high:.4f} (bootstrap over prompts)."
        )
    yield ""


def _evaluations(folders: Sequence[Path]) -> Iterator[str]:
    for folder in folders:
        header, found = results.read(folder)
        yield from tables.as_markdown(replace(tables.details(found), title=header["title"]))
        yield ""


def _section(title: str, columns: tuple[str, ...], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    cells = tuple(tuple(map(str, row)) for row in rows)
    return tables.as_markdown(tables.Table(title=title, columns=columns, rows=cells))
