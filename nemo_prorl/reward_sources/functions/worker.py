"""What runs in the process of a reward function: loads the user's file, describes the function, and calls it.

The process is process.py's. What a function returns leaves it as numbers and texts, and what it raises as one of the
two errors below, so that the trainer loads no class of the user's. The function's output, and the traceback of what it
raises, go to its log. A call that takes too long ends the process, with the stack of every thread in the log.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import importlib.util
import inspect
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_here = SimpleNamespace()
"""The function of this process, its file, and the event loop of its coroutines."""


class FunctionUnusable(RuntimeError):
    """The function cannot be called at all; the message is why, for the end of "FUNCTION cannot be used: ..."."""


class CallFailed(RuntimeError):
    """A call has no result; the message ends a sentence whose subject is the function. again: whether a call with fewer
    responses might succeed. is_network: whether a server that the function asks did not answer."""

    def __init__(self, sentence: str, again: bool = True, is_network: bool = False) -> None:
        super().__init__(sentence, again, is_network)  # all of them, for pickle
        self.again, self.is_network = again, is_network

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The function's parameters."""

    names: list[str]
    required: list[str]
    """Those without a default."""
    takes_any: bool
    """Whether it has **kwargs."""

    def wants(self, name: str) -> bool:
        return self.takes_any or name in self.names


def begin(log: str, hidden: Sequence[str]) -> None:
    """Prepares the process. log: where output goes; empty: the trainer's standard error. hidden: names of environment
    variables that the function must not see."""
    os.setsid()  # signals to the trainer's group do not reach it
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning that a job's time is nearly over
    with suppress(OSError):
        # When memory runs out, the kernel should kill this process, not the trainer.
        Path("/proc/self/oom_score_adj").write_text("1000")
    for name in hidden:
        os.environ.pop(name, None)
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), 2)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    threading.Thread(target=_end_with_trainer, daemon=True).start()


def _end_with_trainer() -> None:
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    trainer.join()
    os._exit(0)


def load(file: Path, name: str, digest: str, limit_s: float) -> Description:
    """Loads the function `name` from a file, with the file's folder first on sys.path, as if Python ran it.

    Raises FunctionUnusable, also if the file's SHA-256 is not `digest` (empty: any). Runs exactly what was hashed,
    never a compiled copy of the file, which may be of an earlier version."""
    try:
        source = file.read_bytes()
    except FileNotFoundError:
        raise FunctionUnusable("there is no such file") from None
    except OSError as error:
        raise FunctionUnusable(f"the file cannot be read: {error.strerror}") from None
    if digest and hashlib.sha256(source).hexdigest() != digest:
        raise FunctionUnusable(
            "the file has changed since the run began, and one run must have one reward: start the run again"
        )
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None  # holds for every name that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        with _limit(limit_s):
            exec(compile(source, file, "exec"), vars(module))
    except BaseException as error:
        _print_traceback(error)
        raise FunctionUnusable(f"the file cannot be imported: {_in_words(error, file)}") from None
    function = getattr(module, name, None)
    if function is None:
        there = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == file.stem
        ]
        raise FunctionUnusable(f"the file has no {name}; its functions are {', '.join(there) or 'none'}")
    if inspect.isclass(function) or not callable(function):
        raise FunctionUnusable(f"{name} is of type {type(function).__name__}, and not a function")
    _here.function, _here.file, _here.loop = function, file, asyncio.new_event_loop()
    return describe(function)


def describe(function: Callable[..., Any]) -> Description:
    """Returns the function's parameters, as far as keywords can be given for them. Raises FunctionUnusable if they are
    unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise FunctionUnusable("the function's parameters cannot be read") from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Description(
        names=[p.name for p in named],
        required=[p.name for p in named if p.default is p.empty],
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def call(pickled: bytes, count: int, limit_s: float) -> list[float | str]:
    """Calls the function with its pickled arguments. Returns for each of `count` responses its value, or a text that
    says why it has none. Raises CallFailed."""
    try:
        with _limit(limit_s):
            results = _here.function(**pickle.loads(pickled))
            if inspect.isawaitable(results):
                results = _here.loop.run_until_complete(results)
            if hasattr(results, "tolist"):  # a NumPy array or a torch tensor
                results = results.tolist()
            if not isinstance(results, list | tuple):
                what = f"a value of type {type(results).__name__}, not a list of numbers"
                raise CallFailed(f"returned {what}", again=False)
            if len(results) != count:
                raise CallFailed(f"returned {len(results)} numbers for {count} responses", again=False)
            return [_value(result) for result in results]
    except CallFailed:
        raise
    except BaseException as error:
        _print_traceback(error, f"a call with {count} response(s) failed")
        sentence = f"raised {_in_words(error, _here.file)}"
        raise CallFailed(sentence, is_network=_is_of_network(error)) from None


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Ends the process if what it guards takes longer, even code in C that never returns."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _value(result: Any) -> float | str:
    """Returns the result for one response as a finite number, or a text that says why it is none."""
    if hasattr(result, "item"):
        with suppress(Exception):  # a vector of NumPy or torch has the method too, and no number
            result = result.item()
    if result is None:
        return "returned None for a response"
    if not isinstance(result, bool | int | float):
        return f"returned a value of type {type(result).__name__} for a response, not a number"
    try:
        number = float(result)
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else f"returned {number} for a response, not a finite number"


def _in_words(error: BaseException, file: Path) -> str:
    """Describes the exception, with the last line of the user's file in its traceback."""
    text = " ".join(str(error).split())[:300]
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    where = f" ({file.name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def _is_of_network(error: BaseException | None) -> bool:
    """Returns whether the system raised the error, or caused it, for something other than a file, such as a server that
    does not answer."""
    if isinstance(error, OSError) and error.filename is None:
        return True
    return error is not None and _is_of_network(error.__cause__)


def _print_traceback(error: BaseException, title: str = "") -> None:
    """Prints the traceback without our own frames and the importer's, which come before the user's code."""
    if title:
        print(f"--- {title}:", file=sys.stderr)
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename.startswith((__file__, "<frozen importlib")):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)
    sys.stderr.flush()
