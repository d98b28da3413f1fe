"""Tests of the arguments that commands share."""

from __future__ import annotations

import pytest

from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError


@pytest.mark.parametrize("text", ["0", "-2", "1.5", "x", ""])
def test_a_number_below_the_least_is_one_sentence(text: str) -> None:
    parser = Parser("show", "Shows rows.")
    parser.number("--rows", "N", "number of rows", default=3)
    assert parser.parse_args([]).rows == 3
    assert parser.parse_args(["--rows", "1"]).rows == 1
    with pytest.raises(
        ConfigError, match=f"argument --rows: write a whole number of at least 1 instead of {text}"
    ):
        parser.parse_args([f"--rows={text}"])
