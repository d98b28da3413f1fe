"""The rules by which two values are equal, and the types of values, with the sentences that `reward explain` says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.resources import files
from typing import Any


class Rule(Enum):
    """What decided a comparison. Its value is the `rule` in a grade's details; `sentence` explains it."""

    sentence: str

    def __new__(cls, name: str, sentence: str = "") -> Rule:
        """Makes a rule of its name and its sentence."""
        rule = object.__new__(cls)
        rule._value_, rule.sentence = name, sentence
        return rule

    def when(self, holds: object) -> Rule | None:
        """Returns this rule if a condition holds, else None."""
        return self if holds else None

    @property
    def accepts(self) -> bool:
        """Whether two values that it decided on are equal."""
        return self not in (Rule.DIFFERS, Rule.NO_RULE, Rule.NOT_EVALUATED, Rule.NOT_COMPUTED)

    SAME_PAGE = "same page", "both look the same on the page"
    SAME_TEXT = "same text", "both are the same text"
    DIFFERS = "differs", "they differ"
    NO_RULE = "no rule", "no rule compares these two"
    NOT_EVALUATED = "not evaluated", "the task wants a result, and arithmetic is left to carry out"
    NOT_COMPUTED = "sympy cannot compute it", "sympy cannot compute the difference"
    NUMBER = "number", "numbers are compared exactly, and these are the same"
    TWELVE_DIGITS = (
        "number to twelve digits",
        "a decimal with twelve right digits is as good as the exact number",
    )
    ROUNDED = "rounded", "the gold is a rounded number, and the answer rounds to it"
    WITHOUT_UNIT = "without its unit", "a unit on one side only does not count"
    SIDE_OF_A_CHAIN = "side of a chain", "the gold is a chain of equal numbers, and the answer is one of them"
    OPTIONS = "options", "the same letters of options"
    PERCENT_WITHOUT_SIGN = (
        "percent without its sign",
        "a percent sign on one side only does not count: 20 % is 20",
    )
    PERCENT_AS_NUMBER = "percent as a number", "a percentage may be written as a number: 20 % is 0.2"
    ANGLE_IN_RADIANS = "angle in radians", "an angle in degrees may be written in radians"
    EXPRESSION = "expression", "both expressions have the same value wherever they were computed"
    VECTOR = "vector", "a sum of unit vectors and a tuple have the same parts"
    QUANTITY = "quantity", "the unit and the number are the same"
    OTHER_UNIT = (
        "quantity in another unit",
        "units of one dimension are converted, and the quantities are the same",
    )
    COMPOUND = "compound", "the parts add up to the same quantity"
    EQUATION = "equation", "the equations differ by a constant factor at most"
    INEQUALITY = "inequality", "the inequalities differ by a constant factor at most"
    RELATION = "relation", "equal sides stand in the same relation"
    VALUE_OF_A_NAME = "value of a name", "the names in front are the same, and so are the values"
    VALUE_OF_A_CHAIN = "value of a chain", "every side of the chain but a name in front is right"
    CONGRUENCE = "congruence", "both are the same residue class"
    RESIDUE = "residue", "a residue may be written with or without its modulus"
    SET_OF_NUMBERS = "set of numbers", "both are the same set of numbers"
    SET = "set", "both have the same members, in any order"
    LIST = "list", "both have the same members, in any order"
    OR = "or", "both name the same alternatives, in any order"
    EVERY_FORM = "every form", "the answer has several forms, and each of them is right"
    TUPLE = "tuple", "the members are equal, in the same order"
    CONDITION = "condition", "the values and their conditions are equal"
    FAMILY = "family", "the values for each integer are equal"
    MATRIX = "matrix", "all cells are equal"
    CASES = "cases", "each case is equal to one of the other side"
    RATIO = "ratio", "the terms have the same ratio"
    RATIO_AS_QUOTIENT = "ratio as quotient", "a ratio of two numbers may be written as their quotient"
    CLOCK = "clock", "the times are the same"
    DATE = "date", "the dates are the same"
    OPTION = "option", "the letter of the option is the same"
    WORDS = "words", "the words are the same, or synonyms"
    FORMULA = "formula", "the formulas have the same elements, numbers and charge"
    PROPOSITION = "proposition", "the propositions have the same truth table"
    NAME = "name", "the letters are the same, in the same order and case"
    NUMERAL = "numeral", "the digits and the base are the same"
    NUMERAL_WITHOUT_BASE = "numeral without its base", "a base on one side only does not count"


TYPES: Mapping[str, str] = json.loads(files("reward").joinpath("data/answer_types.json").read_text("utf-8"))
"""What `answer_type` and `gold_type` in a grade's details mean."""


def explained(details: Mapping[str, Any]) -> Iterator[str]:
    """Yields the sentence for the rule that a grade's details name, if they name one."""
    if "rule" in details:
        rule = Rule(details["rule"])
        kind = TYPES[details.get("gold_type", "page")]
        yield f"{rule.sentence}, compared as {kind}" if rule is Rule.DIFFERS else rule.sentence
