"""The live page: up to date, for this machine only, and nothing besides it."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nemo_prorl.commands import report
from nemo_prorl.config import ConfigError
from nemo_prorl.report import serve
from nemo_prorl.run_folder.records import write_remeasured
from tests.background import serve_in_background
from tests.conftest import ROOT
from tests.report.browser import ALL_DRAWN, CHROMIUM, Browser
from tests.report.made_up_runs import write_run


@contextmanager
def served(*folders: Path) -> Iterator[int]:
    """The port."""
    with TemporaryDirectory() as into, serve.make_server(folders, 0, Path(into)) as server:
        serve_in_background(server)
        yield server.server_address[1]
        server.shutdown()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read().decode()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change is drawn."""
    monkeypatch.setattr(serve, "DRAWING_SHARE", 1e9)
    monkeypatch.setattr(serve, "REST_S", 0.0)


def grow(folder: Path, records: list[dict], count: int) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records[:count]))


def test_from_a_folder_that_is_not_there_to_a_run_that_grows(tmp_path: Path, at_once: None) -> None:
    folder = tmp_path / "new"
    with served(folder) as port:
        status, _, page = ask(port)
        assert (status, 'data-page="waiting"' in page, "does not exist yet" in page) == (200, True, True)
        folder.mkdir()
        (folder / "resolved.yaml").write_text("seed: 1")
        (folder / "metrics.jsonl").write_text('{"step": 0, "sta')
        assert "has not come to its first step" in ask(port)[2]
        (folder / "metrics.jsonl").unlink()
        records = write_run(folder, num_stages=1)
        for count in (2, 30):
            grow(folder, records, count)
            assert f"stage run1, step {records[count - 1]['step']}" in (page := ask(port)[2])
            assert 'data-page="report"' in page
        assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "resolved.yaml", "stages"]


def test_a_page_that_has_not_changed_is_not_sent_again(tmp_path: Path, at_once: None) -> None:
    records = write_run(tmp_path / "run")
    with served(tmp_path / "run") as port:
        for path in ("/", "/plotly.js"):
            status, headers, body = ask(port, path)
            assert (status, len(body) > 100_000) == (200, True)
            assert ask(port, path, **{"If-Modified-Since": headers["Last-Modified"]})[::2] == (304, "")
            assert ask(port, path, "HEAD")[::2] == (200, "")
        before = ask(port)[1]["Last-Modified"]
        time.sleep(1.1)  # it is a time in whole seconds
        grow(tmp_path / "run", records, 30)
        assert ask(port, **{"If-Modified-Since": before})[0] == 200


def test_nothing_besides_the_page_is_served(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with served(tmp_path / "run") as port:
        for path in ("/metrics.jsonl", "/../run/metrics.jsonl", "/run", "//etc/passwd", "/report.html"):
            assert ask(port, path)[0] == 404, path
        assert ask(port, method="POST")[0] == 501
        for host, status in (("evil.example", 403), ("localhost", 200), (f"127.0.0.1:{port + 1}", 200)):
            assert ask(port, Host=host)[0] == status, host
        assert serve.HOST == "127.0.0.1", "no other machine can reach it"


def test_drawing_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    """The machine is there to train."""
    records = write_run(tmp_path / "run")
    page = serve.LivePage([tmp_path / "run"], tmp_path)
    page.refresh()
    before = (tmp_path / "index.html").read_text()
    grow(tmp_path / "run", records, 30)
    page.refresh()
    assert (tmp_path / "index.html").read_text() == before, "just drawn"
    page._drawn_at -= serve.REST_S + page._took_s / serve.DRAWING_SHARE
    page.refresh()
    assert (tmp_path / "index.html").read_text() != before


@pytest.mark.medium
@pytest.mark.parametrize("fails", [False, True])
def test_a_page_is_drawn_once_for_many_browsers_also_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    write_run(tmp_path / "run")
    drawn: list[int] = []

    def draw(*arguments: object, **options: object) -> str:
        drawn.append(1)
        if fails:
            raise TypeError("no such chart")
        return "the page"

    monkeypatch.setattr(serve, "page_html", draw)
    with served(tmp_path / "run") as port, ThreadPoolExecutor(16) as browsers:
        pages = list(browsers.map(lambda _: ask(port), range(48)))
    said = "cannot be drawn: TypeError: no such chart" if fails else "the page"
    assert all(status == 200 and said in page for status, _, page in pages)
    assert (len(drawn), capsys.readouterr().err.count("Traceback")) == (1, int(fails))


@pytest.mark.parametrize("words", ["a b --serve", "--serve a b", "a --serve b", "a b --serve 0"])
def test_runs_keep_their_order_wherever_serve_stands(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(serve, "serve", lambda folders, port, opens: seen.append((folders, port)))
    assert report.main(words.split()) == 0
    assert seen == [([Path("a"), Path("b")], 0 if words.endswith("0") else serve.PORT)]


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--serve {port} cannot be used .*in use"):
            report.main([str(tmp_path), "--serve", str(port)])
    (tmp_path / "metrics.jsonl").write_text("")
    for arguments, message in (
        ([str(tmp_path / "metrics.jsonl"), "--serve"], "is a file: write the folder of a run"),
        (["--serve"], "RUN_DIR is missing"),
        ([str(tmp_path), "--out", "page.pdf"], r"ends in \.html"),
        ([str(tmp_path / "nothing")], r"holds no metrics\.jsonl"),
        ([str(tmp_path), "--serve", "70000"], "70000 is not a port"),
        ([str(tmp_path), "--serve", "--out", "x.html"], "leave out --out"),
    ):
        with pytest.raises(ConfigError, match=message):
            report.main(arguments)


def test_the_command_says_where_it_is_and_ends_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    command = ["env", "--default-signal=INT"]  # a shell in the background has its children ignore it
    command += [sys.executable, "-m", "nemo_prorl", "report", str(tmp_path / "run"), "--serve", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    first, ssh, waits = (process.stdout.readline() for _ in range(3))
    assert f"http://127.0.0.1:{port}/" in first
    assert f"ssh -N -L {port}:127.0.0.1:{port} " in ssh
    assert waits == f"waiting for the first step of {tmp_path}/run: the folder does not exist yet.\n"
    assert ask(port)[0] == 200
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    said = ["stopped serving; this changes nothing in a run", ""]
    assert (process.returncode, rest.split("\n")[1:]) == (0, said)


SEEN = """({
  place: window.seen.getBoundingClientRect().top, live: document.getElementById("live").textContent,
  zoom: document.getElementById("chart-kl").layout.xaxis.range, open: document.querySelector("#numbers details").open,
  lines: document.getElementById("chart-length").querySelectorAll("path.js-line").length,
  same: window.chart === document.getElementById("chart-length"),
})"""
READ = """
  document.querySelector("button[data-chart=length]").click();
  Plotly.relayout(document.getElementById("chart-entropy"), { "xaxis.range[0]": 5, "xaxis.range[1]": 15 });
  document.querySelector("#numbers details").open = true;
  window.chart = document.getElementById("chart-length");
  scrollTo({ top: 1500, behavior: "instant" });
  window.seen = [...document.querySelectorAll(".chart")].find((chart) => chart.getBoundingClientRect().bottom > 0);
  window.place = window.seen.getBoundingClientRect().top;
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_reader_keeps_the_place_while_the_run_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting page, report, more steps, a new section, another stage: in one browser that is never reloaded by hand."""
    monkeypatch.setattr(serve, "DRAWING_SHARE", 1e9)
    asyncio.run(_read_along(tmp_path))


async def _read_along(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with served(folder) as port:
        async with Browser(tmp_path / "profile") as browser:
            await browser.open(f"http://127.0.0.1:{port}/")
            await browser.until("document.body?.dataset.page === 'waiting'")
            records = write_run(folder, is_done=False)
            await browser.until(ALL_DRAWN)
            await browser.run(READ)
            write_remeasured(folder, "ess", [{"step": 2, "stage": "run1", "ess": 0.5}])
            for count in (28, 40):
                grow(folder, records, count)
                if count == 40:  # a page to which the reader turns again asks at once
                    await browser.run("document.dispatchEvent(new Event('visibilitychange'))")
                said = f"step {records[count - 1]['step']}"
                await browser.until(f"document.querySelector('.verdict-line').innerText.includes('{said}')")
            await browser.until("document.querySelectorAll('#remeasured figure').length === 1")
            await asyncio.sleep(2)  # charts are drawn frame by frame
            seen = await browser.run(SEEN)
            # What the reader looks at stays where it was, though warnings above it come and go.
            assert seen["place"] == pytest.approx(await browser.run("window.place"), abs=60)
            assert (seen["zoom"], seen["open"], seen["lines"]) == ([5, 15], True, 2)
            assert seen["same"], "no chart is made anew"
            assert await browser.run(ALL_DRAWN)
            assert seen["live"] == "Live"
            assert browser.errors == []
