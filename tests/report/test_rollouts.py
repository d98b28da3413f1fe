"""Tests that the page of recorded rollouts shows what was recorded, whatever the policy wrote, and stays small."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models

from nemo_prorl.commands import report
from nemo_prorl.report import rollouts
from nemo_prorl.report.rollouts import choose, read_recorded, token_texts
from nemo_prorl.report.texts import visible
from nemo_prorl.run_folder.records import TOKENIZER, read_rollouts
from nemo_prorl.run_folder.storage import step_files
from tests.report.browser import CHROMIUM, Browser
from tests.report.made_up_rollouts import IMAGE, byte_tokenizer, plain_answer, write_recorded
from tests.report.made_up_runs import write_run

HOSTILE = f"</script><script>hacked=1</script>{IMAGE}\u202eevil\u2066\x00 שלום 😀 &lt;b&gt;"


def shown(run_dir: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Returns (prompt, step, sibling) -> what the page gets of a rollout."""
    found = read_recorded(run_dir)
    assert found is not None
    rollouts = {
        (prompt["name"], visit["step"], one["sibling"]): one
        for prompt in found["prompts"]
        for visit in prompt["visits"]
        for one in visit["rollouts"]
    }
    assert found["summary"] == f"All {len(rollouts):,} recorded rollouts"
    return rollouts


def test_every_token_has_its_text_and_its_numbers(tmp_path: Path) -> None:
    write_recorded(tmp_path)
    found = shown(tmp_path)
    for step in (2, 4, 6):
        recorded = read_rollouts(tmp_path, step)
        trained = {
            (r["uid"], r["sibling"]): r
            for r in pq.read_table(step_files(tmp_path, "rollouts/trained").path(step, "rank0")).to_pylist()
        }
        for (uid, sibling), row in recorded.items():
            one = found.pop((uid.partition("#")[0], step, sibling))
            assert "".join(one["tokens"]) == row.text + "<|end|>"
            assert len(one["tokens"]) == one["num_tokens"]
            assert (one["score"], one["finish"]) == (row.verdict.score, row.finish)
            np.testing.assert_allclose(one["sampler"], row.logprobs, atol=5.1e-5)
            if (uid, sibling) not in trained:
                assert not {"advantage", "trainer", "limits"} & set(one)
                continue
            of_update = trained[uid, sibling]
            np.testing.assert_allclose(one["trainer"], of_update["old_logprobs"], atol=5.1e-5)
            assert (one["limits"], one["advantage"]) == (of_update["limits"], of_update["advantage"])
    assert found == {}


def test_a_begun_answer_is_shown_once_and_is_none_of_the_tokens(tmp_path: Path) -> None:
    write_recorded(tmp_path / "plain")
    write_recorded(tmp_path / "begun", begun=HOSTILE)
    plain, begun = read_recorded(tmp_path / "plain"), read_recorded(tmp_path / "begun")
    assert plain is not None
    assert begun is not None
    assert [one.pop("begun") for one in plain["prompts"]] == [""] * len(plain["prompts"])
    assert [one.pop("begun") for one in begun["prompts"]] == [visible(HOSTILE)] * len(plain["prompts"])
    assert begun == plain
    (tmp_path / "begun" / TOKENIZER).unlink()
    assert shown(tmp_path / "begun")["sums/0", 2, 0]["tokens"] == [plain_answer(0, 2, 0)[0]]


def test_a_prompt_has_the_mean_of_all_its_rollouts_at_each_step(tmp_path: Path) -> None:
    def half_graded(number: int, step: int, sibling: int) -> tuple[str, float | None]:
        return "answer", None if sibling > 3 or step == 6 else float(sibling < step // 2)

    write_recorded(tmp_path, answer=half_graded, num_siblings=8)
    found = read_recorded(tmp_path)
    assert found is not None
    (prompt,) = [one for one in found["prompts"] if one["name"] == "sums/0"]
    visits = [(visit["step"], visit["num"], visit["mean"]) for visit in prompt["visits"]]
    assert visits == [(2, 8, 0.25), (4, 8, 0.5), (6, 8, None)]
    assert prompt["text"].startswith("<user>Question 10: What is")


def test_a_character_of_several_tokens_belongs_to_the_last() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("π≈😀 x").ids
    assert token_texts(tokenizer, ids, "") == ["", "π", "", "", "≈", "", "", "", "😀", " ", "x"]
    # Half a character, and then something else: what it stands for is unknown, and nothing after it is lost.
    assert "".join(token_texts(tokenizer, [ids[0], *tokenizer.encode("answer").ids], "")) == "\ufffdanswer"


def sentencepiece_tokenizer() -> Tokenizer:
    """Returns a tokenizer whose unknown characters are bytes, on which streaming fails if they are no text."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    vocabulary |= {"▁hello": 257, "a": 258, "▁": 259}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def test_any_tokens_at_all_are_shown() -> None:
    tokenizer, rng = sentencepiece_tokenizer(), np.random.default_rng(0)
    for _ in range(50):
        assert len(token_texts(tokenizer, rng.integers(0, 300, 60).tolist(), "a")) == 60
    ids = [*rng.integers(1, 257, 60).tolist(), 258, 257, 258]
    assert token_texts(tokenizer, ids, "a")[-2:] == [" hello", "a"]
    assert token_texts(tokenizer, [258, 300, 257], "a") == ["a", "‹token 300›", " hello"]


def test_the_first_token_keeps_its_space_whatever_the_prompt_ends_with() -> None:
    ids = [259, 257, 257, *(byte + 1 for byte in "≈".encode()), 258]
    for prompt in ("", "a", "a" * 300, "≈", "a\n"):
        space = " " if prompt else ""  # of a first text the decoder drops the space
        found = token_texts(sentencepiece_tokenizer(), ids, prompt)
        assert found == [space, " hello", " hello", "", "", "≈", "a"]


def test_nothing_of_a_character_before_the_gap_is_joined_to_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts, "HEAD", 3)
    monkeypatch.setattr(rollouts, "TAIL", 4)
    ids = [258, *(byte + 1 for byte in "≈≈".encode()), 258, *(byte + 1 for byte in "≈".encode())]
    gap = " [… 4 tokens …] "
    assert token_texts(sentencepiece_tokenizer(), ids, "a") == ["a", "", "", gap, "a", "", "", "≈"]


def test_a_long_run_is_shown_in_part_and_the_page_says_so(tmp_path: Path) -> None:
    def long(number: int, step: int, sibling: int) -> tuple[str, float | None]:
        return " answer" * (1000 + number) + " 42", sibling / 4

    write_run(tmp_path / "run")
    write_recorded(tmp_path / "run", steps=(1,), num_prompts=80, answer=long)
    found = read_recorded(tmp_path / "run")
    assert found is not None
    of_rollouts = [one for prompt in found["prompts"] for v in prompt["visits"] for one in v["rollouts"]]
    assert (
        rollouts.MAX_TOKENS <= sum(len(one["tokens"]) for one in of_rollouts) < rollouts.MAX_TOKENS + 20 * 901
    )
    one = of_rollouts[0]
    assert {len(one[name]) for name in ("tokens", "sampler", "trainer", "limits")} == {901}
    assert [one[name][600] for name in ("sampler", "trainer", "limits")] == [None] * 3
    assert one["tokens"][600] == f" [… {one['num_tokens'] - 900:,} tokens …] "
    assert one["tokens"][-1] == "<|end|>"
    assert report.main([str(tmp_path / "run"), "--out", str(tmp_path / "a.html"), "--no-pictures"]) == 0
    page = (tmp_path / "a" / "rollouts.html").read_text(encoding="utf-8")
    assert f"{len(of_rollouts)} of 320 recorded rollouts" in page
    assert len(page) < 30 * rollouts.MAX_TOKENS


def visits(*steps: int, scores: tuple[float | None, ...] = (0.0, 1.0)) -> dict[int, list[dict[str, Any]]]:
    return {
        step: [{"sibling": i, "score": score, "num_tokens": 10} for i, score in enumerate(scores)]
        for step in steps
    }


def test_steps_and_domains_take_turns_and_prompts_that_come_twice_are_first() -> None:
    prompts = {("math", f"once{i}"): visits(i % 10) for i in range(100)}
    prompts |= {("math", f"twice{i}"): visits(1, 9) for i in range(100)}
    prompts |= {("code", f"code{i}"): visits(5) for i in range(100)}
    chosen = choose(prompts, limit=20 * 24)
    names = [prompt["name"] for prompt in chosen]
    assert [prompt["visits"][-1]["step"] for prompt in chosen[:4]] == [9, 8, 7, 6]
    assert names[0] == "twice0"
    assert len([name for name in names if name.startswith("code")]) == 2  # of 11 pairs of a step and a domain
    assert sum(20 * (1 + name.startswith("twice")) for name in names) == 20 * 24
    assert len(choose(prompts, limit=10**9)) == len(prompts)
    assert choose({}) == []


def test_of_a_prompt_steps_far_apart_and_the_best_and_worst_rollouts_are_chosen() -> None:
    scores = (0.5, None, 0.2, 0.9, 1.0, 0.1)
    (prompt,) = choose({("math", "a"): visits(*range(1, 13), scores=scores)}, limit=12 * 60 - 1)
    assert [visit["step"] for visit in prompt["visits"]] == [1, 4, 7, 9, 12]
    assert [one["score"] for one in prompt["visits"][0]["rollouts"]] == [1.0, 0.9, 0.1, None]
    for num in range(1, 5):
        (prompt,) = choose({("math", "a"): visits(1, scores=scores[:num])}, limit=1)
        assert len(prompt["visits"][0]["rollouts"]) == num


def test_files_that_cannot_be_shown_are_named_and_the_others_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_recorded(tmp_path) is None
    write_run(tmp_path / "run")
    write_recorded(tmp_path / "run", steps=(2, 4, 6, 8))
    first, second, _, fourth = (path for _, path in step_files(tmp_path / "run", "rollouts").all())
    first.write_bytes(second.read_bytes()[:100])
    old = pq.read_table(second).drop(["domain", "source", "prompt", "num_tokens"])
    pq.write_table(old, second)
    of_updates = step_files(tmp_path / "run", "rollouts/trained").path(6, "rank0")
    of_updates.write_text("no Parquet")
    fourth.unlink()
    assert {step for _, step, _ in shown(tmp_path / "run")} == {6}
    assert report.main([str(tmp_path / "run"), "--no-pictures"]) == 0
    page = (tmp_path / "run" / "report" / "rollouts.html").read_text(encoding="utf-8")
    assert "All 8 recorded rollouts" in page
    said = capsys.readouterr().err
    assert all(f"skipped {path}, which cannot be read" in said for path in (first, second, of_updates))


def test_what_is_missing_or_is_no_number_does_not_stop_the_page(tmp_path: Path) -> None:
    import pyarrow as pa

    write_recorded(tmp_path, steps=(2,))
    ((_, path),) = step_files(tmp_path, "rollouts").all()
    step_files(tmp_path, "rollouts/trained").path(2, "rank0").unlink()
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["logprobs"][:2] = [float("nan"), float("-inf")]
    rows[1] |= {"token_ids": [], "logprobs": [], "text": ""}
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    found = shown(tmp_path)
    assert found["sums/0", 2, 0]["sampler"][:2] == [-1000, -1000]
    assert found["sums/0", 2, 1]["tokens"] == []
    for text in ("no tokenizer", None):
        (tmp_path / TOKENIZER).write_text(text) if text else (tmp_path / TOKENIZER).unlink()
        found = shown(tmp_path)
        assert found["sums/0", 2, 0]["tokens"] == [rows[0]["text"]]
        json.dumps(read_recorded(tmp_path), allow_nan=False)


def hostile(number: int, step: int, sibling: int) -> tuple[str, float | None]:
    scores = (float(step == 6), None, 0.5 if step == 2 else -1.0, 0.0)
    return HOSTILE, (0.5, None, 0.5, 0.5)[sibling] if number == 4 else scores[sibling]


SEEN = """(() => {
  const texts = (selector) => [...document.querySelectorAll(selector)].map((one) => one.textContent);
  return {
    labels: texts("#prompts span"),
    needed: document.documentElement.scrollWidth, width: document.documentElement.clientWidth,
    prompts: [...document.querySelectorAll("#prompts button")].map((one) => one.value).sort(),
    open: document.querySelector("#prompts button[aria-pressed=true]")?.value ?? null,
    steps: texts(".responses h3").map((title) => Number(title.split(" ")[1])), responses: texts(".tokens"),
    facts: texts(".responses .quiet"), clipped: texts(".tokens .clipped_high").length,
    masked: texts(".tokens .masked").length, red: texts(".tokens .low").length, blue: texts(".tokens .high").length,
    hacked: window.hacked ?? 0, images: document.images.length, scripts: document.scripts.length,
    letters: [..."שלום"].map((letter) => [...document.querySelectorAll(".responses article:first-child .tokens span")]
      .find(({ textContent }) => textContent === letter)?.getBoundingClientRect().left),
    token: texts("#token")[0], prompt: texts(".prompt"),
    wide: [...document.querySelectorAll(".tokens")].some((one) => one.scrollWidth > one.clientWidth),
  };
})()"""
SET = """((values) => {
  const form = document.getElementById("filters");
  for (const select of form) select.value = values[select.name] ?? select.options[0].value;
  form.dispatchEvent(new Event("change"));
})"""
CHOICES = "[...document.getElementById('filters')].map((one) => [...one.options].map(({ value }) => value))"
IS_READY = "document.readyState === 'complete' && !!document.querySelector('.tokens')"
OUTCOMES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "any": lambda one: True,
    "score 1 or more": lambda one: one["score"] == 1,
    "score between 0 and 1": lambda one: one["score"] == 0.5,
    "score 0 or less": lambda one: one["score"] in (0, -1),
    "could not be graded": lambda one: one["score"] is None,
    "cut off": lambda one: one["sibling"] == 3,
    "has clipped or masked tokens": lambda one: one["sibling"] != 2,
}


@pytest.mark.medium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_hostile_rollouts_as_text_and_filters_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_recorded(tmp_path / "run", answer=hostile, question=HOSTILE, begun=HOSTILE)
    assert report.main([str(tmp_path / "run"), "--no-pictures"]) == 0
    main = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<a href="report/rollouts.html">' in main
    page = tmp_path / "run" / "report" / "rollouts.html"
    assert page.read_text(encoding="utf-8").count("</script>") == 2
    assert not re.search(r"(src|href)=\"(?!data:)", page.read_text(encoding="utf-8"))
    recorded = shown(tmp_path / "run")
    domains = {f"sums/{number}": ("logic", "math")[number // 2 % 2] for number in (0, 2, 4, 6)}

    async def look() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with Browser(tmp_path / "profile") as browser:
            for name, width in (("phone", 390), ("desk", 1280)):
                await browser.show(width, 800)
                await browser.open(page.as_uri())
                await browser.until(IS_READY)
                found[name] = await browser.run(SEEN)
            found["choices"] = await browser.run(CHOICES)
            for step, domain, outcome in [*(("", "", one) for one in OUTCOMES), ("4", "math", "any")]:
                values = {"step": step, "domain": domain, "outcome": outcome}
                await browser.run(f"{SET}({json.dumps(values)})")
                found[step, domain, outcome] = await browser.run(SEEN)
            values = {"colour": found["choices"][3][1], "step": "4"}
            await browser.run(f"{SET}({json.dumps(values)})")
            await browser.run("document.querySelector('.siblings button[title=\"rollout 3\"]').click()")
            await browser.run("document.querySelector('.tokens .clipped_high').click()")
            found["class"] = await browser.run("document.querySelector('.tokens .clipped_high').className")
            found["difference"] = await browser.run(SEEN)
            found["errors"] = browser.errors
        return found

    found = asyncio.run(look())
    assert found["errors"] == []
    for view in ("phone", "desk"):
        seen = found[view]
        assert seen["needed"] <= seen["width"]
        assert not seen["wide"]
        assert seen["prompt"] == [visible(f"<user>Question 10: {HOSTILE}<assistant>"), visible(HOSTILE)]
        # Without what all prompts begin and end with.
        assert sorted(seen["labels"]) == ["10", "12", "14", "16"]
        assert (seen["hacked"], seen["images"], seen["scripts"]) == (0, 0, 2)
        assert seen["steps"] == [2, 4, 6]
        text = visible(HOSTILE) + "<|end|>"
        assert [response.replace("·", "") for response in seen["responses"]] == [text] * 3
        assert "·" in seen["responses"][0]  # the first bytes of 😀
        assert seen["letters"] == sorted(seen["letters"], reverse=True)  # Hebrew is read from the right
        assert "score 1.00, right" in seen["facts"][-1]  # the best is open
        assert seen["red"] > 50
        assert seen["masked"] == 2  # the best of step 2 was not trained on
    assert found["phone"]["width"] == 390
    assert found["choices"][:2] == [["", "2", "4", "6"], ["", "logic", "math"]]
    assert found["choices"][2] == list(OUTCOMES)
    for step, domain, outcome in [key for key in found if isinstance(key, tuple)]:
        seen = found[step, domain, outcome]
        fitting = {
            name
            for (name, of_step, _), one in recorded.items()
            if OUTCOMES[outcome](one) and domain in ("", domains[name]) and step in ("", str(of_step))
        }
        assert seen["prompts"] == sorted(fitting), (step, domain, outcome)
        of_open = {at for name, at, _ in recorded if name == seen["open"] and at <= int(step or 6)}
        assert seen["steps"] == sorted(of_open), (step, domain, outcome)  # beside a step, those before it
    seen = found["difference"]
    assert seen["steps"] == [2, 4]
    assert min(seen["clipped"], seen["red"], seen["blue"]) > 0
    pattern = r'".*" · sampler (.+) \(probability .+\) · trainer (.+) · clipped high'
    said = re.fullmatch(pattern, seen["token"])
    assert said
    sampler, trainer = (float(number.replace("−", "-")) for number in said.groups())
    assert found["class"] == f"{'high' if trainer > sampler else 'low'} clipped_high"
