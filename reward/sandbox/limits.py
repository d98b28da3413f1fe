"""Limits of a program that the sandbox runs."""

from __future__ import annotations

from dataclasses import dataclass

CPU_S = 5.0
"""CPU seconds for all inputs of a program together, as in the papers' training (ProRL, appendix D)."""
MAX_CPU_S = 30.0
"""The most that a task may ask for: it keeps a worker busy and the caller waiting."""
OUTPUT_BYTES, OUTPUT_BYTES_IN_ALL = 1 << 20, 64 << 20
"""Bytes that a program may write beyond what is expected of it: for one input, and for all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """CPU seconds that a program may take. Example: ProgramLimits(cpu_s=30.0, test_cpu_s=6.0)"""

    cpu_s: float = CPU_S
    """CPU seconds for all inputs together."""
    test_cpu_s: float = MAX_CPU_S
    """CPU seconds for each input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimits:
    """Bytes that a program may write."""

    each: tuple[int, ...]
    """The bytes for each input."""
    in_all: int = OUTPUT_BYTES_IN_ALL
    """The bytes for all inputs together."""
