"""Tests of the page's texts: the same prompts at three validations, and no injected HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.report.page import page_html, section_drawings
from nemo_prorl.report.texts import HEAD, TAIL, read_conversations, visible
from nemo_prorl.run_folder.run import read_run
from tests.report.made_up_runs import write_run


def write_samples(run_dir: Path, step: int, *records: dict[str, Any]) -> None:
    whole = {"domain": "math", "source": "sums", "prompt": "3 + 4?", "score": 0.5, "verdict": "graded"}
    whole |= {"step": step, "finish": "stop", "num_tokens": 7, "response": "seven"}
    path = run_dir / "samples" / f"step-{step:08d}-main.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(whole | record) + "\n" for record in records))


def test_a_prompt_is_followed_through_first_middle_and_last_validation(tmp_path: Path) -> None:
    for step in (0, 20, 40, 60, 80):
        records = [{"uid": "a", "response": response} for response in (f"at {step}", "a sibling")]
        write_samples(tmp_path, step, *records)
    (conversation,) = read_conversations(tmp_path)
    shown = [(response["step"], response["text"]) for response in conversation["responses"]]
    assert shown == [(0, "at 0"), (40, "at 40"), (80, "at 80")]


def test_prompts_that_a_validation_lacks_are_left_out_and_each_domain_has_three(tmp_path: Path) -> None:
    for step in (0, 20):
        uids = [f"{domain}{number}" for domain in ("math", "code") for number in range(5)]
        records = [{"uid": uid, "domain": uid[:4]} for uid in uids if uid != f"math{step}"]
        write_samples(tmp_path, step, *records)
    conversations = read_conversations(tmp_path)
    assert [conversation["domain"] for conversation in conversations] == ["code"] * 3 + ["math"] * 3
    assert all(len(conversation["responses"]) == 2 for conversation in conversations)


def test_a_wrong_response_is_shown_first(tmp_path: Path) -> None:
    for step, wrong in ((0, "none"), (20, "b")):
        scores = [("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", float(wrong != "b")), ("b", float(wrong != "b"))]
        records = [{"uid": uid, "score": s, "response": f"{uid}{i}"} for i, (uid, s) in enumerate(scores)]
        write_samples(tmp_path, step, *records)
    shown = [[response["text"] for response in one["responses"]] for one in read_conversations(tmp_path)]
    assert shown == [["b2", "b3"], ["a0", "a0"]]


def test_a_response_to_a_begun_answer_says_so(tmp_path: Path) -> None:
    write_samples(tmp_path, 0, {"uid": "a"}, {"uid": "b", "begun": "se"})
    notes = [one["responses"][0]["note"] for one in read_conversations(tmp_path)]
    assert notes == ["7 tokens", "7 tokens after a begun answer"]


def test_a_long_response_keeps_its_beginning_and_its_answer(tmp_path: Path) -> None:
    write_samples(tmp_path, 0, {"uid": "a", "response": "b" * HEAD + "x" * 12_345 + "e" * TAIL})
    text = read_conversations(tmp_path)[0]["responses"][0]["text"]
    assert text.startswith("b" * HEAD + "\n")
    assert text.endswith("\n" + "e" * TAIL)
    assert "12,345" in text


def test_characters_that_a_browser_obeys_are_spelled_out(tmp_path: Path) -> None:
    text = "a\u202eb\u200d\x00\t\n\u2028é😀ש"
    spelled = "a‹U+202E›b‹U+200D›‹U+0000›\t\n‹U+2028›é😀ש"
    assert (visible(text), visible("\ud800")) == (spelled, "‹U+D800›")
    for gap in ("", "x" * (HEAD + TAIL)):
        write_samples(tmp_path, 0, {"uid": "a", "prompt": text + gap + text, "response": text + gap + text})
        (conversation,) = read_conversations(tmp_path)
        for shown in (conversation["prompt"], conversation["responses"][0]["text"]):
            assert shown.startswith(spelled)
            assert shown.endswith(spelled)


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (0, 20, 40):
        write_samples(tmp_path, step, {"uid": "a"})
    damaged = tmp_path / "samples" / "step-00000020-main.jsonl"
    for content in (damaged.read_bytes()[:-9], b"\xff\n", b"5\n"):
        damaged.write_bytes(content)
        (conversation,) = read_conversations(tmp_path)
        assert [response["step"] for response in conversation["responses"]] == [0, 40]
    said = capsys.readouterr().err
    assert f"{damaged} has 1 damaged line(s)" in said
    assert f"skipped {damaged}" in said, "a line of another kind"


def test_the_page_shows_texts_as_text(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    bare = read_run(tmp_path / "run")
    assert 'id="texts"' not in page_html([bare], section_drawings([bare]))
    write_samples(
        tmp_path / "run", 0, {"uid": "a", "response": "<script>alert(1)</script>", "finish": "length"}
    )
    run = read_run(tmp_path / "run")
    page = page_html([run], section_drawings([run]))
    assert 'id="texts"' in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "7 tokens, not ended" in page
