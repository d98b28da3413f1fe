"""Runs one reward function for the trainer, in a process of its own. It uses the standard library only and imports
nothing of ours, because the interpreter may be another one (reward.function_python).

    python child.py DESCRIPTOR FILE NAME START_LIMIT_S [DIGEST]

The descriptor is one end of a connection of multiprocessing. DIGEST is the SHA-256 that the file must have. Messages
are pickled dictionaries; what a function returns leaves as numbers and texts, so that the trainer loads no class of it.

    out, first   {"names", "required", "takes_any"}, see `describe`; or {"error": sentence}, and it ends
    in           {"arguments": {name: list}, "count": responses, "limit_s": seconds}
    out          {"values": [...]}, for each response a number, or a text that says why there is none;
                 or {"raised": what the function raised, and where, "is_network": whether a network failed it};
                 or {"broken": what is wrong with its result}

The function's output, and the traceback of what it raises, go to standard output and standard error. A call that takes
too long ends the process, with the stack of every thread on standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import hashlib
import importlib.util
import inspect
import math
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Unusable(Exception):
    """The function cannot be called at all; the message is one sentence."""


def main(fd: str, file: str, name: str, start_limit_s: str, digest: str = "") -> None:
    """Imports the function, reports it, and answers calls until the connection closes."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning that a job's time is nearly over
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel should kill this process, not the trainer.
        Path("/proc/self/oom_score_adj").write_text("1000")
    channel, path = Connection(int(fd)), Path(file).absolute()
    faulthandler.dump_traceback_later(float(start_limit_s), exit=True, file=2)
    try:
        function = load(path, name, digest)
        description = describe(function)
    except Unusable as error:
        channel.send({"error": str(error)})
        return
    finally:
        faulthandler.cancel_dump_traceback_later()
    loop = asyncio.new_event_loop()
    with contextlib.suppress(EOFError, OSError):  # the trainer has closed the connection, or is gone
        channel.send(description)
        while True:
            body = channel.recv_bytes()
            try:
                request = pickle.loads(body)
            except Exception as error:
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                if isinstance(error, ModuleNotFoundError):  # a column has values such as pandas.Timestamp
                    why = f"its interpreter {sys.executable} lacks the package {error.name}"
                channel.send({"broken": f"cannot be given the columns of its rows: {why}"})
                continue
            faulthandler.dump_traceback_later(request["limit_s"], exit=True, file=2)
            answer = call(function, request["arguments"], request["count"], loop, path)
            faulthandler.cancel_dump_traceback_later()
            channel.send(answer)


def load(path: Path, name: str, digest: str = "") -> Callable[..., Any]:
    """Loads the function `name` from a file, with the file's folder first on sys.path, as if Python ran it.

    Raises Unusable, also if the file's SHA-256 is not `digest`. Runs exactly what was hashed, never a compiled copy of
    the file, which may be of an earlier version."""
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise Unusable("there is no such file") from None
    except OSError as error:
        raise Unusable(f"the file cannot be read: {error.strerror}") from None
    if digest and hashlib.sha256(source).hexdigest() != digest:
        raise Unusable(
            "the file has changed since the run began, and one run must have one reward: start the run again"
        )
    sys.path[0] = str(path.parent)
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # holds for every name that ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        exec(compile(source, path, "exec"), vars(module))
    except BaseException as error:
        _print_traceback(error)
        raise Unusable(f"the file cannot be imported: {_in_words(error, path)}") from None
    function = getattr(module, name, None)
    if function is None:
        there = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == path.stem
        ]
        others = f"; its functions are {', '.join(there)}" if there else ", nor any other function"
        raise Unusable(f"the file has no {name}{others}")
    if inspect.isclass(function):
        raise Unusable(f"{name} is a class; name a function or an instance")
    if not callable(function):
        raise Unusable(f"{name} is of type {type(function).__name__}, and not a function")
    return function


def describe(function: Callable[..., Any]) -> dict[str, Any]:
    """Describes the parameters. names: all of them. required: those without a default. takes_any: whether it has
    **kwargs. Raises Unusable."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise Unusable("the function's parameters cannot be read") from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if blocked := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]:
        raise Unusable(
            f"its parameter {blocked[0]} is positional-only, and functions are called with keywords"
        )
    return {
        "names": [p.name for p in named],
        "required": [p.name for p in named if p.default is p.empty],
        "takes_any": any(p.kind is p.VAR_KEYWORD for p in parameters),
    }


def call(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    count: int,
    loop: asyncio.AbstractEventLoop,
    file: Path,
) -> dict[str, Any]:
    """Calls the function once and returns the answer for the trainer."""
    try:
        results = function(**arguments)
        if inspect.isawaitable(results):
            results = loop.run_until_complete(results)
        if hasattr(results, "tolist"):  # a NumPy array or a torch tensor
            results = results.tolist()
    except BaseException as error:
        _print_traceback(error, f"a call with {count} response(s) failed")
        return {"raised": _in_words(error, file), "is_network": _is_of_network(error)}
    if not isinstance(results, (list, tuple)):
        return {"broken": f"returned a value of type {type(results).__name__}, not a list of numbers"}
    if len(results) != count:
        return {"broken": f"returned {len(results)} numbers for {count} responses"}
    return {"values": [_value(result) for result in results]}


def _value(result: Any) -> float | str:
    """Returns the result for one response as a finite number, or a text that says why it is none."""
    if hasattr(result, "item") and callable(result.item):  # a NumPy or torch scalar
        result = result.item()
    if result is None:
        return "returned None for a response"
    if not isinstance(result, (bool, int, float)):
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


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # threads that the function has started must not keep the process alive
