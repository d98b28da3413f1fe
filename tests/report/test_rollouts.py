"""Tests that the page of recorded rollouts shows what was recorded, whatever the policy wrote, and stays small."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from nemo_prorl.commands import report
from nemo_prorl.report import rollouts
from nemo_prorl.report.rollouts import Pieces, choose, read_recorded, visible
from nemo_prorl.run_folder.records import TOKENIZER, read_rollouts, rollout_files, trained_files
from tests.report.browser import CHROMIUM, Browser
from tests.report.made_up_rollouts import IMAGE, byte_tokenizer, write_recorded
from tests.report.made_up_runs import write_run

HOSTILE = f"</script><script>hacked=1</script>{IMAGE}\u202eevil\u2066\x00 שלום 😀 &lt;b&gt;"


def texts(run_dir: Path) -> dict[tuple[str, int, int], str]:
    """Returns (prompt, step, sibling) -> what the page shows of the response, all tokens joined."""
    found = read_recorded(run_dir)
    assert found is not None
    return {
        (prompt["name"], visit["step"], one["sibling"]): "".join(found["pieces"][t] for t in one["tokens"])
        for prompt in found["prompts"]
        for visit in prompt["steps"]
        for one in visit["rollouts"]
    }


def cut(pieces: Pieces, token_ids: list[int]) -> list[str]:
    numbers = pieces.of(token_ids)
    texts = list(pieces.numbers)
    return [texts[number] for number in numbers]


def test_every_token_has_its_text_and_its_numbers(tmp_path: Path) -> None:
    write_recorded(tmp_path)
    found = read_recorded(tmp_path)
    assert found is not None
    shown = texts(tmp_path)
    for step in (2, 4, 6):
        for (uid, sibling), row in read_rollouts(tmp_path, step).items():
            assert shown[uid.partition("#")[0], step, sibling] == row.text + "<|end|>"
    (prompt,) = [one for one in found["prompts"] if one["name"] == "sums/0"]
    assert [(visit["step"], visit["num"], visit["mean"]) for visit in prompt["steps"]] == [
        (2, 4, 0.25), (4, 4, 0.5), (6, 4, 0.75),
    ]  # fmt: skip
    by_sibling = {one["sibling"]: one for one in prompt["steps"][1]["rollouts"]}
    recorded = read_rollouts(tmp_path, 4)["sums/0#4", 1]
    one = by_sibling[1]
    assert np.abs(np.array(one["logprobs"]) / 100 - recorded.logprobs).max() <= 0.005 + 1e-6
    assert (one["advantage"], one["update"], one["left_out"]) == (0.5, 2, 0)
    assert {len(one[name]) for name in ("tokens", "logprobs", "trainer", "change", "limits")} == {
        one["num_tokens"]
    }
    assert set(one["limits"][:-2:5]) == {2}
    assert one["limits"][-2] & 16
    assert "update" not in by_sibling[2]  # not trained on
    assert by_sibling[3]["finish"] == "length"


def test_a_character_of_several_tokens_belongs_to_the_last(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    (tmp_path / TOKENIZER).parent.mkdir()
    tokenizer.save(str(tmp_path / TOKENIZER))
    pieces = Pieces(tmp_path)
    ids = tokenizer.encode("π≈😀 x").ids
    assert cut(pieces, ids) == ["", "π", "", "", "≈", "", "", "", "😀", " ", "x"]
    # Half a character, and then something else: what it stands for is unknown, and nothing after it is lost.
    assert "".join(cut(pieces, [ids[0], *tokenizer.encode("answer").ids])) == "\ufffdanswer"


def test_any_tokens_at_all_are_shown(tmp_path: Path) -> None:
    """A tokenizer whose unknown characters are bytes, on which streaming fails if they are no text."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁hello": 257, "a": 258}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    (tmp_path / TOKENIZER).parent.mkdir()
    tokenizer.save(str(tmp_path / TOKENIZER))
    pieces, rng = Pieces(tmp_path), np.random.default_rng(0)
    for _ in range(50):
        assert len(pieces.of(rng.integers(0, 300, 60).tolist())) == 60  # some are in no vocabulary
    assert cut(pieces, [*rng.integers(1, 257, 60).tolist(), 258, 257, 258])[-2:] == [" hello", "a"]
    ids = [257, 257, *(byte + 1 for byte in "≈".encode()), 258]
    assert cut(pieces, ids) == ["hello", " hello", "", "", "≈", "a"]


def test_characters_without_a_shape_are_spelled_out() -> None:
    assert (
        visible("a\u202eb\u200d\x00\t\n\u2028\ud800é😀ש")
        == "a‹U+202E›b‹U+200D›‹U+0000›‹U+0009›\n‹U+2028›‹U+D800›é😀ש"
    )


def test_a_long_run_is_shown_in_part_and_the_page_says_so(tmp_path: Path) -> None:
    def long(number: int, step: int, sibling: int) -> tuple[str, float | None]:
        return " answer" * 2000, None if sibling == 5 else sibling / 8

    write_run(tmp_path / "run")
    steps = tuple(range(1, 13))
    write_recorded(tmp_path / "run", steps=steps, num_prompts=120, num_siblings=8, answer=long)
    found = read_recorded(tmp_path / "run")
    assert found is not None
    assert found["num_shown"] <= rollouts.MAX_ROLLOUTS < found["num_rollouts"]
    prompt = found["prompts"][0]
    assert [visit["step"] for visit in prompt["steps"]] == [1, 4, 7, 9, 12]
    assert sorted(one["sibling"] for one in prompt["steps"][0]["rollouts"]) == [
        0,
        5,
        6,
        7,
    ]  # 5 was not graded
    one = prompt["steps"][0]["rollouts"][0]
    assert (one["head"], one["left_out"], len(one["tokens"])) == (600, one["num_tokens"] - 900, 900)
    assert report.main([str(tmp_path / "run"), "--out", str(tmp_path / "a.html"), "--no-pictures"]) == 0
    page = (tmp_path / "a" / "rollouts.html").read_text(encoding="utf-8")
    assert f"{found['num_shown']} of {found['num_rollouts']:,} recorded rollouts" in page
    assert len(page) < 8e6


def test_half_of_the_page_is_for_prompts_that_come_again() -> None:
    def visit(step: int, score: float = 1.0) -> dict[tuple[str, int], float | None]:
        return {(f"{step}", sibling): score for sibling in range(4)}

    prompts: Any = {f"once{i}": {i % 10: visit(i % 10)} for i in range(100)}
    prompts |= {f"twice{i}": {1: visit(1), 9: visit(9)} for i in range(100)}
    domains: defaultdict[str, str] = defaultdict(lambda: "math")
    chosen = choose(prompts, domains, limit=160)
    sizes = [sum(map(len, visits.values())) for visits in chosen.values()]
    assert sum(sizes) == 160
    again = [name for name in chosen if name.startswith("twice")]
    assert len(again) >= 10
    assert {step for visits in chosen.values() for step in visits} == set(range(10))
    assert choose({}, domains) == {}


def test_files_that_cannot_be_read_are_named_and_the_others_shown(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert read_recorded(tmp_path) is None
    write_recorded(tmp_path)
    first, second, third = (path for _, path in rollout_files(tmp_path).all())
    first.write_bytes(second.read_bytes()[:100])
    old = pq.read_table(second).drop(["domain", "source", "prompt"])  # as an older version wrote it
    pq.write_table(pa.table(old), second)
    found = read_recorded(tmp_path)
    assert found is not None
    assert found["unread"] == [first.name, second.name]
    assert {visit["step"] for prompt in found["prompts"] for visit in prompt["steps"]} == {6}
    third.unlink()
    found = read_recorded(tmp_path)
    assert found is not None
    assert found["prompts"] == []


def test_what_is_missing_or_is_no_number_does_not_stop_the_page(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_recorded(tmp_path, with_tokenizer=False, steps=(2,))
    (_, path), (_, of_updates) = *rollout_files(tmp_path).all(), *trained_files(tmp_path).all()
    of_updates.unlink()
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["logprobs"][:2] = [float("nan"), float("-inf")]
    rows[1] |= {"token_ids": [], "logprobs": [], "text": ""}
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    found = read_recorded(tmp_path)
    assert found is not None
    json.dumps(found, allow_nan=False)
    assert not found["has_tokens"]
    one = found["prompts"][0]["steps"][0]["rollouts"][0]
    assert one["text"] == rows[0]["text"]
    assert one["logprobs"][0] == 0
    (tmp_path / TOKENIZER).write_text("no tokenizer")
    assert Pieces(tmp_path).tokenizer is None


def hostile(number: int, step: int, sibling: int) -> tuple[str, float | None]:
    return HOSTILE, None if sibling == 1 else float(sibling == 0 and step == 6)


SEEN = """(() => {
  const texts = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent);
  return {
    needed: document.documentElement.scrollWidth, width: document.documentElement.clientWidth,
    prompts: texts("#prompts button").length, steps: texts(".responses h3"), responses: texts(".tokens"),
    facts: texts(".responses .quiet"), clipped: texts(".tokens .clipped").length,
    masked: texts(".tokens .masked").length,
    coloured: texts(".tokens .low").length, blue: texts(".tokens .high").length, hacked: window.hacked ?? 0,
    images: document.images.length, scripts: document.scripts.length, token: texts("#token")[0],
    prompt: texts(".prompt")[0],
    wide: [...document.querySelectorAll(".tokens")].some((one) => one.scrollWidth > one.clientWidth),
  };
})()"""
CHOOSE = """((name, value) => {
  const select = document.getElementById("filters").elements[name];
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
})"""


@pytest.mark.medium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_hostile_rollouts_as_text_and_filters_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_recorded(tmp_path / "run", answer=hostile, question=HOSTILE)
    assert report.main([str(tmp_path / "run"), "--no-pictures"]) == 0
    main = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<a href="report/rollouts.html">' in main
    page = tmp_path / "run" / "report" / "rollouts.html"
    assert page.read_text(encoding="utf-8").count("</script>") == 2
    assert not re.search(r"(src|href)=\"(?!data:)", page.read_text(encoding="utf-8"))

    async def look() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with Browser(tmp_path / "profile") as browser:
            for name, width in (("phone", 390), ("desk", 1280)):
                screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
                await browser.send("Emulation.setDeviceMetricsOverride", **screen)
                await browser.open(page.as_uri())
                while not await browser.run(
                    "document.readyState === 'complete' && !!document.querySelector('.tokens')"
                ):
                    await asyncio.sleep(0.05)
                found[name] = await browser.run(SEEN)
            for name, choice, value in (
                ("right", "outcome", "right"), ("early", "step", "4"), ("both", "outcome", "wrong"),
                ("none", "outcome", "partial"), ("untrained", "outcome", "untrained"), ("logic", "domain", "logic"),
            ):  # fmt: skip
                await browser.run(f"{CHOOSE}({json.dumps(choice)}, {json.dumps(value)})")
                found[name] = await browser.run(SEEN)
            await browser.run(f"{CHOOSE}('outcome', 'bounded'); {CHOOSE}('colour', 'trainer')")
            await browser.run("document.querySelector('.siblings button[title=\"rollout 1\"]').click()")
            await browser.run("document.querySelectorAll('.tokens span')[0].click()")
            found["bounded"] = await browser.run(SEEN)
            found["errors"] = browser.errors
        return found

    found = asyncio.run(look())
    assert found["errors"] == []
    for view in ("phone", "desk"):
        seen = found[view]
        assert seen["needed"] <= seen["width"]
        assert not seen["wide"]
        assert seen["prompt"] == visible(f"<user>Question 0: {HOSTILE}<assistant>")
        assert (seen["hacked"], seen["images"], seen["scripts"]) == (0, 0, 2)
        assert [title.split(" mean")[0] for title in seen["steps"]] == ["step 2", "step 4", "step 6"]
        text = visible(HOSTILE) + "<|end|>"
        assert [response.replace("·", "") for response in seen["responses"]] == [text] * 3
        assert "·" in seen["responses"][0]  # the first bytes of 😀
        assert seen["coloured"] > 50
        assert seen["masked"] == 3
    assert found["phone"]["width"] == 390
    assert found["right"]["prompts"] == 2  # prompt 0 and prompt 6, at step 6
    assert "score 1.00, right" in found["right"]["facts"][-1]
    assert found["early"]["prompts"] == 0
    assert len(found["both"]["steps"]) == 2  # up to step 4
    assert found["none"]["prompts"] == 0
    assert all("not trained on" in facts for facts in found["untrained"]["facts"])
    assert 0 < found["logic"]["prompts"] < found["untrained"]["prompts"] + 1
    assert found["bounded"]["clipped"] > 0
    assert found["bounded"]["coloured"] > 0
    assert found["bounded"]["blue"] > 0
    assert re.match(
        r"token 1 · .* log-probability −?\d\.\d\d by the sampler · trainer [+−]", found["bounded"]["token"]
    )
