"""Messages between the service and its workers: four bytes of length, then JSON. Never pickle."""

from __future__ import annotations

import json
import math
import os
import struct
from typing import Any, NoReturn

LENGTH = struct.Struct("!I")
MAX_BYTES = 64 << 20
_ENCODER = json.JSONEncoder(allow_nan=False)


def body(message: Any) -> bytes:
    """Encodes a message without its length. Raises ValueError for NaN and infinity, and for nesting beyond the
    interpreter's recursion limit."""
    try:
        return _ENCODER.encode(message).encode()
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def framed(body: bytes) -> bytes:
    """Puts the length in front of an encoded body."""
    return LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray) -> Any:
    """Decodes a body. Keeps integers of up to 4,300 digits and lone surrogates as they are. Raises ValueError, also for
    NaN and infinity, which other JSON readers refuse, and for nesting beyond the interpreter's recursion limit."""
    try:
        return _DECODER.decode(body.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def write(fd: int, message: Any) -> None:
    """Writes a frame and blocks until all of it is written. Raises OSError."""
    data = memoryview(framed(body(message)))
    while data:
        data = data[os.write(fd, data) :]


def read(fd: int) -> Any | None:
    """Reads the next message; None at the end of the stream. Raises OSError."""
    head = _exactly(fd, LENGTH.size)
    return None if head is None else decode(_exactly(fd, LENGTH.unpack(head)[0]) or b"null")


def refuse_constant(constant: str) -> NoReturn:
    """Raises ValueError for NaN and infinity, which other JSON readers refuse."""
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else refuse_constant(text)


_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=_finite)
"""Shared, because json.loads with these options would build a decoder per message."""


def _exactly(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        chunk = os.read(fd, min(size - len(parts), 1 << 20))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)
