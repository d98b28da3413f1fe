"""Builds prompt files from public data sets, shows their rows, and shows the pass rates of a run's prompts."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from nemo_prorl.commands.ending import say, show
from nemo_prorl.commands.parsing import PROGRAM, Parser
from nemo_prorl.config import BegunConfig, ConfigError, DataBuildConfig
from nemo_prorl.run_folder.storage import check_writable, read_json

if TYPE_CHECKING:
    from nemo_prorl.data.building.source import Source, Submit
    from nemo_prorl.data.own import RejectedRow
    from nemo_prorl.data.rows import Row, RowFile


def main(arguments: Sequence[str]) -> int:
    """Runs one of the subcommands and returns its exit code: 1 if `build` could not finish."""
    commands = {"list": _list, "build": _build, "show": _show, "difficulty": _difficulty}
    if not arguments or arguments[0] in ("-h", "--help"):
        parts = [f"  {name:<11} {command.__doc__}" for name, command in commands.items()]
        hint = f"`{PROGRAM} data PART --help` shows its arguments. docs/data.md has the row type."
        show([f"usage: {PROGRAM} data PART ...", "", __doc__ or "", "", *parts, "", hint])
        if arguments:
            raise SystemExit(0)
        return 2
    if arguments[0] not in commands:
        raise ConfigError(f"data {arguments[0]} is not a command: write data {', data '.join(commands)}.")
    return commands[arguments[0]](arguments[1:])


def _list(arguments: Sequence[str]) -> int:
    """Lists the sources of `data build`, and which of them are built."""
    parser = Parser("data list", _list.__doc__)
    parser.path("--out", "OUT", "where sets are built (default: data)", default=Path("data"))
    out = parser.parse_args(arguments).out
    from nemo_prorl.data.building.source import sources

    lines = []
    for source in sources().values():
        manifest = out / source.name / "manifest.json"
        state = "not built"
        if manifest.is_file():
            rows = read_json(manifest).get("num_rows", {})
            state = ", ".join(f"{rows[split]:,} {split}" for split in rows) or "damaged: build it again"
        origin = source.hub_id or "the library itself"
        lines += [
            f"{source.name:<18} {source.domain:<12} {state}",
            f"{'':<18} {source.summary}",
            f"{'':<18} from {origin}; {source.licence}\n",
        ]
    show(lines)
    return 0


def _build(arguments: Sequence[str]) -> int:
    """Writes data/NAME/{train,validation}.parquet with manifest.json and overlap.json."""
    from nemo_prorl.config.compose import data_build_options
    from nemo_prorl.config.help import entries, entries_text

    listed = [*entries_text(entries(DataBuildConfig)), "", "Options of begun, in place of these:"]
    parser = Parser(
        "data build", _build.__doc__, "\n".join([*listed, *entries_text(entries(BegunConfig))[1:]])
    )
    parser.option("words", "NAME | KEY=VALUE", "a source, `all` or `begun`; or an option", nargs="+")
    words = parser.parse_args(arguments).words
    names = [word for word in words if "=" not in word]
    given = [word for word in words if "=" in word]
    if "begun" in names:
        if len(names) > 1:
            raise ConfigError("begun has options of its own: build it alone.")
        from nemo_prorl.data.building import begun

        of_begun = data_build_options(given, BegunConfig)
        check_writable(f"out={of_begun.out}", Path(of_begun.out))
        _say_built(begun.build(of_begun), of_begun.out)
        return 0
    options = data_build_options(given, DataBuildConfig)
    chosen = _chosen(names, options)
    from nemo_prorl.data.building import chat, pipeline, verify
    from reward.client import RewardServiceError

    try:
        with _grader(options) as submit:
            for source in chosen:
                _say_built(pipeline.build(source, options, submit), options.out)
    except (verify.GradingFailed, chat.EndpointFailed, RewardServiceError) as reason:
        return say(reason, 1)
    return 0


def _say_built(built: Mapping[str, Any], out: str) -> None:
    """Prints what a manifest counts."""
    rows = ", ".join(f"{count:,} {split}" for split, count in built["num_rows"].items())
    print(f"{built['name']}: {rows} of {built['num_read']:,} read, in {built['seconds']:g} s")
    for reason, count in built["dropped"].items():
        print(f"  dropped {count:>7,}  {reason}")
    for file, found in built["overlap"]["evaluation"].items():
        print(
            f"  against {file}: {found['num_matched_rows']} rows match {found['num_matched_problems']} of "
            f"{found['num_problems']} problems"
        )
    print(f"  {Path(out) / built['name']}: {built['content_hash'][:16]}")


def _chosen(names: Sequence[str], options: DataBuildConfig) -> list[Source]:
    """Returns the sources of these names in the order of `sources`. Raises ConfigError for mistakes that can be found
    before any data is read."""
    from nemo_prorl.data.building import load
    from nemo_prorl.data.building.source import get, sources

    if not names:
        raise ConfigError(f"data build names no source: write one of {', '.join(sources())}, begun, or all.")
    papers = [source.name for source in sources().values() if source.paper_rows]
    named = [get(name) for name in (papers if list(names) == ["all"] else names)]
    chosen = [source for source in sources().values() if source in named]
    for source in chosen:
        if source.check_options is not None:
            source.check_options(options)
    if options.source and len(chosen) > 1:
        raise ConfigError("source= belongs to a single data set: name one, or leave source= out.")
    for source in chosen:
        load.check(source, options.source)
    for path in options.against:
        load.files(Path(path))
    check_writable(f"out={options.out}", Path(options.out))
    return chosen


@contextmanager
def _grader(options: DataBuildConfig) -> Iterator[Submit]:
    """Yields a function that sends requests to the configured reward service, or to one that is started here."""
    from nemo_prorl.data.building.verify import GradingFailed
    from nemo_prorl.reward_sources.service import ready_client, running_service

    config = options.reward
    with ExitStack() as stack:
        if config.names_servers:
            yield stack.enter_context(ready_client(config, config.urls)).submit
            return
        service = stack.enter_context(running_service(config, Path(options.out) / "logs"))
        client = stack.enter_context(ready_client(config, [service.url]))

        def close_with_service() -> None:
            service.process.wait()
            client.close()  # or requests would wait for a service that may come back

        Thread(target=close_with_service, daemon=True).start()
        try:
            yield client.submit
        except GradingFailed:
            service.check()  # says how it has ended, if it has
            raise


def _show(arguments: Sequence[str]) -> int:
    """Shows rows of a file of problems, as a run reads them, and says which it would refuse."""
    parser = Parser("data show", _show.__doc__)
    parser.path("file", "FILE", "a file of problems")
    parser.number("--rows", "N", "number of rows (default: 3)", default=3)
    parser.number("--from", "N", "index of the first row (default: 0)", least=0, default=0, dest="start")
    given = parser.parse_args(arguments)
    from nemo_prorl.data.own import RejectedRow, is_prompt_file, read
    from nemo_prorl.data.rows import RowFile

    if given.file.is_file() and is_prompt_file(given.file):
        file = RowFile(given.file)
        rows = _of_prompt_file(file, _places(given, len(file)))
        show(_row_lines(rows, given.start, len(file)))
        return 0
    try:
        reading = read(str(given.file), needs_answer=True)
        refusal = reading.refusal
    except ConfigError as error:  # perhaps only the answers are missing
        reading = read(str(given.file), needs_answer=False)
        refusal = str(error).removeprefix(f"data file {given.file}: ").removesuffix(".")
    lines, found = [reading.sentence], reading.rows
    if refusal:
        lacks_prompts = any(isinstance(row, RejectedRow) and row.row is None for row in found)
        but = "" if lacks_prompts else " Reward functions alone can grade them: they need no answer."
        lines.append(f"A run refuses this file: {refusal}.{but}")
    places = _places(given, len(found))
    show([*lines, *_row_lines(found[places.start : places.stop], given.start, len(found))])
    return 0


def _places(given: argparse.Namespace, num_rows: int) -> range:
    """Returns the indices of the rows to show. Raises ConfigError if there are none."""
    if given.start >= num_rows:
        raise ConfigError(f"--from {given.start} is out of range: {given.file} has rows 0 to {num_rows - 1}.")
    return range(given.start, min(given.start + given.rows, num_rows))


def _of_prompt_file(file: RowFile, places: range) -> Iterator[Row | RejectedRow]:
    """Yields rows of a prompt file, or what a run says of them."""
    from nemo_prorl.data.own import RejectedRow

    for index in places:
        try:
            yield file[index]
        except ConfigError as error:
            yield RejectedRow(where=f"row {index}", why=str(error), row=None)


def _row_lines(rows: Iterable[Row | RejectedRow], start: int, num_rows: int) -> Iterator[str]:
    from nemo_prorl.data.own import RejectedRow

    for index, row in enumerate(rows, start):
        if isinstance(row, RejectedRow):
            said, shown = f"a run refuses it: {row.why}", row.row
        else:
            said, shown = f"{row.uid}  {row.domain}  {row.source}  {row.split}", row
        yield f"--- {index} of {num_rows}  {said}"
        if shown is None:
            continue
        for message in shown.messages:
            yield f"{message['role']}:"
            yield textwrap.indent(_short(message["content"], 1500), "    ")
        yield "task:" if shown.task else "task: none"
        for key, value in shown.task.items():
            yield f"    {key}: {_short(value if isinstance(value, str) else json.dumps(value), 300)}"


def _difficulty(arguments: Sequence[str]) -> int:
    """Shows pass rates of a run's prompts, by domain."""
    parser = Parser("data difficulty", _difficulty.__doc__)
    parser.path("run_dir", "RUN_DIR", "folder of a run")
    run_dir = parser.parse_args(arguments).run_dir
    from nemo_prorl.run_folder.difficulty import read_difficulty, summary
    from nemo_prorl.run_folder.formats import table

    formats = {"prompts": ",", "visits": ",", "first": ".3f", "last": ".3f", "never": ".1%", "always": ".1%"}
    rows = read_difficulty(run_dir)
    if rows.empty:
        raise ConfigError(f"no file of {run_dir / 'difficulty'} can be read: restore the folder.")
    shown = [
        [domain, *(f"{fared[name]:{form}}" for name, form in formats.items())]
        for domain, fared in summary(rows).items()
    ]
    show(table([["domain", *formats], *shown], "<>>>>>>"))
    return 0


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}... ({len(text):,} characters)"
