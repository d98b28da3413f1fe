"""Serves the report of a run while the run grows, to browsers on this machine: standard library and the page itself.

Two addresses exist: / is the page, and /plotly.js the code that draws its charts. The page asks for itself again every
few seconds and takes over what has changed (page/live.js). It is drawn once for all browsers, and only when a run has
grown.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
import traceback
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError
from nemo_prorl.report.page import page_html, section_drawings, unique_names, waiting_html
from nemo_prorl.report.status import read_status
from nemo_prorl.run_folder.run import RunFolder, read_run
from nemo_prorl.run_folder.storage import replace_text

HOST = "127.0.0.1"
PORT = 8765
OWN_NAMES = ("127.0.0.1", "localhost")
"""Names by which a browser may ask for the page. Another name is that of a foreign site that leads to this machine."""
DRAWING_SHARE = 0.1
"""Share of one processor that drawing may take, because the run computes on the same machine."""
REST_S = 1.1
"""Shortest time between two drawings: browsers compare the times of pages in whole seconds."""
STALE_S = 60.0
"""A page that says how old the last sign of life is must not be older than this."""
SILENCE_S = 30.0
"""A connection that says nothing for so long is closed."""


class LivePage:
    """The page of some runs as they are now, and the code that draws its charts, as files for any thread."""

    def __init__(self, folders: Sequence[Path], into: Path) -> None:
        """into: an empty folder for the files."""
        from plotly.offline import get_plotlyjs

        self._folders, self._names, self.into = folders, unique_names(folders), into
        (into / "plotly.js").write_text(get_plotlyjs(), encoding="utf-8")
        self._lock = threading.Lock()
        self._state, self._drawn_at, self._took_s = tuple[object, ...](), float("-inf"), 0.0

    def refresh(self) -> None:
        """Draws the page again if the runs have grown, at most for DRAWING_SHARE of the time."""
        with self._lock:
            state, age_s = _state(self._folders), time.monotonic() - self._drawn_at
            rest_s = max(REST_S, self._took_s / DRAWING_SHARE)
            if (state != self._state and age_s >= rest_s) or age_s >= STALE_S:
                began = time.thread_time()
                replace_text(self.into / "index.html", self._draw())
                self._took_s, self._drawn_at = time.thread_time() - began, time.monotonic()
                self._state = state

    def _draw(self) -> str:
        """The report of all runs that have a first line; without any, a page that says what is waited for."""
        runs: list[RunFolder] = []
        for folder, name in zip(self._folders, self._names, strict=True):
            with suppress(ConfigError):
                runs.append(read_run(folder, name))
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
    with tempfile.TemporaryDirectory() as into, make_server(folders, port, Path(into)) as server:
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


def make_server(folders: Sequence[Path], port: int, into: Path) -> ThreadingHTTPServer:
    """Returns a server that is bound to `port` and still to be run. into: an empty folder for its files. Raises
    ConfigError as `serve` does."""
    try:
        return _PageServer((HOST, port), partial(_Handler, LivePage(folders, into)))
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


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENCE_S

    def __init__(self, page: LivePage, *connection: Any) -> None:
        self._page = page
        super().__init__(*connection, directory=str(page.into))

    def send_head(self) -> Any:
        if self.headers.get("Host", "").partition(":")[0] not in OWN_NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, f"ask for {HOST} or localhost")
            return None
        if self.path == "/":
            self._page.refresh()
        return super().send_head()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # keep it, and ask whether it has changed
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a browser asks every few seconds."""


def _why_waiting(folder: Path) -> str:
    return read_status(folder).summary if folder.is_dir() else "the folder does not exist yet."


def _state(folders: Sequence[Path]) -> tuple[object, ...]:
    """Changes whenever a run records a step, a stage or an end."""
    state: list[object] = []
    for path in (folder / name for folder in folders for name in ("metrics.jsonl", "stages")):
        with suppress(OSError):
            found = path.stat()
            state.append((path, found.st_mtime_ns, found.st_size))
    return tuple(state)
