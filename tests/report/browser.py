"""Chromium, driven over its debugging protocol: what a reader sees on a page that changes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-port=0 --window-size=1280,900"
)


class Browser:
    """One page. `errors` are what it has written to its console."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._count = 0
        self.errors: list[str] = []

    async def __aenter__(self) -> Browser:
        command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        address = next(
            line.split("//")[1] for line in self._process.stderr if "DevTools listening on" in line
        )
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://{address.split('/')[0]}/json") as answer:
            (page,) = [target for target in await answer.json() if target["type"] == "page"]
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        for domain in ("Runtime", "Log"):
            await self.send(f"{domain}.enable")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
        self._process.terminate()
        self._process.wait()

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("id") == self._count:
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(json.dumps(message["params"]))

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def show(self, width: int, height: int = 900) -> None:
        """Gives the screen a size in pixels; narrow ones are phones."""
        look = {"deviceScaleFactor": 1, "mobile": width < 500}
        await self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **look)

    async def until(self, script: str) -> None:
        """Waits until an expression of JavaScript is true."""
        limit = time.monotonic() + 60
        while not await self.run(script):
            assert time.monotonic() < limit, script
            await asyncio.sleep(0.1)

    async def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")


ALL_DRAWN = """document.readyState === "complete" && (() => {
  const charts = [...document.querySelectorAll(".chart")];
  return charts.length > 20 && charts.every((chart) => chart.querySelector("svg.main-svg .xtick"));
})()"""
"""Whether a page of the report shows its charts."""
