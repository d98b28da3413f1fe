"""Shows one run, or several side by side, as an HTML page with charts: as a file with pictures, or live."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.storage import check_writable_file


def main(arguments: Sequence[str]) -> int:
    """Writes the page and the pictures, or serves the page until Ctrl-C, and returns the exit code."""
    parser = Parser("report", __doc__)
    parser.path("runs", "RUN_DIR", "folder of a run, live or finished", nargs="*")
    parser.path(
        "--out",
        "FILE.html",
        "page to write; pictures and rollouts go into the folder FILE beside it "
        "(default: RUN_DIR/report.html, of several runs comparison.html)",
    )
    parser.flag("--no-pictures", "writes no pictures, in a third of the time")
    parser.flag("--open", "opens the page in the browser")
    parser.option(
        "--serve",
        "PORT",
        "instead of writing files, serves the page, always up to date, to browsers on this machine until Ctrl-C; "
        "the run may start later (default: port 8765; 0: any free port)",
        nargs="?",
        const="",
    )
    words = [  # in `report --serve RUN_DIR`, RUN_DIR is no port
        "--serve=" if word == "--serve" and not after.isdecimal() else word
        for word, after in pairwise([*arguments, ""])
    ]
    options = parser.parse_intermixed_args(words)
    if not options.runs:
        parser.error("RUN_DIR is missing: name the folder of a run")
    if options.serve is not None:
        if options.out or options.no_pictures:
            raise ConfigError("--serve writes no files: leave out --out and --no-pictures.")
        for folder in options.runs:
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"RUN_DIR={folder} is a file: write the folder of a run.")
        from nemo_prorl.report import serve

        port = int(options.serve or serve.PORT)
        if port > 65535:
            raise ConfigError(f"--serve {port} is not a port: write a number from 1024 to 65535.")
        serve.serve(options.runs, port, opens=options.open)
        return 0
    default = options.runs[0] / "report.html" if len(options.runs) == 1 else Path("comparison.html")
    out: Path = options.out or default
    if out.suffix != ".html":
        raise ConfigError(f"--out {out} is not an HTML file: write a name that ends in .html.")
    if options.out or out.parent.is_dir():  # otherwise RUN_DIR does not exist, which write_report reports
        check_writable_file(f"--out {out}", out)
    from nemo_prorl.report.page import write_report

    written = write_report(options.runs, out, with_pictures=not options.no_pictures)
    pictures = [path for path in written if path.suffix == ".png"]
    pages = " and ".join(str(path) for path in written if path not in pictures)
    show([f"wrote {pages}" + (f", and {len(pictures)} pictures in {pictures[0].parent}" if pictures else "")])
    if options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0
