"""The rules by which two values are equal, and the types of values, with the sentences that `reward explain` says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.resources import files
from typing import Any

_SENTENCES = json.loads(files("reward").joinpath("data/rules.json").read_text("utf-8"))
TYPES: Mapping[str, str] = _SENTENCES["types"]
"""What `answer_type` and `gold_type` in a grade's details mean."""


class Rule(Enum):
    """What decided a comparison: the `rule` in a grade's details."""

    def when(self, holds: object) -> Rule | None:
        """Returns this rule if a condition holds, else None."""
        return self if holds else None

    @property
    def accepts(self) -> bool:
        """Whether two values that it decided on are equal."""
        return self not in (Rule.DIFFERS, Rule.NO_RULE, Rule.NOT_EVALUATED, Rule.NOT_COMPUTED)

    @property
    def sentence(self) -> str:
        """What `reward explain` says of it."""
        return str(_SENTENCES["rules"][self.value])

    SAME_PAGE = "same page"
    SAME_TEXT = "same text"
    DIFFERS = "differs"
    NO_RULE = "no rule"
    NOT_EVALUATED = "not evaluated"
    NOT_COMPUTED = "sympy cannot compute it"
    NUMBER = "number"
    TWELVE_DIGITS = "number to twelve digits"
    ROUNDED = "rounded"
    WITHOUT_UNIT = "without its unit"
    SIDE_OF_A_CHAIN = "side of a chain"
    OPTIONS = "options"
    PERCENT_WITHOUT_SIGN = "percent without its sign"
    PERCENT_AS_NUMBER = "percent as a number"
    ANGLE_IN_RADIANS = "angle in radians"
    EXPRESSION = "expression"
    VECTOR = "vector"
    QUANTITY = "quantity"
    OTHER_UNIT = "quantity in another unit"
    COMPOUND = "compound"
    EQUATION = "equation"
    INEQUALITY = "inequality"
    RELATION = "relation"
    VALUE_OF_A_NAME = "value of a name"
    VALUE_OF_A_CHAIN = "value of a chain"
    CONGRUENCE = "congruence"
    RESIDUE = "residue"
    SET_OF_NUMBERS = "set of numbers"
    SET = "set"
    LIST = "list"
    OR = "or"
    EVERY_FORM = "every form"
    TUPLE = "tuple"
    CONDITION = "condition"
    FAMILY = "family"
    MATRIX = "matrix"
    CASES = "cases"
    RATIO = "ratio"
    RATIO_AS_QUOTIENT = "ratio as quotient"
    CLOCK = "clock"
    DATE = "date"
    OPTION = "option"
    WORDS = "words"
    FORMULA = "formula"
    PROPOSITION = "proposition"
    NAME = "name"
    NUMERAL = "numeral"
    NUMERAL_WITHOUT_BASE = "numeral without its base"


def explained(details: Mapping[str, Any]) -> Iterator[str]:
    """Yields the sentence for the rule that a grade's details name, if they name one."""
    if "rule" in details:
        rule = Rule(details["rule"])
        kind = TYPES[details.get("gold_type", "page")]
        yield f"{rule.sentence}, compared as {kind}" if rule is Rule.DIFFERS else rule.sentence
