"""A fingerprint of a tensor's content that does not depend on how the tensor is split, joined or padded with zeros.

Trainer and sampler hold the same weights in different pieces: query, key and value as one tensor or as three, whole or
in tensor-parallel shards. Because fingerprints of parts add up, each side can report what it holds without moving a
tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

MODULUS = 2**64
_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 22}
"""Elements that are converted to 64 bits at a time, by device: 8 MiB on a CPU, whose allocator keeps pieces below 32
MiB for the next chunk, which is several times as fast as new memory; fewer kernels on a GPU."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: torch.Tensor) -> int:
    """Returns the sum of the bits of all elements, each read as a signed integer, modulo 2^64.

    Exact: the order of summation, the device and the layout do not matter. A change of one bit changes it, and so does
    any change of several that does not cancel by chance. It cannot see elements that change places within one tensor.
    Zeros add nothing. Tensors of different precision are compared after a cast to the same one.
    """
    return int(bit_sum(tensor)) % MODULUS


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the fingerprint as a scalar on the tensor's device, int64 and not yet modulo 2^64, for which the host has
    not waited. `read` makes numbers of many."""
    bits = tensor.detach().view(_INTEGERS[tensor.element_size()]).flatten()
    sums = [chunk.sum(dtype=torch.int64) for chunk in bits.split(_CHUNK[bits.device.type])]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def read(*sums: Mapping[str, torch.Tensor]) -> list[dict[str, int]]:
    """Returns name -> fingerprint for each mapping from name to `bit_sum`, in one wait for the first sum's device."""
    flat = [one for part in sums for one in part.values()]
    values = iter(torch.stack([one.to(flat[0].device) for one in flat]).tolist() if flat else [])
    return [{name: next(values) % MODULUS for name in part} for part in sums]


def joined(fingerprints: Iterable[int]) -> int:
    """Returns the fingerprint of the tensor that consists of all these parts."""
    return sum(fingerprints) % MODULUS
