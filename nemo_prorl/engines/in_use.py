"""Reports what a run computes with, as its engines say once they are built; nothing is guessed from options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nemo_prorl.engines import device
from nemo_prorl.engines.interface import Policy, Sampler
from nemo_prorl.storage import ENGINES_FILE, replace_text


def note_engines(policy: Policy, sampler: Sampler, run_dir: Path, say: Callable[[str], None]) -> None:
    """Says in one line what this rank computes with, and writes it to RUN/engines.json."""
    facts = {**device.in_use(), **policy.in_use(), **sampler.in_use()}
    say("in use: " + "; ".join(f"{name}: {value}" for name, value in facts.items()))
    replace_text(run_dir / ENGINES_FILE, json.dumps(facts, indent=1) + "\n")
