"""Landlock: restricts this process to opening only the named files (kernel 5.13 or later)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from reward.sandbox import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV


def abi() -> int:
    """Returns the kernel's Landlock version; 0 if it has none or it is switched off."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def rules(read: Iterable[str], write: Iterable[str] = (), devices: Iterable[str] = ()) -> int:
    """Builds a rule set and returns its file descriptor. Raises OSError.

    Files below `read` can be read and executed; below `write` everything is allowed but devices, sockets and execution;
    `devices` can be read and written. Network and signals to others are closed where the kernel's version allows it.
    Missing paths are skipped."""
    version = abi()
    rights = (1 << 13) - 1
    rights |= (1 << 13 if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rights |= _IOCTL_DEV if version >= 5 else 0
    network = 3 if version >= 4 else 0  # TCP bind and connect
    scoped = 3 if version >= 6 else 0  # abstract unix sockets and signals
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", rights, network, scoped)[:size]
    ruleset = kernel.syscall("landlock_create_ruleset", attributes, size, 0)
    for path in read:
        _allow(ruleset, path, (EXECUTE | READ_FILE | READ_DIR) & rights)
    for path in write:
        _allow(ruleset, path, rights & ~(_MAKE_CHAR | _MAKE_SOCK | _MAKE_BLOCK | EXECUTE))
    for path in devices:
        _allow(ruleset, path, READ_FILE | WRITE_FILE)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        kernel.syscall("landlock_add_rule", ruleset, 1, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def restrict(ruleset: int) -> None:
    """Applies the rule set, irrevocably, and closes it. The process must have set PR_SET_NO_NEW_PRIVS before. Raises
    OSError."""
    kernel.syscall("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)
