"""Folders in, one page and its pictures out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.report.page import page_html, section_drawings
from nemo_prorl.report.pictures import picture
from nemo_prorl.report.runs import Run, read_run


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Writes `out` (HTML), and a picture of each section into the folder of the same name. Returns what was written.

    Raises ConfigError for a folder that is not that of a run.
    """
    runs = [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    drawn = section_drawings(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    aside.write_text(page_html(runs, drawn), encoding="utf-8")
    os.replace(aside, out)
    pictures = out.with_suffix("")
    pictures.mkdir(exist_ok=True)
    written = [out]
    for section, drawings in drawn:
        written.append(pictures / f"{section.name}.png")
        picture(drawings, written[-1], title=f"{_title(runs)}: {section.title.lower()}")
    return written


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names; with their parents' where two are called the same."""
    names = [folder.resolve().name for folder in folders]
    times = Counter(names)
    return [
        name if times[name] == 1 else str(Path(*folder.resolve().parts[-2:]))
        for name, folder in zip(names, folders, strict=True)
    ]


def _title(runs: Sequence[Run]) -> str:
    return ", ".join(run.name for run in runs)
