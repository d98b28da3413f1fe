"""The C library and the kernel's constants, through ctypes, so that the sandbox needs no other package."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
_HOLDING_GIL = ctypes.PyDLL(None, use_errno=True)
_HOLDING_GIL.syscall.restype = ctypes.c_long
_HOLDING_GIL.syscall.argtypes = [ctypes.c_long] * 6
LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
LIBC.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]

MACHINE = platform.machine()
_COLUMN = {"x86_64": 0, "aarch64": 1}

_SIGCHLD = int(signal.SIGCHLD)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP = 1, 4, 8, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38


class Unsupported(RuntimeError):
    """This machine cannot provide what the sandbox needs; the message is one sentence."""


def number(name: str, machine: str = MACHINE) -> int | None:
    """Returns the number of a system call; None if the machine lacks it. Raises Unsupported on an unknown machine."""
    if machine not in _COLUMN:
        raise Unsupported(
            f"the sandbox has no system-call table for {machine}, only for {' and '.join(_COLUMN)}"
        )
    return NUMBERS[name][_COLUMN[machine]]


def check(result: int, what: str) -> int:
    """Returns a result unchanged; raises OSError with errno if it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *arguments: object) -> int:
    """Makes a raw system call. Integers are passed as 64 bit. Raises OSError."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return check(LIBC.syscall(ctypes.c_long(number(name) or 0), *values), name)


def fork_into(namespaces: int) -> int:
    """Forks a child into new namespaces, in one system call. Returns 0 in the child. The process must be
    single-threaded.

    Python's own fork hooks do not run, which is sound for a child that keeps only this thread.
    """
    return check(_HOLDING_GIL.syscall(_CLONE, namespaces | _SIGCHLD, 0, 0, 0, 0), "clone")


def install_filter(descriptor: int) -> None:
    """Installs the seccomp filter whose `struct sock_fprog` is at this address on this thread, irrevocably. The process
    must have set PR_SET_NO_NEW_PRIVS. Raises OSError."""
    check(_HOLDING_GIL.syscall(_SECCOMP, 1, 0, descriptor, 0, 0), "seccomp")


def prctl(option: int, value: int = 0, pointer: int = 0) -> None:
    """Calls prctl(2). Raises OSError."""
    check(LIBC.prctl(option, value, pointer, 0, 0), f"prctl {option}")


def unshare(flags: int) -> None:
    """Calls unshare(2). Raises OSError."""
    check(LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Calls mount(2). Raises OSError."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    check(LIBC.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


_TABLE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "system_calls.json")
with open(_TABLE, encoding="utf-8") as _file:
    NUMBERS: dict[str, list[int | None]] = json.load(_file)
"""System call numbers by name, for the two supported machines: x86_64 as in the kernel's
arch/x86/entry/syscalls/syscall_64.tbl, aarch64 as in include/uapi/asm-generic/unistd.h (None where that table lacks the
call and the C library uses a newer one). A test compares both with the headers."""
_CLONE, _SECCOMP = (NUMBERS[name][_COLUMN.get(MACHINE, 0)] or 0 for name in ("clone", "seccomp"))
