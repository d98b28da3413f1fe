"""Reads run folders, and writes one page and its pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.report.drawings import Drawing
from nemo_prorl.report.page import page_html, section_drawings
from nemo_prorl.report.panels import Section
from nemo_prorl.report.runs import Run, read_run
from nemo_prorl.storage import replace_text


def write_report(folders: Sequence[Path], out: Path, *, with_pictures: bool = True) -> list[Path]:
    """Writes `out` (HTML), and a picture of each section into the folder of the same name. Returns what was written.

    Raises ConfigError if a folder is not a run's.
    """
    runs = [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    drawn = section_drawings(runs)
    replace_text(out, page_html(runs, drawn))
    return [out, *(_write_pictures(runs, drawn, out.with_suffix("")) if with_pictures else [])]


def _write_pictures(
    runs: Sequence[Run], drawn: Sequence[tuple[Section, Sequence[Drawing]]], folder: Path
) -> list[Path]:
    from nemo_prorl.report.pictures import picture  # matplotlib loads slower than the rest of the report

    folder.mkdir(exist_ok=True)
    names = ", ".join(run.name for run in runs)
    written = []
    for section, drawings in drawn:
        written.append(folder / f"{section.name}.png")
        picture(drawings, written[-1], title=f"{names}: {section.title.lower()}")
    return written


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the folders' names, with their parents' if two have the same name."""
    names = [folder.resolve().name for folder in folders]
    times = Counter(names)
    return [
        name if times[name] == 1 else str(Path(*folder.resolve().parts[-2:]))
        for name, folder in zip(names, folders, strict=True)
    ]
