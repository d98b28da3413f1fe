"""Runs a command as on another kernel: `python other_kernel.py KIND COMMAND...`. A seccomp filter answers some calls.

linux-4.18: none of the system calls that have come since then, Landlock among them (RHEL 8 and its clones).
no-remount: a mount that is to get other flags, such as read-only, keeps those that it has.
enroot: changes of user and group ids succeed and change nothing, as in enroot's containers with ENROOT_REMAP_ROOT.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reward.sandbox import kernel

_FIRST_AFTER_4_18 = 400
_CHANGES_OF_IDS = {"x86_64": (116, 117, 119), "aarch64": (159, 147, 149)}[kernel.MACHINE]
"""setgroups, setresuid, setresgid."""
_MOUNT = {"x86_64": 165, "aarch64": 40}[kernel.MACHINE]
_MS_REMOUNT = 32
_LOAD_NUMBER, _ALLOW, _ANSWER = (0x20, 0, 0, 0), (0x06, 0, 0, 0x7FFF0000), 0x00050000
_LOAD_MOUNT_FLAGS = (0x20, 0, 0, 16 + 3 * 8)
"""The low half of the fourth argument."""
_EQUAL, _AT_LEAST, _HAS_BIT = 0x15, 0x35, 0x45


def instructions(kind: str) -> list[tuple[int, int, int, int]]:
    if kind == "linux-4.18":
        missing = (0x06, 0, 0, _ANSWER | errno.ENOSYS)
        return [_LOAD_NUMBER, (_AT_LEAST, 0, 1, _FIRST_AFTER_4_18), missing, _ALLOW]
    if kind == "no-remount":
        is_mount, is_remount = (_EQUAL, 0, 2, _MOUNT), (_HAS_BIT, 1, 0, _MS_REMOUNT)
        return [_LOAD_NUMBER, is_mount, _LOAD_MOUNT_FLAGS, is_remount, _ALLOW, (0x06, 0, 0, _ANSWER)]
    tests = [(_EQUAL, len(_CHANGES_OF_IDS) - n, 0, number) for n, number in enumerate(_CHANGES_OF_IDS)]
    return [_LOAD_NUMBER, *tests, _ALLOW, (0x06, 0, 0, _ANSWER)]


def main(kind: str, *command: str) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions(kind))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    if os.geteuid() != 0:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(ctypes.addressof(program))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
