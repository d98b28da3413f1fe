"""How times, numbers and tables are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nemo_prorl.run_folder.formats import duration, large, number_text, table


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (
            duration,
            {0.4: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 12345: "3.4 h", 1.7e6: "19.7 d"},
        ),
        (number_text, {3: "3", 12345.6: "12,346", 123.456: "123.5", 0.12345: "0.123", 2e-6: "2e-06"}),
        (large, {840: "840", 12345: "12.3 k", 123e6: "123 M", 1.44e9: "1.44 B", 3e12: "3.00 T"}),
    ],
)
def test_numbers_have_about_three_digits_and_one_unit(
    write: Callable[[float], str], texts: dict[float, str]
) -> None:
    assert {value: write(value) for value in texts} == texts


def test_a_table_is_aligned_and_cuts_its_first_column() -> None:
    rows = [["run", "step"], ["a" * 12 + "end", "12"]]
    assert table(rows, "<>") == ["run              step", "aaaaaaaaaaaaend    12"]
    assert table(rows, "<>", 20) == ["run             step", "…aaaaaaaaaaend    12"]
    assert len(table(rows, "<>", 5)[0]) == 12 + 6
