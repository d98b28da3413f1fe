"""Compiles kernels for Hopper, which needs no GPU, and prints what the compiler made of them as JSON.

    python -m tests.gpu.compiling kernels | product

kernels: log-probability and entropy (softmax_triton.py), as Triton's launcher specialises them for a vocabulary whose
columns are a multiple of 16, and for one where they are not. product: a matrix product in fp32 as vLLM's attention
writes it, for the PTX's use of TF32.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)


def kernels() -> Iterator[dict[str, Any]]:
    """Yields registers, spilled bytes and accesses to memory of each kernel and type of logits."""
    from nemo_prorl.engines.megatron import softmax_triton as ours

    cases: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
        (ours._statistics, {"result": "*fp32"}, {"BLOCK": ours.FORWARD_BLOCK})
    ]
    for with_entropy in (True, False):
        constants = {"BLOCK": ours.BACKWARD_BLOCK, "WITH_ENTROPY": with_entropy}
        cases.append((ours._gradient, {"result": "*bf16"}, constants))
    for kernel, pointers, constants in cases:
        for logits in ("fp32", "bf16"):
            for aligned in (True, False):
                pointers = pointers | {"columns": "*i64", "logits": f"*{logits}"}
                ptx = _compiled(kernel, pointers, constants, ours.NUM_WARPS, aligned)
                facts = {"kernel": kernel.__name__, "logits": logits, "aligned": aligned, **constants}
                yield facts | _resources(ptx)


def _compiled(
    kernel: Any, pointers: dict[str, str], constants: dict[str, Any], num_warps: int, aligned: bool
) -> str:
    names = kernel.arg_names
    numbers = {name: "i32" for name in names if name.startswith("num_") or name.endswith("_stride")}
    types = dict.fromkeys(names, "*fp32") | numbers | pointers
    types |= {"scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in names}
    # What the launcher finds for torch's tensors: addresses and numbers of columns are multiples of 16.
    of_sixteen = [
        name
        for name, kind in signature.items()
        if aligned and (kind.startswith("*") or (name in numbers and name != "num_rows"))
    ]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in of_sixteen},
    )
    asm = triton.compile(source, target=HOPPER, options={"num_warps": num_warps}).asm
    assert asm["cubin"]
    return str(asm["ptx"])


def _resources(ptx: str) -> dict[str, Any]:
    ptxas = Path(triton.backends.nvidia.__file__).parent / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx)
        command = [ptxas, "-arch=sm_90a", "-v", "-O3", file, "-o", file.with_suffix(".cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = re.search(r"Used (\d+) registers", said)
    assert spilled
    assert registers
    return {
        "registers": int(registers[1]),
        "spilled": int(spilled[1]) + int(spilled[2]),
        "wide loads": len(re.findall(r"ld\.global[.\w]*\.v4\.b32", ptx)),
        "wide stores": len(re.findall(r"st\.global[.\w]*\.v4\.b32", ptx)),
    }


@triton.jit
def _product(a, b, c):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 64)
    x = tl.load(a + i[:, None] * 64 + i[None, :])
    y = tl.load(b + i[:, None] * 64 + i[None, :])
    tl.store(c + i[:, None] * 64 + i[None, :], tl.dot(x, y))


def product() -> Iterator[dict[str, Any]]:
    """Yields the instructions of a product of fp32 numbers."""
    source = ASTSource(_product, dict.fromkeys("abc", "*fp32"))
    ptx = triton.compile(source, target=HOPPER).asm["ptx"]
    yield {
        "tf32": len(re.findall(r"(?:wgmma|mma)\S*tf32", ptx)),
        "fp32": len(re.findall(r"fma\.rn\.f32", ptx)),
    }


if __name__ == "__main__":
    print(json.dumps(list(globals()[sys.argv[1]]())))
