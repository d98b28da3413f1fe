"""HTTP servers in a thread of the test's process."""

from __future__ import annotations

import threading
from socketserver import BaseServer

_POLL_S = 0.02
"""shutdown() waits for the next poll, which by default comes after up to half a second."""


def serve_in_background(server: BaseServer) -> threading.Thread:
    """Answers requests in a daemon thread until `server.shutdown()`. Returns the thread."""
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
    thread.start()
    return thread
