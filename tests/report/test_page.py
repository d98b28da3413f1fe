"""Tests that the page is complete, self-contained, and correct in a real browser if there is one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from plotly.offline import get_plotlyjs

from nemo_prorl.commands import report
from nemo_prorl.report.page import page_html, section_drawings, write_report
from nemo_prorl.run_folder.records import write_remeasured
from nemo_prorl.run_folder.run import RunFolder, read_run
from nemo_prorl.run_folder.validation_metrics import MEASUREMENT, PROMPT_MEAN
from tests.report.browser import ALL_DRAWN, CHROMIUM, Browser
from tests.report.made_up_runs import write_run

FITS = """[
  innerWidth, document.documentElement.scrollWidth <= innerWidth,
  [...document.querySelectorAll(".chart")].filter((at) => at.querySelector("svg").clientWidth > at.clientWidth).length,
].join(" ")"""
"""The width of the screen, whether the page is no wider, and how many charts are wider than their place."""


class Outline(HTMLParser):
    """Collects a page's references and the names of all elements with an id."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.undescribed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.references += [value for name, value in attrs if name in ("src", "href") and value]
        if given.get("role") == "img" and len(given.get("aria-label") or "") < 20:
            self.undescribed.append(str(given))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a report of a small run whose names try to inject HTML."""
    folder = tmp_path_factory.mktemp("reports")
    records = write_run(folder / "run<b>", num_stages=2)
    records[-1]["controller"] = {
        "action": "stop",
        "reason": "<script>alert(1)</script>",
        "numbers": {"x": 0.5},
    }
    records[-1]["validation/<i>/score"] = 0.5
    for record, mean in ((records[0], 0.3), (records[-1], 0.6)):
        record |= {"validation/score": mean, "validation/domain_mean_score": mean}
    records[-1]["objective/loss"] = float("nan")
    (folder / "run<b>" / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    starts = [
        {"stage": stage, "began": 0.0, "seen": 3600.0 * hours, "num_ranks": 8, "on_gpus": True}
        for stage, hours in (("run1", 2), ("run1", 1), ("run2", 1.5))
    ]
    (folder / "run<b>" / "starts.json").write_text(json.dumps(starts))
    write_report([folder / "run<b>"], folder / "report.html")
    return folder


@pytest.mark.medium
def test_the_page_needs_nothing_else(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert all(reference.startswith(("#", "data:")) for reference in outline.references)
    assert {reference[1:] for reference in outline.references if reference.startswith("#")} <= set(
        outline.ids
    )
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.undescribed == []
    assert "@import" not in text
    assert {path.name for path in folder.iterdir()} == {"run<b>", "report.html", "report"}
    assert {path.suffix for path in (folder / "report").iterdir()} == {".png"}


@pytest.mark.medium
def test_nothing_that_a_run_records_is_taken_for_html(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert html.escape("stop: <script>alert(1)</script>") in text
    (data,) = re.findall(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.DOTALL)
    charts = json.loads(data)
    assert [trace["name"] for trace in charts["validation"]["data"]][1] == "<i>"
    assert len(charts["loss"]["data"][0]["y"]) == 59  # the last one is not a number


@pytest.mark.medium
def test_what_a_reader_looks_for_is_there(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    for said in (
        "Held-out reward",
        "0.300 → 0.600",
        "sampler.num_rollouts 16 → 32",
        "run1 24, run2 12; 3 starts",
    ):
        assert said in text
    (differences,) = re.findall(r"What differs between stages</h3>(.*?)</table>", text, re.DOTALL)
    assert re.findall(r"<th scope=\"row\">(.*?)</th>", differences) == ["sampler.num_rollouts"]


@pytest.mark.medium
def test_a_comparison_has_both_runs_and_says_whose_held_out_scores_do_not_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name / "run" for name in "ab"]
    for seed, folder in enumerate(folders):
        records = write_run(folder, seed=seed)
        lines = [r | {MEASUREMENT: str(seed)} if PROMPT_MEAN in r else r for r in records]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "both.html"
    assert report.main([*map(str, folders), "--out", str(out), "--no-pictures"]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "both.html"]
    text = out.read_text(encoding="utf-8")
    assert "a/run · b/run" in text  # distinguished by their parent folders, because they have the same name
    sentence = "The held-out scores of these runs cannot be set side by side"
    assert sentence in re.findall(r'<p id="unlike">.*?</p>', text)[0]
    assert sentence in re.findall(r'id="figure-validation-0">.*?</figure>', text, re.DOTALL)[0]
    report.main([str(folders[0]), "--out", str(out), "--no-pictures"])
    assert "side by side" not in out.read_text(encoding="utf-8")


def pages_of(run: RunFolder) -> str:
    return page_html([run], section_drawings([run]))


@pytest.mark.medium
def test_a_page_is_small_and_has_the_whole_code_that_draws_it(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert len(text) < 3e6
    (packed,) = re.findall(r'id="plotly-gzip">(.*?)</script>', text)
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()


def test_charts_that_are_flat_or_repeat_another_are_words(make_run: Callable[..., RunFolder]) -> None:
    def with_right_and_wrong_answers_only(record: dict[str, Any]) -> dict[str, Any]:
        same = {"reward/pass_rate": record["reward/mean"]} if "reward/mean" in record else {}
        return {
            name: value for name, value in (record | same).items() if not name.endswith("/pass_rate")
        } | same

    text = pages_of(make_run(with_right_and_wrong_answers_only))
    figures = set(re.findall(r'id="figure-(\w+)"', text))
    assert {"kl", "reward_by_domain", "clip"} <= figures  # a line of "clip" changes, another does not
    assert not {"learning_rate", "advantage", "pass_rate"} & figures
    (constant,) = re.findall(r"<p class=\"quiet\">Constant: (Advantages.*?)\.</p>", text)
    assert constant.split("; ") == [
        "Advantages: standard deviation 0.980, smallest -3.750, largest 3.750",
        "Learning rate: 2e-06",
        "Entropy bonus: 0",
    ]
    assert "Pass rate in training (as Training reward)" in text
    assert 'id="figure-learning_rate"' in pages_of(make_run(num_steps=1, num_stages=1))  # nothing is flat yet


def test_tiles_have_model_data_and_learning_rate(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_stages=1)
    path = tmp_path / "run" / "stages" / "run1.yaml"
    options = yaml.safe_load(path.read_text())
    options |= {"model": {"path": "models/mine"}, "lora": {"rank": 8}}
    path.write_text(yaml.safe_dump(options))
    tiles = re.findall(r"<dt>(.*?)</dt><dd>(.*?) <small>(.*?)</small>", pages_of(read_run(tmp_path / "run")))
    assert ("Model", "mine", "models/mine; low rank 8") in tiles
    assert ("Data", "math", "data") in tiles
    assert ("Learning rate", "2e-06", "last update") in tiles


def test_a_failed_run_does_not_look_like_a_warning_and_says_why_once(tmp_path: Path) -> None:
    def banner() -> tuple[str, str]:
        text = pages_of(read_run(tmp_path / "run"))
        return text, re.findall(r'<div class="verdict (\w+)">', text)[0]

    records = write_run(tmp_path / "run", num_stages=1)
    assert banner()[1] == "fine"
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("damaged\n" + json.dumps(records[-1] | {"step": 61}) + "\n")
    assert banner()[1] == "warning"
    (tmp_path / "run" / "stages" / "run1.done").unlink()
    (tmp_path / "run" / "stages" / "run1.failed").write_text(
        json.dumps({"reason": "the disk of node 7 is full"})
    )
    text, look = banner()
    assert look == "failed"
    assert text.count("the disk of node 7 is full") == 1
    assert "The run is failed: the disk of node 7 is full. What to do: mend that" in text
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert "Nothing stands out in" not in banner()[0]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_in_a_browser_on_a_desk_and_on_a_phone(folder: Path, tmp_path: Path) -> None:
    """All charts are drawn without errors, and nothing is wider than the screen, also when that changes."""

    async def look() -> None:
        async with Browser(tmp_path) as browser:
            for width in (390, 1440):
                await browser.show(width)
                await browser.open((folder / "report.html").as_uri())
                await browser.until(ALL_DRAWN)
                assert await browser.run(FITS) == f"{width} true 0"
            await browser.show(600)
            await browser.until(f"{FITS} === '600 true 0'")
            assert browser.errors == []

    asyncio.run(look())


def test_a_metric_that_was_measured_afterwards_is_in_a_chart(make_run: Callable[..., RunFolder]) -> None:
    run = make_run(num_steps=6, num_stages=1)
    lines = [{"step": step, "stage": "run1", "my/ess": step / 10} for step in (2, 3, 5)]
    write_remeasured(run.folder, "ess", lines)
    measured = {section.name: drawings for section, drawings in section_drawings([read_run(run.folder)])}
    (drawing,) = measured["remeasured"]
    assert [line.label for line in drawing.lines] == ["my.ess"]
    assert [(line.points.steps.tolist(), line.points.values.tolist()) for line in drawing.lines] == [
        ([2, 3, 5], [0.2, 0.3, 0.5])
    ]
