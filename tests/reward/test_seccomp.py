"""Tests of the system-call filters with an interpreter of our own: what the kernel would do on each call."""

import pytest

from reward.sandbox import seccomp
from reward.sandbox.kernel import NUMBERS, Unsupported

ALLOW, KILL = 0x7FFF0000, 0x80000000


def run_filter(
    kind: str, machine: str, number: int, arguments: tuple[int, ...] = (0, 0), arch: int | None = None
) -> int:
    """Interprets the filters that a process of this kind has, independently of the kernel, and returns what the kernel
    would. It runs all of them, and the strictest wins (seccomp(2): the lowest value, as a signed number)."""
    kinds = ("runner",) if kind == "runner" else ("runner", "submission")
    return min((run_one(each, machine, number, arguments, arch) for each in kinds), key=signed)


def signed(action: int) -> int:
    return action - (1 << 32) if action >> 31 else action


def run_one(kind: str, machine: str, number: int, arguments: tuple[int, ...], arch: int | None) -> int:
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine] if arch is None else arch
    data = {0: number, 4: arch, 16: arguments[0], 24: arguments[1]}
    code, position, accumulator = seccomp.program(kind, machine), 0, 0
    while True:
        opcode, jump_true, jump_false, constant = code[position]
        constant &= 0xFFFFFFFF
        position += 1
        if opcode == 0x20:
            accumulator = data[constant]
        elif opcode == 0x06:
            return constant
        else:
            test = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }[opcode]
            position += jump_true if test else jump_false


@pytest.mark.medium
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("kind", ["runner", "submission"])
def test_the_filter_admits_what_is_listed_and_nothing_else(machine: str, kind: str) -> None:
    column = ("x86_64", "aarch64").index(machine)
    listed = {numbers[column]: name for name, numbers in NUMBERS.items() if numbers[column] is not None}
    admitted = {number for number in range(600) if run_filter(kind, machine, number) == ALLOW}
    assert admitted <= listed.keys()
    names = {listed[number] for number in admitted}
    assert {"read", "write", "mmap", "exit_group", "futex"} <= names
    assert (
        not {"execve", "mount", "unshare", "pivot_root", "capset", "umount2", "landlock_restrict_self"}
        & names
    )
    assert ("fork" in names or "clone" in names) == (kind == "runner")
    assert run_filter(kind, machine, 0, arch=0x40000003) == KILL  # 32-bit calls
    if machine == "x86_64":
        assert run_filter(kind, machine, 0x40000000) == KILL


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_looks_at_arguments(machine: str) -> None:
    def allowed(kind: str, name: str, *arguments: int) -> bool:
        number = NUMBERS[name][("x86_64", "aarch64").index(machine)]
        assert number is not None
        return run_filter(kind, machine, number, (*arguments, 0, 0)[:2]) == ALLOW

    assert allowed("submission", "clone", 0x3D0F00)  # a thread, as pthread_create asks for
    assert not allowed("submission", "clone", 0x11)
    assert allowed("runner", "clone", 0x01200011)
    assert not allowed("runner", "clone", 0x10000000 | 0x11)  # a user namespace
    assert not allowed("submission", "kill", 1)
    assert not allowed("submission", "ioctl", 0, 0x5412)  # typing into a terminal
    assert allowed("submission", "ioctl", 0, 0x5401)
    assert not allowed("submission", "ioctl", 0, 0x40086602)  # flags of a file
    assert allowed("submission", "fcntl", 0, 4)
    assert not allowed("submission", "fcntl", 0, 8)  # whom a descriptor signals
    assert allowed("submission", "prctl", 15)
    assert not allowed("submission", "prctl", 4)
    assert not allowed("submission", "prctl", 22)
    assert not allowed("submission", "prlimit64", 1)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(Unsupported, match="riscv64"):
        seccomp.program("submission", "riscv64")
