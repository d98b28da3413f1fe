"""Tests that every file and function that docs/code_tour.md and the picture of a training step name exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nemo_prorl.config.help import options

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "code_tour.md").read_text(encoding="utf-8")
FILES = [ROOT / name for name in sorted(set(re.findall(r"`((?:nemo_prorl|reward)/[\w/]+\.py)`", PAGE)))]
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", PAGE)))


def exists(name: str) -> bool:
    """Returns whether module.function, module.Class or module.Class.method is defined in a file of that name."""
    module, *path = name.split(".")
    return any(defines(file, path) for file in FILES if file.stem == module)


def defines(file: Path, path: Sequence[str]) -> bool:
    """Returns whether a file defines what the path leads to, such as ["Class", "method"]."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in path:
        defined = {node.name: node for node in body if isinstance(node, DEFINITIONS)}
        if part not in defined:
            return False
        body = defined[part].body
    return True


def test_the_files_exist() -> None:
    assert len(FILES) > 20
    assert len(NAMES) > 30
    assert [file for file in FILES if not file.is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_exists(name: str) -> None:
    assert exists(name) or name in options()


def test_the_files_of_the_picture_exist() -> None:
    picture = ElementTree.parse(ROOT / "docs/images/architecture.svg").getroot()
    texts = [text.text or "" for text in picture.iter() if text.get("class") == "file"]
    names = re.findall(r"[a-z_]+(?:/[a-z_]+)+(?:\.py)?|[a-z_]+\.py", "\n".join(texts))
    bases = (ROOT, ROOT / "nemo_prorl")
    assert len(names) > 20
    assert [name for name in names if not any((base / name).exists() for base in bases)] == []
