"""Fails if a docstring does not stand alone: if one of its sentences begins with "Of", or it begins with a bracket.

    python scripts/docstrings.py [FILE ...]    # in the repository's root

Without files, it reads all of FOLDERS. A string below an attribute counts as well.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("nemo_prorl", "reward", "slurm", "benchmarks", "scripts")
HANGING = re.compile(r"\(|(.*[.:;!?]\s+)?Of\s", re.DOTALL)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each string that is a statement of its own."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def main() -> int:
    """Prints every docstring that does not stand alone and returns the exit code."""
    given = [Path(name) for name in sys.argv[1:]]
    files = given or [path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))]
    hanging = [
        f"{path}:{line}: {' '.join(text.split())[:80]}"
        for path in files
        for line, text in docstrings(path.read_text(encoding="utf-8"))
        if HANGING.match(text)
    ]
    print(*hanging, sep="\n", end="\n" if hanging else "")
    return int(bool(hanging))


if __name__ == "__main__":
    sys.exit(main())
