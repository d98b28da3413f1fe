"""Messages between the service and its workers: four bytes of length, then JSON. No pickle anywhere."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LENGTH = struct.Struct("!I")
MAX_BYTES = 64 << 20


def encode(message: Any) -> bytes:
    """Raises ValueError on NaN and infinity."""
    body = json.dumps(message, allow_nan=False).encode()
    return LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Any:
    """Raises ValueError."""
    return json.loads(body)


def write(fd: int, message: Any) -> None:
    """Blocks until all is written. Raises OSError."""
    data = memoryview(encode(message))
    while data:
        data = data[os.write(fd, data) :]


def read(fd: int) -> Any | None:
    """The next message, None at the end of the stream. Raises OSError."""
    head = _exactly(fd, LENGTH.size)
    return None if head is None else json.loads(_exactly(fd, LENGTH.unpack(head)[0]) or b"null")


def _exactly(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        chunk = os.read(fd, min(size - len(parts), 1 << 20))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)
