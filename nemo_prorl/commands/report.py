"""Writes a report of one run, or of several side by side, as one HTML page with charts, and as pictures."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    parser = Parser("report", __doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN_DIR", help="folder of a run, live or finished"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.html",
        help="page to write; pictures go into the folder FILE beside it "
        "(default: RUN_DIR/report.html, of several runs comparison.html)",
    )
    parser.add_argument("--no-pictures", action="store_true", help="the page only, in a third of the time")
    parser.add_argument("--open", action="store_true", help="shows the page in the browser")
    options = parser.parse_args(arguments)
    out: Path = options.out or (
        options.runs[0] / "report.html" if len(options.runs) == 1 else Path("comparison.html")
    )
    if out.suffix != ".html":
        raise ConfigError(f"--out {out} is not an HTML file: write a name that ends in .html.")
    from nemo_prorl.compose import check_writable

    if options.out or out.parent.is_dir():  # a run that is not there is the mistake then
        check_writable(f"--out {out}", out.parent)
    from nemo_prorl.report.write import write_report

    page, *pictures = write_report(options.runs, out, with_pictures=not options.no_pictures)
    print(f"wrote {page}" + (f" and {len(pictures)} pictures in {pictures[0].parent}" if pictures else ""))
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0
