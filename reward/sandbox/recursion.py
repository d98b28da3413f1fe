"""Makes `sys.setrecursionlimit` limit all calls in Python 3.12, as in Python 3.11.

Since 3.12 it limits calls from Python to Python only. A call that passes through C, such as one of a function with
`functools.cache`, of a `key=` function, or of a generator in `sum`, counts against a second limit that was fixed when
the interpreter was built: 1,500 in Python 3.12.1, 10,000 in 3.12.10 (python/cpython#112215). A right program that
caches its recursion would be wrong. The number of such calls left is a field of the thread's state, which we set.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

_UNITS = 3
"""What CPython 3.12 counts for one such call: two for the evaluation of Python code and one for the call into C."""
_MOST = 10**9
"""Far from the end of the field's range, because calls that return add to the field."""


class _ThreadState(ctypes.Structure):
    """The first fields of PyThreadState in CPython 3.12, from its Include/cpython/pystate.h."""

    _fields_ = (
        ("links", ctypes.c_void_p * 3),
        ("status", ctypes.c_uint),
        ("python_remaining", ctypes.c_int),
        ("python_limit", ctypes.c_int),
        ("c_remaining", ctypes.c_int),
    )


def unite_limits() -> None:
    """Replaces `sys.setrecursionlimit` in this process, and makes new threads respect it; does nothing before Python
    3.12. Raises RuntimeError if this interpreter's thread state has another form."""
    if sys.version_info < (3, 12):
        return
    if sys.version_info >= (3, 13) or _state().python_limit != sys.getrecursionlimit():
        raise RuntimeError(
            f"the sandbox cannot set the recursion limit of Python {sys.version.split()[0]}: use CPython 3.11 or 3.12"
        )
    set_limit_of_python, start = sys.setrecursionlimit, threading._start_new_thread  # type: ignore[attr-defined]

    def setrecursionlimit(limit: int, /) -> None:
        set_limit_of_python(limit)
        _state().c_remaining = min(_UNITS * limit, _MOST)

    def start_new_thread(function: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        def run() -> None:
            setrecursionlimit(sys.getrecursionlimit())
            function(*arguments)

        return start(run, ())  # type: ignore[no-any-return]

    sys.setrecursionlimit = setrecursionlimit
    threading._start_new_thread = start_new_thread  # type: ignore[attr-defined]


def _state() -> _ThreadState:
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.POINTER(_ThreadState)
    return get().contents  # type: ignore[no-any-return]
