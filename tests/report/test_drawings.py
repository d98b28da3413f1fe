"""Tests that panels show recorded metrics, that drawings show what panels specify, and that curves keep what matters
in the records: spikes, ends, resets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_prorl.report import drawings, pictures
from nemo_prorl.report.charts import plotly_figure
from nemo_prorl.report.drawings import Curve, Drawing, curve_of, draw, thinned, trend
from nemo_prorl.report.panels import Panel, expand, names_in, sections
from nemo_prorl.run_folder.difficulty import BANDS, BEFORE, NOW
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.validation_metrics import MEASUREMENT, PROMPT_MEAN
from tests.report.made_up_runs import DOMAINS

PANELS = {panel.name: panel for section in sections() for panel in section.panels}


def lines_of(drawing: Drawing) -> dict[str, drawings.Line]:
    return {line.label: line for line in drawing.lines}


def test_difficulty_panels_show_what_its_files_give() -> None:
    """Of other panels tests/run_folder/test_metric_docs.py knows the metrics that a run records."""
    (section,) = (section for section in sections() if section.name == "difficulty")
    assert {metric for panel in section.panels for metric in panel.series} == {*BANDS, NOW, BEFORE}


def test_every_panel_says_how_to_read_it_and_has_its_own_name() -> None:
    names = [panel.name for section in sections() for panel in section.panels]
    assert len(names) == len(set(names))
    assert all(panel.reading.endswith(".") and len(panel.reading) > 25 for panel in PANELS.values())


def test_braces_stand_for_every_name_that_was_recorded() -> None:
    metrics = ["reward/mean", "reward/math/mean", "reward/code/mean", "a_16", "a_2", "a_1", "a_b/c"]
    assert names_in("reward/{}/mean", metrics) == ["code", "math"]
    assert names_in("a_{}", metrics) == ["1", "2", "16"]
    panel = Panel(name="x", title="", unit="", series={"reward/{}/mean": "in {}", "gone": "gone"}, reading="")
    assert expand(panel, metrics) == [("reward/code/mean", "in code"), ("reward/math/mean", "in math")]


@pytest.mark.medium
def test_a_long_run_is_drawn_with_its_spikes_marks_and_trends(long_run: RunFolder) -> None:
    (kl,) = draw(PANELS["kl"], [long_run])
    (line,) = kl.lines
    recorded = [record["objective/kl_to_reference"] for record in long_run.steps]
    assert line.points.values.max() == max(recorded)
    assert line.trend is not None
    assert len(line.points.steps) <= 800
    assert len(kl.resets) == 15
    assert [name for _, _, name in kl.stages] == [f"run{number}" for number in range(1, 9)]


def test_a_domain_has_one_colour_everywhere(long_run: RunFolder) -> None:
    seen: dict[str, set[int]] = {}
    for name in ("validation", "reward_by_domain", "pass_rate", "mix", "validation_length"):
        (drawing,) = draw(PANELS[name], [long_run])
        for label, line in lines_of(drawing).items():
            seen.setdefault(label, set()).add(line.colour)
    assert seen["all"] == {drawings.INK}
    assert all(len(colours) == 1 for colours in seen.values())
    assert len({*map(min, seen.values())}) == 6


def test_a_colour_has_one_meaning_and_ordered_values_have_ordered_shades(long_run: RunFolder) -> None:
    """Hues stand for a kind of prompts or a domain; of shades every chart has its own, from dark to light."""
    hues: dict[int, set[str]] = {}
    for panel in PANELS.values():
        for drawing in draw(panel, [long_run]):
            shades = [line.colour for line in drawing.lines if line.colour > drawings.NUM_HUES]
            assert shades == sorted(set(shades)), panel.name
            for line in drawing.lines:
                if 0 < line.colour <= drawings.NUM_HUES:
                    hues.setdefault(line.colour, set()).add(line.label)
    assert {label for labels in hues.values() for label in labels} == {*drawings.KINDS, *DOMAINS}
    assert all(len(labels) == 1 for labels in hues.values())
    bands = drawings._colours([*BANDS.values()], DOMAINS)
    places = [bands[label] for label in BANDS.values()]
    assert places == sorted({*places})
    assert min(places) > drawings.NUM_HUES
    brightness = [sum(bytes.fromhex(pictures.PALETTE[place][1:])) for place in range(9, 19)]
    assert len(pictures.PALETTE) == 19
    assert brightness == sorted(brightness)


def test_runs_are_compared_on_the_same_axes(make_run: Callable[..., RunFolder]) -> None:
    runs = [make_run(num_steps=40), make_run(num_steps=60, seed=1)]
    compared = draw(PANELS["clip"], runs)
    assert [drawing.panel.title for drawing in compared][:1] == ["Clipped tokens: above 1 + clip_high"]
    for drawing in compared:
        assert [line.label for line in drawing.lines] == [run.name for run in runs]
        assert [line.colour for line in drawing.lines] == [1, 2]
    names = [drawing.panel.name for panel in PANELS.values() for drawing in draw(panel, runs)]
    assert len(names) == len(set(names))


def test_held_out_curves_of_different_measurements_say_so(make_run: Callable[..., RunFolder]) -> None:
    def measured(name: str) -> RunFolder:
        return make_run(lambda r: r | {MEASUREMENT: name} if PROMPT_MEAN in r else r)

    first, second, other = measured("1"), measured("1"), measured("2")
    alike, unlike = draw(PANELS["validation"], [first, second]), draw(PANELS["validation"], [first, other])
    assert not any("may not compare" in drawing.panel.title for drawing in alike)
    assert all("(may not compare)" in drawing.panel.title for drawing in unlike)
    assert all("cannot be set side by side" in drawing.panel.reading for drawing in unlike)
    titles = [one.panel.title for one in draw(PANELS["no_eos"], [first, other])]
    assert titles == [
        "Rollouts without an end: training",
        "Rollouts without an end: held out (may not compare)",
    ]


def test_a_panel_without_numbers_is_left_out(make_run: Callable[..., RunFolder]) -> None:
    run = make_run(lambda r: {k: v for k, v in r.items() if "entropy" not in k})
    assert draw(PANELS["entropy"], [run]) == []


def test_alternative_texts_have_the_numbers(make_run: Callable[..., RunFolder]) -> None:
    run = make_run(lambda r: r | {"optimizer/grad_norm": 0.25 * r["step"]} if r["step"] else r, num_stages=1)
    (drawing,) = draw(PANELS["grad_norm"], [run])
    assert "0.250 at step 1, 15 at step 60" in drawing.description


@pytest.mark.medium
def test_plotly_and_matplotlib_take_every_drawing(
    make_run: Callable[..., RunFolder], long_run: RunFolder, tmp_path: Path
) -> None:
    """Plotly's own classes accept every property that is set, and a picture has a size."""
    for runs in ([long_run], [make_run(), make_run(seed=2)]):
        for panel in PANELS.values():
            for drawing in draw(panel, runs):
                plotly.graph_objects.Figure(plotly_figure(drawing))
    pictures.picture(
        [draw(PANELS[name], [long_run])[0] for name in ("kl", "phases")], tmp_path / "a.png", title="two"
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert pictures.plt.get_fignums() == []


def test_a_run_of_two_steps_has_marks_at_steps_only(make_run: Callable[..., RunFolder]) -> None:
    for num_steps, between in ((2, 1), (60, None)):
        (drawing,) = draw(PANELS["kl"], [make_run(num_steps=num_steps, num_stages=1)])
        assert plotly_figure(drawing)["layout"]["xaxis"]["dtick"] == between


def test_the_only_domain_is_not_drawn_twice(make_run: Callable[..., RunFolder]) -> None:
    run = make_run(
        lambda record: {key: record[key] for key in record if not {*key.split("/")} & {*DOMAINS[1:]}}
    )
    for name in ("validation", "reward_by_domain"):
        (drawing,) = draw(PANELS[name], [run])
        assert [line.label for line in drawing.lines] == ["all"]
    (drawing,) = draw(PANELS["mix"], [run])
    assert [line.label for line in drawing.lines] == [DOMAINS[0]]


@pytest.mark.medium
def test_a_picture_is_legible(
    make_run: Callable[..., RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are at whole steps, and no title leaves its chart."""
    monkeypatch.setattr(pictures.plt, "close", lambda figure: figure.canvas.draw())
    run = make_run(num_steps=2, num_stages=1)
    drawings = [one for panel in PANELS.values() for one in draw(panel, [run])]
    pictures.picture(drawings, tmp_path / "a.png", title="all")
    for axis, drawing in zip(pictures.plt.gcf().axes, drawings, strict=False):
        assert all(float(tick).is_integer() for tick in axis.get_xticks())
        box, title = axis.get_window_extent(), axis.title.get_window_extent()
        assert title.width <= box.width, drawing.panel.title
    monkeypatch.undo()
    pictures.plt.close("all")


@pytest.mark.parametrize(
    ("values", "is_log", "starts_at_zero"),
    [
        ([1.0, 2.0], False, True),
        ([0.95, 1.05], False, False),  # a ratio around 1 would be flat
        ([0.5, 0.5], False, True),
        ([-1.0, 1.0], False, False),
        ([1.0, 2.0], True, False),
        ([0.0, 2.0], True, True),  # 0 has no logarithm
    ],
)
def test_an_axis_starts_at_zero_unless_that_would_flatten_the_curve(
    values: list[float], is_log: bool, starts_at_zero: bool
) -> None:
    panel = replace(PANELS["kl"], log=is_log)
    line = drawings.Line(label="", colour=1, points=curve(values), trend=None)
    one = Drawing(panel=panel, lines=(line,), resets=(), stages=(), description="")
    assert (one.is_log, one.starts_at_zero) == (is_log and min(values) > 0, starts_at_zero)


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(1.0, len(values) + 1), np.array(values))


def test_a_curve_holds_finite_numbers_only() -> None:
    recorded = [0.5, None, float("nan"), "much", float("inf"), 2]
    records = [{"step": step, "kl": value} for step, value in enumerate(recorded)]
    steps, values = curve_of(records, "kl")
    assert (steps.tolist(), values.tolist()) == ([0, 5], [0.5, 2])
    assert len(curve_of(records, "entropy").steps) == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes_and_makes_nothing_up(values: list[float], most: int) -> None:
    whole = curve(values)
    part = thinned(whole, most)
    assert len(part.steps) <= max(most, 4)
    assert set(zip(*part, strict=True)) <= set(zip(*whole, strict=True))
    assert (np.diff(part.steps) > 0).all()
    assert (part.steps[0], part.steps[-1]) == (whole.steps[0], whole.steps[-1])
    assert (part.values.min(), part.values.max()) == (whole.values.min(), whole.values.max())


def test_a_trend_is_the_mean_of_its_window() -> None:
    values = np.random.default_rng(3).standard_normal(200)
    means = [values[max(0, i - 2) : i + 3].mean() for i in range(200)]
    assert trend(curve(list(values))).values == pytest.approx(means, abs=1e-9)


def test_a_trend_never_looks_across_a_reset() -> None:
    values = [0.3] * 500 + [0.0] * 500
    smooth = trend(curve(values), breaks=[500]).values
    assert smooth[:500] == pytest.approx(0.3)
    assert smooth[500:] == pytest.approx(0.0)
    assert 0.1 < trend(curve(values)).values[499] < 0.25  # and it would, if nobody told it
