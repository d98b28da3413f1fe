"""Checks two ranks, on NCCL or gloo, against float64: tensor, sequence, pipeline and data parallel, with Megatron's own
layers in fp32 and, where they can run, Transformer Engine's on packed rows in bf16 and FP8.

The part starts `python -m torch.distributed.run --standalone --nproc-per-node 2 -m benchmarks.gpu_check.layouts
FOLDER`, of which rank 0 writes FOLDER/layouts.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import machine as machines
from benchmarks.gpu_check.batches import token_batch, train_batch
from benchmarks.gpu_check.machine import Machine
from benchmarks.gpu_check.policies import TINY, Measured, build, exact, folder_of, measure
from benchmarks.gpu_check.policy import BF16, TEMPERATURE, VARIANTS, Variant, compare, configured, left_out
from benchmarks.gpu_check.rows import Row
from nemo_prorl import distributed

LAYOUTS: dict[str, dict[str, Any]] = {
    "TP2": {"tensor_parallel": 2},
    "TP2, sequence parallel": {"tensor_parallel": 2, "sequence_parallel": True},
    "PP2": {"pipeline_parallel": 2},
    # With a sharded optimizer each rank has only a part of the summed gradients.
    "DP2": {"distributed_optimizer": False},
}
CHOSEN = [
    variant
    for variant in VARIANTS
    if variant.name == "local fp32" or (variant.packed and variant.name.startswith("TE"))
]


def run(machine: Machine, workdir: Path) -> Iterator[Row]:
    """Yields the rows of the part."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "benchmarks.gpu_check.layouts", str(workdir)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"The ranks failed:\n{done.stderr[-4000:]}")
    limits = {variant.name: variant.limits or BF16 for variant in CHOSEN}
    for name, (logprob, _, gradient) in json.loads((workdir / "layouts.json").read_text()).items():
        variant = name.partition(": ")[0]
        of_logprob, of_gradient = limits[variant]
        means = f"{variant} is right on one GPU if `policy` passes; then this layout's communication is wrong"
        what = f"{name}: log-probability, mean"
        yield Row(what=what, value=logprob, unit="nats", limit=of_logprob, means=means)
        what = f"{name}: gradients, relative"
        yield Row(what=what, value=gradient, unit="", limit=of_gradient, means=means)


def measure_all(workdir: Path, variants: Sequence[Variant]) -> dict[str, list[float]]:
    """Returns the largest of the ranks' errors (see `policy.compare`) of each variant in each layout, by "VARIANT:
    LAYOUT". Runs on each of the two ranks."""
    folder = folder_of(TINY, workdir / "layouts")
    whole = train_batch(token_batch(num_rows=8, longest=96))
    expected: Measured | None = None
    errors = {}
    for name, options in LAYOUTS.items():
        for variant in variants:
            config = configured(folder, variant)
            for option, value in options.items():
                setattr(config.trainer, option, value)
            trainer = config.trainer
            ranks = distributed.initialise(trainer.tensor_parallel, trainer.pipeline_parallel)
            policy = build(config, ranks)
            named = dict(policy.named_weights())
            if expected is None:
                expected = exact(named, TINY, whole, TEMPERATURE)
            mine = list(range(ranks.layout.replica, len(whole), ranks.layout.data_parallel))
            part = whole.select(mine)
            got = measure(policy, part)
            width = got.logprobs_BT.shape[1]
            expected_of_part = Measured(
                logprobs_BT=expected.logprobs_BT[mine, :width],
                entropy_BT=expected.entropy_BT[mine, :width],
                gradients=expected.gradients,
            )
            all_errors = ranks.gather(compare(got, expected_of_part, part))
            errors[f"{variant.name}: {name}"] = [max(values) for values in zip(*all_errors, strict=True)]
    return errors


def main(workdir: Path) -> None:
    """Measures what can run here, and writes the errors."""
    here, folder = machines.look(), folder_of(TINY, workdir / "layouts")
    possible = [variant for variant in CHOSEN if not left_out(here, variant, configured(folder, variant))]
    errors = measure_all(workdir, possible)
    if distributed.initialise(1, 1).layout.is_main:
        (workdir / "layouts.json").write_text(json.dumps(errors), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
