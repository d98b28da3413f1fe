"""Fills the page's template and writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nemo_prorl.compose import to_dict
from nemo_prorl.config import RunConfig
from nemo_prorl.report.charts import plotly_figure
from nemo_prorl.report.curves import curve_of
from nemo_prorl.report.drawings import Drawing, draw, stage_spans
from nemo_prorl.report.events import Kind, differences, events_of
from nemo_prorl.report.health import bests_of, duration, findings_of, last_decision, num_tokens, wall_s
from nemo_prorl.report.panels import SECTIONS, Section
from nemo_prorl.report.runs import Run, flatten
from nemo_prorl.training.lives import hours_by_stage

PAGE = Path(__file__).parent / "page"
NUM_COLOURS = 10
"""Line colours in page/page.css; page/page.js has the same number."""


def section_drawings(runs: Sequence[Run]) -> list[tuple[Section, list[Drawing]]]:
    """Returns every section for which the runs have numbers."""
    drawn = [
        (section, [drawing for panel in section.panels for drawing in draw(panel, runs)])
        for section in SECTIONS
    ]
    return [(section, drawings) for section, drawings in drawn if drawings]


def page_html(runs: Sequence[Run], drawn: Sequence[tuple[Section, Sequence[Drawing]]]) -> str:
    """Returns the whole page, including styles, charts and the code that draws them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = {drawing.panel.name: plotly_figure(drawing) for _, drawings in drawn for drawing in drawings}
    views = [_run_view(run) for run in runs]
    tables = [table for run in runs for table in run.tables]
    return environment.get_template("page.html").render(
        title=runs[0].name if len(runs) == 1 else " · ".join(run.name for run in runs),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=views,
        single=views[0] if len(runs) == 1 else None,
        comparison=_comparison(runs),
        held_out=_held_out(runs),
        sections=[_section_view(section, drawings, figures) for section, drawings in drawn],
        evaluations=[
            {"title": table.title, "note": table.note, "columns": table.columns, "rows": _shown(table.rows)}
            for table in tables
        ],
        unread_tables=[name for run in runs for name in run.unread_tables],
        differences=_differences(runs),
        css=Markup((PAGE / "page.css").read_text(encoding="utf-8")),
        js=Markup((PAGE / "page.js").read_text(encoding="utf-8")),
        plotly_js=Markup(get_plotlyjs()),
        # "<" in a metric's name would close the script element that contains it.
        charts_json=Markup(
            json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        ),
    )


def shown(value: Any) -> str:
    """Formats a number or option for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e7):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.3f}" if 0.01 <= abs(value) < 10 else f"{value:,.4g}"
    return "–" if value is None else str(value)


def _section_view(
    section: Section, drawings: Sequence[Drawing], figures: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    charts = [
        {
            "name": drawing.panel.name,
            "title": drawing.panel.title,
            "unit": drawing.panel.unit,
            "reading": drawing.panel.reading,
            "description": drawing.description,
            "height": figures[drawing.panel.name]["layout"]["height"],
            "lines": [{"label": line.label, "css": _css_colour(line.colour)} for line in drawing.lines],
        }
        for drawing in drawings
    ]
    return {"name": section.name, "title": section.title, "intro": section.intro, "charts": charts}


def _css_colour(number: int) -> str:
    return f"var(--line-{(number - 1) % NUM_COLOURS + 1})" if number else "var(--ink)"


def _run_view(run: Run) -> dict[str, Any]:
    findings = findings_of(run)
    warnings = [finding for finding in findings if not finding.is_fine]
    options = run.configs.get(str(run.last["stage"]), {})
    return {
        "name": run.name,
        "folder": str(run.folder),
        "status": run.status,
        "position": f"stage {run.last['stage']}, step {run.last['step']:,}",
        "num_warnings": len(warnings),
        "verdict": _verdict(len(warnings), len(findings)),
        "findings": findings,
        "facts": _facts(run),
        "timeline": _timeline(run),
        "events": [
            {
                "step": f"{event.step:,}",
                "stage": event.stage,
                "kind": event.kind.value,
                "text": event.text,
                "numbers": ", ".join(f"{name} {shown(value)}" for name, value in event.numbers.items()),
            }
            for event in events_of(run)
        ],
        "unusual": _unusual(options),
        "options": [(name, shown(value)) for name, value in options.items()],
        "provenance": _shown(flatten(run.provenance)),
        "numbers": _numbers(run),
        "conversations": run.conversations,
    }


def _verdict(num_warnings: int, num_checks: int) -> str:
    if num_warnings == 0:
        return f"Nothing stands out in {num_checks} checks."
    return f"{num_warnings} of {num_checks} checks ask for a look."


def _facts(run: Run) -> list[dict[str, str]]:
    facts = []

    def add(name: str, value: str, note: str = "") -> None:
        facts.append({"name": name, "value": value, "note": note})

    bests = bests_of(run)
    if bests:
        add(
            "Held-out reward",
            f"{bests[0].first:.3f} → {bests[0].last:.3f}",
            f"best {bests[0].best:.3f} at step {bests[0].best_step:,}",
        )
    if run.steps:
        first, last = run.steps[0], run.steps[-1]
        add(
            "Training reward",
            f"{first['reward/mean']:.3f} → {last['reward/mean']:.3f}",
            "first and last step",
        )
    resets = [event for event in events_of(run) if event.kind is Kind.reset]
    add("Resets", str(len(resets)), f"last after step {resets[-1].step:,}" if resets else "none so far")
    decision = last_decision(run)
    if decision:
        add(
            "Last decision",
            str(decision[1].get("action", "")).replace("_", " "),
            f"after step {decision[0]:,}",
        )
    add("Time in steps", duration(wall_s(run)), f"{len(run.steps):,} steps; validation and saves included")
    if hours := hours_by_stage(run.lives):
        of_stages = ", ".join(f"{stage} {_compact(spent)}" for stage, spent in hours.items())
        add(
            "GPU hours" if run.lives[-1].on_gpus else "Hours of CPU ranks",
            _compact(sum(hours.values())),
            f"{of_stages}; {len(run.lives)} start{'s' * (len(run.lives) > 1)}",
        )
    tokens = num_tokens(run)
    if tokens:
        step_s = sum(float(record.get("time/step_s", 0.0)) for record in run.steps)
        add("Tokens sampled", _compact(tokens), f"{_compact(tokens / step_s)} a second" if step_s else "")
    return facts


def _timeline(run: Run) -> dict[str, Any]:
    spans = stage_spans(run)
    if not spans:
        return {"stages": [], "resets": [], "first": "", "last": "", "description": ""}
    first, last = spans[0][0], spans[-1][1]
    resets = [event for event in events_of(run) if event.kind is Kind.reset]
    return {
        "stages": [{"name": name, "steps": end - start} for start, end, name in spans],
        "resets": [
            {
                "percent": round(100 * (event.step - first) / (last - first), 2),
                "text": f"step {event.step}: {event.text}",
            }
            for event in resets
        ],
        "first": f"{first:,}",
        "last": f"{last:,}",
        "description": f"Stages {', '.join(f'{name} to step {end}' for _, end, name in spans)}; "
        f"resets after steps {', '.join(str(event.step) for event in resets) or 'none'}.",
    }


def _comparison(runs: Sequence[Run]) -> dict[str, Any]:
    header = [
        "Run",
        "status",
        "stage",
        "step",
        "held-out reward",
        "best",
        "resets",
        "time in steps",
        "tokens",
        "warnings",
    ]
    rows = []
    for run in runs:
        bests = bests_of(run)
        rows.append(
            (
                run.name,
                run.status,
                run.last["stage"],
                f"{run.last['step']:,}",
                f"{bests[0].first:.3f} → {bests[0].last:.3f}" if bests else "–",
                f"{bests[0].best:.3f}" if bests else "–",
                str(run.last.get("num_resets", 0)),
                duration(wall_s(run)),
                _compact(num_tokens(run)),
                str(sum(not finding.is_fine for finding in findings_of(run))),
            )
        )
    return {"header": header, "rows": rows}


def _held_out(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the held-out rewards: of one run with its best, of several side by side."""
    if len(runs) == 1:
        rows = [
            (best.domain, *(shown(value) for value in (best.first, best.last, best.best, best.best_step)))
            for best in bests_of(runs[0])
        ]
        return {"header": ["Domain", "First", "Now", "Best", "at step"], "rows": rows}
    by_run = [{best.domain: f"{best.first:.3f} → {best.last:.3f}" for best in bests_of(run)} for run in runs]
    domains = dict.fromkeys(domain for changes in by_run for domain in changes)
    rows = [(domain, *(changes.get(domain, "–") for changes in by_run)) for domain in domains]
    return {"header": ["Domain", *(run.name for run in runs)], "rows": rows}


def _differences(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the options that differ between the stages of one run, or between the last stages of several."""
    if len(runs) == 1:
        columns = dict(runs[0].configs)
    else:
        columns = {run.name: run.configs.get(str(run.last["stage"]), {}) for run in runs}
    first = next(iter(columns.values()), {})
    names = dict.fromkeys(name for other in columns.values() for name in differences(first, other))
    rows = [(name, *(shown(options.get(name)) for options in columns.values())) for name in names]
    return {"header": ["Option", *columns], "rows": rows}


def _unusual(options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (option, value, default) where the run differs from nemo_prorl/config.py."""
    if not options:
        return []
    defaults = dict(flatten(to_dict(RunConfig())))
    return [
        (name, shown(value), shown(default))
        for name, (default, value) in differences(defaults, options).items()
    ]


def _numbers(run: Run) -> list[tuple[str, ...]]:
    rows = []
    for key in sorted(run.metrics - {"step", "stage", "controller"}):
        values = curve_of(run.records, key).values
        if len(values):
            found = (values[0], values[-1], values.min(), values.max())
            rows.append((key, *(shown(float(value)) for value in found), f"{len(values):,}"))
    return rows


def _shown(rows: Iterable[Sequence[Any]]) -> list[tuple[str, ...]]:
    return [tuple(shown(value) for value in row) for row in rows]


def _compact(number: float) -> str:
    for size, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.3g}"
