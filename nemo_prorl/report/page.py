"""Reads run folders, fills the page's template, and writes the page and its pictures."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nemo_prorl.config import RunConfig
from nemo_prorl.config.compose import to_dict
from nemo_prorl.report.charts import PLOT_PX, plotly_figure
from nemo_prorl.report.drawings import Drawing, curve_of, draw
from nemo_prorl.report.health import bests_of, checks_of, measurement_differences, num_tokens, wall_s
from nemo_prorl.report.panels import PanelSection, sections
from nemo_prorl.report.rollouts import read_recorded
from nemo_prorl.report.state import facts_of
from nemo_prorl.report.texts import read_conversations
from nemo_prorl.run_folder.events import differences
from nemo_prorl.run_folder.formats import duration, large, number_text
from nemo_prorl.run_folder.metric_docs import metric_doc
from nemo_prorl.run_folder.origin import flatten
from nemo_prorl.run_folder.run import RunFolder, read_run
from nemo_prorl.run_folder.storage import replace_text
from nemo_prorl.types import TOKEN_LIMITS

SectionDrawings = Sequence[tuple[PanelSection, Sequence[Drawing]]]
PAGE = Path(__file__).parent / "page"


def write_report(folders: Sequence[Path], out: Path, *, with_pictures: bool = True) -> list[Path]:
    """Writes `out` (HTML), and into the folder of the same name a picture of each section and, if a single run has
    recorded rollouts, rollouts.html. Returns what was written.

    Raises ConfigError if a folder is not a run's.
    """
    runs = [read_run(folder, name) for folder, name in zip(folders, unique_names(folders), strict=True)]
    drawn = section_drawings(runs)
    written, folder = [out], out.with_suffix("")
    if of_rollouts := rollouts_html(runs[0]) if len(runs) == 1 else "":
        written.append(folder / "rollouts.html")
        replace_text(written[-1], of_rollouts)
    replace_text(out, page_html(runs, drawn, rollouts=f"{folder.name}/rollouts.html" if of_rollouts else ""))
    if with_pictures:
        from nemo_prorl.report.pictures import picture  # matplotlib loads slower than the rest of the report

        folder.mkdir(exist_ok=True)
        names = ", ".join(run.name for run in runs)
        for section, drawings in drawn:
            written.append(folder / f"{section.name}.png")
            picture(drawings, written[-1], title=f"{names}: {section.title.lower()}")
    return written


def unique_names(folders: Sequence[Path]) -> list[str]:
    """Returns the folders' names, with their parents' if two have the same name."""
    names = [folder.resolve().name for folder in folders]
    num_parts = 1 if len({*names}) == len(names) else 2
    return [str(Path(*folder.resolve().parts[-num_parts:])) for folder in folders]


def section_drawings(runs: Sequence[RunFolder]) -> list[tuple[PanelSection, list[Drawing]]]:
    """Returns every section for which the runs have numbers."""
    drawn = (
        (section, [one for panel in section.panels for one in draw(panel, runs)]) for section in sections()
    )
    return [(section, drawings) for section, drawings in drawn if drawings]


def _folded(drawn: SectionDrawings) -> Iterator[tuple[PanelSection, list[Drawing], dict[str, list[str]]]]:
    """Yields each section with the charts to look at and, in words, those that are constant or repeat another."""
    titles: dict[tuple[bytes, bytes], str] = {}
    for section, drawings in drawn:
        shown, constant, repeated = [], [], []
        for drawing in drawings:
            title = drawing.panel.title
            curves = [(line.points.steps.tobytes(), line.points.values.tobytes()) for line in drawing.lines]
            earlier = {titles.setdefault(curve, title) for curve in curves}
            if drawing.constant:
                constant.append(f"{title}: {drawing.constant}")
            elif len(earlier) == 1 and title not in earlier and not drawing.band:
                repeated.append(f"{title} (as {earlier.pop()})")
            else:
                shown.append(drawing)
        yield section, shown, {"Constant": constant, "The same curve as in another chart": repeated}


def page_html(
    runs: Sequence[RunFolder],
    drawn: SectionDrawings,
    *,
    rollouts: str = "",
    is_live: bool = False,
) -> str:
    """Returns the whole page, including styles, charts and the code that draws them. A live page asks its server for
    Plotly's code (/plotly.js) and for what has changed (/); any other is complete. rollouts: path of that page."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    parts = list(_folded(drawn))
    figures = {drawing.panel.name: plotly_figure(drawing) for _, shown, _ in parts for drawing in shown}
    views = [_run_view(run) for run in runs]
    return _filled(
        "page.html",
        title=" · ".join(run.name for run in runs),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=views,
        single=views[0] if len(runs) == 1 else None,
        comparison=[_compared(run) for run in runs],
        held_out=_held_out(runs),
        unlike=measurement_differences(runs),
        sections=parts,
        plot_px=PLOT_PX,
        differences=_differences(runs),
        rollouts=rollouts,
        is_live=is_live,
        js=_part("page.js"),
        plotly_gzip="" if is_live else b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode(),
        # "<" in a metric's name would close the script element that contains it.
        charts_json=Markup(
            json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        ),
    )


def rollouts_html(run: RunFolder) -> str:
    """Returns the page of a run's recorded rollouts; empty if it has none."""
    found = read_recorded(run.folder)
    if found is None:
        return ""
    return _filled("rollouts.html", title=run.name, limits=TOKEN_LIMITS, js=_part("rollouts.js"), **found)


def waiting_html(folders: Sequence[tuple[str, str]]) -> str:
    """Returns the live page of runs (folder, sentence about it) that have not recorded anything yet."""
    return _filled("waiting.html", folders=folders)


def _filled(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["shown"] = shown
    page = environment.get_template(template)
    return page.render(css=_part("page.css"), live_js=_part("live.js"), **values)


def _part(name: str) -> Any:
    from markupsafe import Markup

    return Markup((PAGE / name).read_text(encoding="utf-8"))


def shown(value: Any) -> str:
    """Formats a number or option for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number_text(value)
    return "–" if value is None else str(value)


def _run_view(run: RunFolder) -> dict[str, Any]:
    options = run.options
    unusual = differences(dict(flatten(to_dict(RunConfig()))), options) if options else {}
    checks = checks_of(run)
    # Why a run does not go on stands at the top, and only there.
    trouble = [check for check in checks if check.title == "Progress" and not check.is_fine]
    numbers = []
    for key in sorted(run.metric_names - {"step", "stage", "controller"}):
        values = curve_of(run.full_records, key).values
        if len(values):
            meaning = metric_doc(key).replace("`", "")
            numbers.append((key, values[0], values[-1], values.min(), values.max(), len(values), meaning))
    return {
        "name": run.name,
        "folder": str(run.folder),
        "status": facts_of(run)["state"],
        "trouble": trouble[0].text if trouble else "",
        "position": f"stage {run.last['stage']}, step {run.last['step']:,}",
        "findings": [check for check in checks if check not in trouble],
        "facts": list(_facts(run)),
        "spans": run.stage_spans,
        "resets": run.resets,
        "events": run.events,
        # Where the run differs from the defaults: option, value, default.
        "unusual": [(name, value, default) for name, (default, value) in unusual.items()],
        "options": options,
        "provenance": list(flatten(run.provenance)),
        # A row per metric: name, first, last, smallest and largest value, number of values, meaning.
        "numbers": numbers,
        "conversations": read_conversations(run.folder),
    }


def _facts(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    """Yields (name, value, note)."""
    for best in bests_of(run)[:1]:
        note = f"best {best.best:.3f} at step {best.best_step:,}"
        yield "Held-out reward", f"{best.first:.3f} → {best.last:.3f}", note
    if run.steps:
        first, last = run.steps[0]["reward/mean"], run.steps[-1]["reward/mean"]
        yield "Training reward", f"{first:.3f} → {last:.3f}", "first and last step"
    options = run.options
    if model := options.get("model.path"):
        rank = options.get("lora.rank")
        yield "Model", Path(model).name, f"{model}{f'; low rank {rank}' if rank else ''}"
    prefix = "data.train."
    if files := [name.removeprefix(prefix) for name in options if name.startswith(prefix)]:
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        yield "Data", f"{', '.join(Path(file).stem for file in files[:3])}{more}", str(Path(files[0]).parent)
    rates = curve_of(run.full_records, "optimizer/learning_rate").values
    if len(rates):
        yield "Learning rate", number_text(rates[-1]), "last update"
    yield "Time in steps", duration(wall_s(run)), f"{len(run.steps):,} steps; validation and saves included"
    if hours := run.stage_hours:
        name = "GPU hours" if run.on_gpus else "Hours of CPU ranks"
        of_stages = ", ".join(f"{stage} {number_text(spent)}" for stage, spent in hours.items())
        starts = f"{len(run.starts)} start{'s' * (len(run.starts) > 1)}"
        yield name, number_text(sum(hours.values())), f"{of_stages}; {starts}"
    if tokens := num_tokens(run):
        step_s = sum(float(record.get("time/step_s", 0.0)) for record in run.steps)
        yield "Tokens sampled", large(tokens), f"{large(tokens / step_s)} a second" if step_s else ""


def _compared(run: RunFolder) -> tuple[Any, ...]:
    """Returns the run's row in the table that compares runs; page.html has its header."""
    best = next(iter(bests_of(run)), None)
    held_out = (f"{best.first:.3f} → {best.last:.3f}", f"{best.best:.3f}") if best else ("–", "–")
    position = (run.last["stage"], run.last["step"], *held_out, run.last.get("num_resets", 0))
    num_warnings = sum(not check.is_fine for check in checks_of(run))
    return (
        run.name,
        facts_of(run)["state"],
        *position,
        duration(wall_s(run)),
        large(num_tokens(run)),
        num_warnings,
    )


def _held_out(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Returns the held-out rewards: of one run with its best, of several side by side."""
    if len(runs) == 1:
        bests = bests_of(runs[0])
        rows: list[tuple[Any, ...]] = [(b.domain, b.first, b.last, b.best, b.best_step) for b in bests]
        return {"header": ["Domain", "First", "Now", "Best", "at step"], "rows": rows}
    by_run = [{best.domain: f"{best.first:.3f} → {best.last:.3f}" for best in bests_of(run)} for run in runs]
    domains = dict.fromkeys(domain for changes in by_run for domain in changes)
    rows = [(domain, *(changes.get(domain, "–") for changes in by_run)) for domain in domains]
    return {"header": ["Domain", *(run.name for run in runs)], "rows": rows}


def _differences(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Returns the options that differ between the stages of one run, or between the last stages of several."""
    if len(runs) == 1:
        columns = dict(runs[0].configs)
    else:
        columns = {run.name: run.configs.get(str(run.last["stage"]), {}) for run in runs}
    first = next(iter(columns.values()), {})
    names = dict.fromkeys(name for other in columns.values() for name in differences(first, other))
    rows = [(name, *(options.get(name) for options in columns.values())) for name in names]
    return {"header": ["Option", *columns], "rows": rows}
