"""Serves the report of a run while the run grows, to browsers on this machine: standard library and the page itself.

Two addresses exist: / is the page, and /plotly.js the code that draws its charts. The page asks for itself again every
few seconds and takes over what has changed (page/live.js). It is drawn once for all browsers, and only when a run has
grown.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
import traceback
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.report.page import page_html, section_drawings, unique_names, waiting_html
from nemo_prorl.report.status import read_status
from nemo_prorl.run_folder.run import RunFolder, read_run

HOST = "127.0.0.1"
PORT = 8765
OWN_NAMES = ("127.0.0.1", "localhost")
"""Names by which a browser may ask for the page. Another name is that of a foreign site that leads to this machine."""
DRAWING_SHARE = 0.1
"""Share of one processor that drawing may take, because the run computes on the same machine."""
STALE_S = 60.0
"""A page that says how old the last sign of life is must not be older than this."""
SILENCE_S = 30.0
"""A connection that says nothing for so long is closed."""


class LivePage:
    """The page of some runs as they are now. Any thread may ask for it."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._names = unique_names(folders)
        self._lock = threading.Lock()
        self._page, self._tag, self._state = b"", "", ()  # type: tuple[bytes, str, tuple[object, ...]]
        self._drawn_at, self._took_s = float("-inf"), 0.0
        self._has_charts = False

    def newest(self) -> tuple[bytes, str]:
        """Returns the page and a tag that changes with it. Draws it again if the runs have grown, at most for
        DRAWING_SHARE of the time."""
        with self._lock:
            state, age_s = _state(self._folders), time.monotonic() - self._drawn_at
            if (state != self._state and age_s >= self._took_s / DRAWING_SHARE) or age_s >= STALE_S:
                began = time.thread_time()
                self._page = self._draw().encode()
                self._took_s = time.thread_time() - began if self._has_charts else 0.0
                self._tag = f'"{hashlib.sha256(self._page).hexdigest()[:16]}"'
                self._state, self._drawn_at = state, time.monotonic()
            return self._page, self._tag

    def _draw(self) -> str:
        """The report of all runs that have a first line; without any, a page that says what is waited for."""
        runs: list[RunFolder] = []
        for folder, name in zip(self._folders, self._names, strict=True):
            with suppress(ConfigError):
                runs.append(read_run(folder, name))
        self._has_charts = bool(runs)
        if not runs:
            return waiting_html([(str(folder), _why_waiting(folder)) for folder in self._folders])
        try:
            return page_html(runs, section_drawings(runs), is_live=True)
        except Exception as error:  # the server goes on: the next step may be drawn
            traceback.print_exc()
            reason = f"the page cannot be drawn: {type(error).__name__}: {error}"
            return waiting_html([(str(folder), reason) for folder in self._folders])


def serve(folders: Sequence[Path], port: int, *, opens: bool = False) -> None:
    """Serves the page until Ctrl-C; `opens` shows it in the browser. Prints where it is, and how to reach it from
    another machine.

    Raises ConfigError if the port is taken or not allowed; `port` 0 is any free one.
    """
    with make_server(folders, port) as server:
        port = server.server_address[1]
        login = f"{os.environ.get('USER', 'USER')}@{socket.gethostname()}"
        print(
            f"live at http://{HOST}:{port}/ on this machine, until Ctrl-C\n"
            f"from another one: ssh -N -L {port}:{HOST}:{port} {login}, and open http://{HOST}:{port}/ there",
            flush=True,
        )
        if opens:  # a browser in the terminal returns only when it is closed
            threading.Thread(target=webbrowser.open, args=(f"http://{HOST}:{port}/",), daemon=True).start()
        for folder in folders:
            if not (folder / "metrics.jsonl").is_file():
                print(f"waiting for the first step of {folder}: {_why_waiting(folder)}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nstopped serving; this changes nothing in a run", flush=True)


def make_server(folders: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """Returns a server that is bound to `port` and still to be run. Raises ConfigError as `serve` does."""
    try:
        return _PageServer((HOST, port), _handler(LivePage(folders)))
    except OSError as error:
        raise ConfigError(
            f"--serve {port} cannot be used on this machine ({error.strerror}): write another port, such as --serve "
            f"{max(1024, port + 1)}, or --serve 0 for any free one."
        ) from error


class _PageServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in mid-page is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = SILENCE_S

        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in OWN_NAMES:
                self.send_error(HTTPStatus.FORBIDDEN, f"ask for {HOST} or localhost")
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", *page.newest())
            elif self.path == "/plotly.js":
                self._answer("text/javascript; charset=utf-8", *_plotly())
            else:
                self.send_error(HTTPStatus.NOT_FOUND, "only / is served")

        do_HEAD = do_GET

        def _answer(self, kind: str, body: bytes, tag: str) -> None:
            is_known = self.headers.get("If-None-Match") == tag
            self.send_response(HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK)
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "no-cache")  # keep it, and ask whether it has changed
            self.send_header("X-Content-Type-Options", "nosniff")
            if not is_known:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not is_known and self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: a browser asks every few seconds."""

    return Handler


def _why_waiting(folder: Path) -> str:
    return read_status(folder).summary if folder.is_dir() else "the folder does not exist yet."


@cache
def _plotly() -> tuple[bytes, str]:
    from plotly import __version__
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode(), f'"plotly-{__version__}"'


def _state(folders: Sequence[Path]) -> tuple[object, ...]:
    """Changes whenever a run records a step, a stage, an end or an evaluation."""
    state: list[object] = []
    for path in (folder / name for folder in folders for name in ("metrics.jsonl", "stages", "evaluation")):
        with suppress(OSError):
            found = path.stat()
            state.append((path, found.st_mtime_ns, found.st_size))
    return tuple(state)
