"""How times, numbers and tables are written."""

from __future__ import annotations

import pytest

from nemo_prorl.run_folder.formats import duration, large, number_text, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (12345, "3.4 h"), (1.7e6, "19.7 d")],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (12345.6, "12,346"), (123.456, "123.5"), (0.12345, "0.123"), (2e-6, "2e-06")],
)
def test_a_number_has_about_three_digits(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(840, "840"), (12345, "12.3 k"), (1.44e9, "1.44 B"), (3e12, "3.00 T"), (123e6, "123 M")],
)
def test_a_count_has_a_unit(value: float, text: str) -> None:
    assert large(value) == text


def test_a_table_is_aligned_and_cuts_its_first_column() -> None:
    rows = [["run", "step"], ["a" * 12 + "end", "12"]]
    assert table(rows, "<>") == ["run              step", "aaaaaaaaaaaaend    12"]
    assert table(rows, "<>", 20) == ["run             step", "…aaaaaaaaaaend    12"]
    assert len(table(rows, "<>", 5)[0]) == 12 + 6
