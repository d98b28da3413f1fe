"""Tests of the picture of a training step: its files exist, and a browser can draw it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
NAME = re.compile(r"[a-z_]+(?:/[a-z_]+)+(?:\.py)?|[a-z_]+\.py")
WIDTH_OF_LETTER = {"file": 7.6, "name": 10.0, "place": 8.6, "flow": 7.2, "": 7.7}
"""Mean width of a character by class of text, in the picture's units, for DejaVu, which is wider than most fonts."""


def texts() -> list[ElementTree.Element]:
    return list(ElementTree.parse(PICTURE).getroot().iter("{http://www.w3.org/2000/svg}text"))


def test_the_files_on_it_exist() -> None:
    names = [
        name for text in texts() for name in NAME.findall(text.text or "") if text.get("class") == "file"
    ]
    missing = [
        name for name in names if not any((base / name).exists() for base in (ROOT, ROOT / "nemo_prorl"))
    ]
    assert len(names) > 20
    assert missing == []


def test_texts_stay_in_their_boxes() -> None:
    boxes = [
        tuple(float(box.get(key, 0)) for key in ("x", "y", "width", "height"))
        for box in ElementTree.parse(PICTURE).getroot().iter("{http://www.w3.org/2000/svg}rect")
    ]
    for text in texts():
        x, y = float(text.get("x", "")), float(text.get("y", ""))
        around = [box for box in boxes if box[0] <= x <= box[0] + box[2] and box[1] <= y <= box[1] + box[3]]
        left, _, width, _ = min(around, key=lambda box: box[2])
        length = WIDTH_OF_LETTER[text.get("class", "")] * len(text.text or "")
        start = x - length if text.get("text-anchor") == "end" else x
        assert left <= start, text.text
        assert start + length <= left + width, text.text
