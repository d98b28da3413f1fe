"""Tests of answers as frames: they come back as they were, and a frame that no worker sends is an error."""

from __future__ import annotations

from typing import Any

import pytest

from reward import frames
from reward.answers import Failed, Grade, Invalid, PluginRaised, Reply, Retry

SENT = (
    Grade(score=0.5, verdict="partial", details={"followed": [True, False]}),
    Invalid("no such task"),
    PluginRaised("it raised KeyError", "Traceback ..."),
    Retry("no module"),
    Failed("a defect"),
)
FAILED = {"Failed": {"reason": "a defect"}}


def test_a_reply_comes_back_as_it_was() -> None:
    reply = Reply(SENT, retire=True, spent_s=1.5)
    assert Reply.from_frame(frames.decode(frames.body(reply.to_frame()))) == reply


@pytest.mark.parametrize(
    "frame",
    [
        None,
        [],
        "answers",
        {"answers": [FAILED]},
        {"answers": [], "retire": False, "spent_s": 0.0},
        {"answers": None, "retire": False, "spent_s": 0.0},
        {"answers": [FAILED], "retire": False, "spent_s": "long"},
        {"answers": ["Failed"], "retire": False, "spent_s": 0.0},
        {"answers": [{}], "retire": False, "spent_s": 0.0},
        {"answers": [{"TimedOut": {}}], "retire": False, "spent_s": 0.0},
        {"answers": [{"Invalid": {"reason": "a", "score": 1.0}}], "retire": False, "spent_s": 0.0},
        {"answers": [{"Invalid": []}], "retire": False, "spent_s": 0.0},
    ],
)
def test_a_frame_that_no_worker_sends_is_an_error(frame: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        Reply.from_frame(frame)
