"""The system-call filter, a list of BPF instructions. Calls that are not allowed fail with EPERM.

There are two filters. `runner` is for our own process in a sandbox, which forks one process per test, and allows a list
of calls. `submission` is added on top in a process that runs or parses untrusted text, and forbids more: new processes
(threads are allowed), and signals to others. Neither allows starting another program, opening a socket, or changing a
file by its name (chmod, utime, truncate): Landlock does not cover the first two of these changes, and the third only
since Linux 6.2. Filters add up, are inherited, and cannot be removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from functools import lru_cache

from reward.sandbox import kernel

_HARMLESS = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
rt_sigreturn pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise dup dup2 pause
nanosleep getitimer alarm setitimer getpid exit wait4 waitid uname fcntl flock fsync fdatasync ftruncate
getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink umask gettimeofday getrlimit
getrusage sysinfo times getuid getgid geteuid getegid getppid getpgrp getgroups getresuid getresgid getpgid getsid
rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack arch_prctl setrlimit gettid time futex sched_getaffinity
sched_getparam sched_getscheduler getdents64 set_tid_address restart_syscall fadvise64 clock_gettime clock_getres
clock_nanosleep exit_group epoll_wait epoll_ctl openat mkdirat newfstatat unlinkat renameat linkat symlinkat readlinkat
faccessat pselect6 ppoll set_robust_list get_robust_list epoll_pwait eventfd fallocate
eventfd2 epoll_create1 dup3 pipe2 sched_getattr renameat2 getrandom membarrier copy_file_range sendfile statfs fstatfs
statx rseq close_range openat2 faccessat2"""
_RUNNER_TOO = "fork kill tgkill seccomp prctl prlimit64 ioctl memfd_create"

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data; low words, little endian
_CLONE_THREAD = 0x00010000
_CLONE_NEW_ANY = 0x7E020080  # every CLONE_NEW* flag that creates a namespace
_FILE_CONTROLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1031, 1032)
"""F_DUPFD to F_SETLKW, F_DUPFD_CLOEXEC, pipe sizes. Not F_SETOWN and F_SETSIG: they send signals to others."""
_DEVICE_CONTROLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""The ioctls of `isatty`, a terminal's size, FIONREAD, FIONBIO and close-on-exec."""
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_OWN_PID = -1
"""Placeholder for the pid of the process that installs the filter."""

Instruction = tuple[int, int, int, int]
_ALLOW_IT: Instruction = (_RETURN, 0, 0, _ALLOW)
_DENY: Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def program(kind: str, machine: str = kernel.MACHINE) -> list[Instruction]:
    """Returns the filter `runner` or `submission` as (code, jump if true, jump if false, constant).

    A submission has both, and the stricter one wins. So `submission` only names what it changes: it is installed for
    each test, and its length costs time. A constant of -1 is to be replaced by the installing process's pid. Raises
    Unsupported on an unknown machine.
    """
    actions = _actions(kind, machine)
    starts: list[tuple[int, list[Instruction]]] = []  # ranges with one action, by their first number
    for number in range(max(actions) + 2):
        action = actions.get(number, [_DENY] if kind == "runner" else [_ALLOW_IT])
        if not starts or starts[-1][1] != action:
            starts.append((number, action))
    head: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NR),
    ]
    if machine == "x86_64":  # the x32 interface has numbers of its own
        head += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL_PROCESS)]
    return head + _search(starts)


def _search(starts: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Builds a binary search: the kernel walks a filter once per system-call number on installation, so length costs
    time."""
    if len(starts) == 1:
        return starts[0][1]
    middle = len(starts) // 2
    below, above = _search(starts[:middle]), _search(starts[middle:])
    if len(below) > 255:  # a jump reaches 255 instructions
        raise AssertionError("the filter has grown beyond a single jump")
    return [(_AT_LEAST, len(below), 0, starts[middle][0]), *below, *above]


def _actions(kind: str, machine: str) -> dict[int, list[Instruction]]:
    """Returns the action for each number. Missing numbers are denied by `runner` and left alone by `submission`."""
    argument = {0: (_LOAD, 0, 0, _ARG0), 1: (_LOAD, 0, 0, _ARG1)}
    bodies: dict[str, list[Instruction]]
    if kind == "runner":
        bodies = {name: [_ALLOW_IT] for name in (*_HARMLESS.split(), *_RUNNER_TOO.split())}
        # clone3 hides its flags behind a pointer; libc falls back to clone when it is missing
        bodies["clone3"] = [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
        bodies["clone"] = [argument[0], (_ANY_BIT, 0, 1, _CLONE_NEW_ANY), _DENY, _ALLOW_IT]
    else:
        bodies = {name: [_DENY] for name in _RUNNER_TOO.split()}
        own_pid = _one_of(argument[0], (_OWN_PID,))
        bodies["clone"] = [argument[0], (_ANY_BIT, 1, 0, _CLONE_THREAD), _DENY, _ALLOW_IT]
        bodies |= {"kill": own_pid, "tgkill": own_pid}
        bodies["fcntl"] = _one_of(argument[1], _FILE_CONTROLS)
        bodies["ioctl"] = _one_of(argument[1], _DEVICE_CONTROLS)
        bodies["prlimit64"] = _one_of(argument[0], (0,))
        bodies["prctl"] = _one_of(argument[0], (_PR_SET_NAME, _PR_GET_NAME))
    numbers = {name: kernel.number(name, machine) for name in bodies}
    return {number: bodies[name] for name, number in numbers.items() if number is not None}


def _one_of(load: Instruction, values: tuple[int, ...]) -> list[Instruction]:
    """Allows the call if the argument is one of the values."""
    jumps = range(len(values), 0, -1)
    return [
        load,
        *((_EQUAL, jump, 0, value) for jump, value in zip(jumps, values, strict=True)),
        _DENY,
        _ALLOW_IT,
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class _Assembled:
    """A filter in the kernel's form, and where the installing process's pid belongs in it."""

    code: ctypes.Array[ctypes.c_uint32]
    descriptor: _Program
    address: int
    pid_slots: tuple[int, ...]


@lru_cache(maxsize=2)
def _assemble(kind: str) -> _Assembled:
    instructions = program(kind)
    packed = b"".join(struct.pack("=HBBI", *i[:3], i[3] & 0xFFFFFFFF) for i in instructions)
    code = (ctypes.c_uint32 * (2 * len(instructions))).from_buffer_copy(packed)
    slots = (2 * index + 1 for index, instruction in enumerate(instructions) if instruction[3] == _OWN_PID)
    descriptor = _Program(len(instructions), ctypes.addressof(code))
    return _Assembled(code, descriptor, ctypes.addressof(descriptor), tuple(slots))


def install(kind: str) -> None:
    """Installs the filter on this process, irrevocably; `runner` first, after landlock.restrict. Raises OSError."""
    assembled, pid = _assemble(kind), os.getpid()
    for slot in assembled.pid_slots:
        assembled.code[slot] = pid
    kernel.install_filter(assembled.address)


def prepare() -> None:
    """Assembles both filters before forking: assembling costs more than the fork."""
    _assemble("runner")
    _assemble("submission")
