"""Says in plain words how mathematics was graded: the types of both values and the rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {
    "number": "a number",
    "expression": "an expression",
    "quantity": "a quantity with its unit",
    "relation": "an equation or inequality",
    "interval": "an interval",
    "union": "a union of intervals and sets",
    "tuple": "a tuple, whose order counts",
    "set": "a set",
    "list": "a list, in any order",
    "or": "alternatives",
    "compound": "a quantity in several units",
    "condition": "a value under a condition",
    "family": "one value for each integer",
    "matrix": "a matrix",
    "cases": "several cases",
    "ratio": "a ratio",
    "clock": "a time of day",
    "date": "a date",
    "option": "the letter of an option",
    "words": "words",
    "formula": "a chemical formula",
    "name": "a name",
    "numeral": "digits with their base",
    "page": "something without a type, equal only to what looks the same",
}
"""What `answer_type` and `gold_type` in a grade's details mean."""
RULES = {
    "same page": "both look the same on the page",
    "same text": "both are the same text",
    "no rule": "no rule compares these two",
    "not evaluated": "the task wants a result, and arithmetic is left to carry out",
    "sympy cannot compute it": "sympy cannot compute the difference",
    "number": "numbers are compared exactly, and these are the same",
    "number to twelve digits": "a decimal with twelve right digits is as good as the exact number",
    "rounded": "the gold is a rounded number, and the answer rounds to it",
    "number without its unit": "a unit on one side only does not count, and the numbers are the same",
    "side of a chain": "the gold is a chain of equal numbers, and the answer is one of them",
    "options": "the same letters of options",
    "percent without its sign": "a percent sign on one side only does not count: 20 % is 20",
    "percent as a number": "a percentage may be written as a number: 20 % is 0.2",
    "angle in radians": "an angle in degrees may be written in radians",
    "expression": "both expressions have the same value wherever they were computed",
    "expression without its unit": "a unit on one side only does not count, and the expressions are equal",
    "product of letters": "the letters are the same product",
    "vector": "a sum of unit vectors and a tuple have the same parts",
    "quantity": "the unit and the number are the same",
    "quantity in another unit": "units of one dimension are converted, and the quantities are the same",
    "compound": "the parts add up to the same quantity",
    "equation": "the equations differ by a constant factor at most",
    "inequality": "the inequalities differ by a constant factor at most",
    "relation": "equal sides stand in the same relation",
    "sides": "the same sides are equal, in any order",
    "value of a name": "the names in front are the same, and so are the values",
    "value of a chain": "every side of the chain but a name in front is right",
    "congruence": "both are the same residue class",
    "residue": "a residue may be written with or without its modulus",
    "set of numbers": "both are the same set of numbers",
    "set": "both have the same members, in any order",
    "list": "both have the same members, in any order",
    "alternatives": "both name the same alternatives, in any order",
    "every form": "the answer has several forms, and each of them is right",
    "tuple": "the members are equal, in the same order",
    "condition": "the values and their conditions are equal",
    "family": "the values for each integer are equal",
    "matrix": "all cells are equal",
    "cases": "each case is equal to one of the other side",
    "ratio": "the terms have the same ratio",
    "ratio as quotient": "a ratio of two numbers may be written as their quotient",
    "time of day": "the times are the same",
    "date": "the dates are the same",
    "option": "the letter of the option is the same",
    "words": "the words are the same, or synonyms",
    "formula": "the formulas have the same elements, numbers and charge",
    "name": "the letters are the same, in the same order and case",
    "numeral": "the digits and the base are the same",
    "numeral without its base": "a base on one side only does not count, and the digits are the same",
}
"""What `rule` in a grade's details means, if it does not begin with "differs"."""


def explained(details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields ("rule", sentence) for the rule that a grade's details name."""
    if "rule" in details:
        rule, gold_type = details["rule"], details.get("gold_type", "page")
        differs = f"they differ, compared as {TYPES.get(gold_type, gold_type)}"
        yield "rule", differs if rule.startswith("differs") else RULES.get(rule, rule)
