"""Checks the engines on this machine's GPU or, without one, the parts of them that run on CPU. docs/gpu.md explains the
output.

    python -m benchmarks.gpu_check [--only kernel policy layouts speed sampling] [--out FILE.json]

Needs torch and megatron-core; installs nothing. Exit code 1 if a figure exceeds its limit or a part failed.
"""

from __future__ import annotations

from nemo_prorl.commands.ending import say
from nemo_prorl.commands.parsing import prepare_engines
from nemo_prorl.config import ConfigError, Device
from nemo_prorl.engines import environment

try:  # before torch and vLLM are imported
    environment.choose_device(Device.auto)
    prepare_engines()
except ConfigError as error:
    raise SystemExit(say(error, 2)) from None

import argparse
import datetime
import gc
import importlib
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.gpu_check import machine as machines
from benchmarks.gpu_check.rows import Row, line


@dataclass(frozen=True, kw_only=True)
class Part:
    """A module of this package with a function `run(machine, workdir)` that yields rows."""

    name: str
    shows: str
    """What it checks, for people."""
    needs: tuple[str, ...]
    """Arguments of `Machine.lacks`."""

    def run(self, machine: machines.Machine, workdir: Path) -> Iterator[Row]:
        """Yields the part's rows. Imports the module only now, since it may need packages that are not installed."""
        module = importlib.import_module(f"benchmarks.gpu_check.{self.name}")
        for row in module.run(machine, workdir):
            yield replace(row, part=self.name)


PARTS = (
    Part(
        name="kernel",
        shows="log-probability and entropy over 151,936 entries: plain and fused against float64, time, memory",
        needs=(),
    ),
    Part(
        name="policy",
        shows="one rank against float64: layers, padded and packed, fp32, bf16, FP8; offloading",
        needs=("megatron.core",),
    ),
    Part(
        name="layouts",
        shows="two ranks against float64: tensor, sequence, pipeline, data parallel",
        needs=("megatron.core",),
    ),
    Part(
        name="speed",
        shows="updates of 1.5B's shape: seconds, share of the peak, memory; refit",
        needs=("megatron.core",),
    ),
    Part(
        name="sampling",
        shows="vLLM's log-probabilities against the trainer's, before and after a refit",
        needs=("megatron.core", "vllm", "transformers"),
    ),
)


def main() -> int:
    """Runs the parts in turn. An error in one does not stop the others. Returns the exit code."""
    options = _parser().parse_args()
    machine = machines.look()
    print("\n".join(machine.lines()), flush=True)
    chosen = [part for part in PARTS if not options.only or part.name in options.only]
    reasons = {part.name: _reason(machine, part) for part in chosen}
    for part in chosen:
        state = f"not run: {reasons[part.name]}" if reasons[part.name] else part.shows
        print(f"{part.name:<10}{state}")
    for omission in _omissions(machine):
        print(f"          {omission}")
    print(flush=True)
    rows: list[Row] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as workdir:
        for part in chosen:
            if reasons[part.name]:
                continue
            try:
                for row in part.run(machine, Path(workdir)):
                    rows.append(row)
                    print(line(row), flush=True)
            except Exception as error:
                failures[part.name] = f"{type(error).__name__}: {error}"
                traceback.print_exc()
                print(f"{part.name:<9}FAILED with {type(error).__name__}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()  # the next part may be vLLM, which reads how much memory is free
    if options.out:
        _write(options.out, machine, reasons, rows, failures)
    beyond = [row for row in rows if row.passed is False]
    num_checks = sum(row.passed is not None for row in rows)
    print(f"\n{num_checks - len(beyond)} of {num_checks} checks passed, {len(failures)} part(s) failed")
    return 1 if beyond or failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all results to this file, as JSON")
    return parser


def _reason(machine: machines.Machine, part: Part) -> str:
    """Returns why a part cannot run here; empty if it can."""
    if part.name == "layouts" and machine.num_gpus == 1:
        return "two ranks on NCCL need two GPUs"
    return machine.lacks(*part.needs)


def _omissions(machine: machines.Machine) -> list[str]:
    """Returns what is left out of the parts that do run, and why."""
    lines = []
    if why := machine.lacks("gpu", "triton"):
        lines.append(f"without the fused kernels: {why}")
    if why := machine.lacks("gpu", "te"):
        lines.append(f"without Transformer Engine, packed sequences and FP8: {why}")
    elif machine.capability < (8, 9):
        lines.append("without FP8: needs compute capability 8.9, block scaling 9.0")
    if not machine.num_gpus:
        lines.append("with small shapes, and speeds that mean nothing: no CUDA device")
    elif machine.data_sheet is None:
        lines.append(
            "without shares of the peak: nemo_prorl/cluster/scale/known.py has no data sheet of this GPU"
        )
    return lines


def _write(
    path: Path, machine: machines.Machine, reasons: dict[str, str], rows: list[Row], failures: dict[str, str]
) -> None:
    content = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": asdict(machine),
        "not_run": {name: why for name, why in reasons.items() if why},
        "failures": failures,
        "rows": [asdict(row) | {"passed": row.passed} for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
