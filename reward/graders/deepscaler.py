"""DeepScaleR's rules for equal mathematical answers: mathd normalisation, or PRM800K's sympy comparison.

Follows agentica-project/rllm rewards/math_utils/utils.py (MIT), which joins Hendrycks' MATH normalisation (MIT) and
PRM800K's grader (MIT, OpenAI). Deviations, marked "theirs" below, are made where the original lets a wrong answer pass.
Above all, its `parse_expr` evaluates whatever the model wrote as Python; here an expression reaches sympy only through
`safe_expression`.
"""

from __future__ import annotations

import re

import sympy
from sympy.parsing import sympy_parser

from reward.graders.safe_expression import is_cheap, parse_safely

_TEXT_WRAP = re.compile(r"^\\text\{(?P<text>.+?)\}$")
_UNITS = "degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard"
_RIGHT_UNIT = re.compile(
    r"\\text\{ (?:[^{}\d]|(?<=[A-Za-z^])\d|\{-?\d\})*\}(?:\s*[A-Za-z]{1,3})?(?:\s*\^\s*\{?-?\d\}?)?[\s.$]*$"
)
_SQUARED_UNIT = re.compile(r"(?<=[\d}\s])\\text\{[^{}\d]*\}\s*\^\{-?\d\}")
_UNIT_PATTERNS = tuple(re.compile(rf"{unit}(es)?(s)? *(\^\{{?[0-9]+\}}?)?") for unit in _UNITS.split("|"))
_THOUSANDS = re.compile(r"(\d)(,)(\d\d\d)($|\D)")
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
_BRACKETS = "()[]"
_MAX_NESTED = 20
_FRACTION_COMMAND = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_BINOMIAL = re.compile(r"\\binom\{([^{}]*)\}\{([^{}]*)\}")
_SQUARE_ROOT = re.compile(r"\\sqrt\{([^{}]*)\}")
_OTHER_ROOT = re.compile(r"\\sqrt\[([^\[\]{}]*)\]\{([^{}]*)\}")
_SCRIPT = re.compile(r"([_^])\{([^{}]*)\}")
_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")
_ATOM = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+")
_SYMBOLS = {
    "\\pi": "pi ", "\\infty": "inf ", "\\cup": "U ", "\\cdot": "*", "\\times": "*", "\\{": "{", "\\}": "}"
}  # fmt: skip
_LETTERS = {letter: sympy.Symbol(letter) for letter in "EI"}
"""Capitals that sympy would take for constants; Euler's number and the imaginary unit are small letters in answers."""
_TRANSFORMATIONS = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)


def equal(answer: str, gold: str) -> str | None:
    """Name of the rule that accepts the answer, `mathd` or `sympy`; None if neither does."""
    if (normal := mathd_normal(answer)) and normal == mathd_normal(gold):
        return "mathd"
    return "sympy" if equal_under_sympy(answer, gold) else None


# ----------------------------------------------------------------------------------------- mathd
def mathd_normal(answer: str) -> str:
    """Hendrycks' canonical string: LaTeX spacing, units, percent and degree signs gone, fractions spelled out."""
    answer = answer.strip()
    if match := _TEXT_WRAP.search(answer):
        answer = match["text"].strip()
    try:
        return _strip_string(answer)
    except (IndexError, ValueError):  # the original keeps an answer that it cannot normalise
        return answer


def _strip_string(text: str) -> str:
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac").replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    text = _RIGHT_UNIT.sub("", text)  # theirs drops all that follows: "x=3 \text{ to } x=7"
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2 and not sides[0].strip().isdigit():  # "k ="; theirs: also "7 ="
        text = sides[1]
    text = _brace_sqrt(text).replace(" ", "")
    text = _brace_frac(text)
    if text == "0.5":
        text = "\\frac{1}{2}"
    return _slash_to_frac(text)


def _brace_sqrt(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    return first + "".join(
        "\\sqrt" + (part if part[0] == "{" else "{" + part[0] + "}" + part[1:]) for part in rest
    )


def _brace_frac(text: str) -> str:
    first, *rest = text.split("\\frac")
    result = first
    for part in rest:
        if part[0] == "{":
            result += "\\frac" + part
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            result += "\\frac{" + part[0] + "}" + part[1:]
        else:
            result += "\\frac{" + part[0] + "}{" + part[1] + "}" + part[2:]
    return result


def _slash_to_frac(text: str) -> str:
    match = re.fullmatch(r"(-?\d{1,1000})/(-?\d{1,1000})", text, re.ASCII)
    if match and all(str(int(number)) == number for number in match.groups()):
        return "\\frac{" + match[1] + "}{" + match[2] + "}"
    return text


# ----------------------------------------------------------------------------------------- sympy
def equal_under_sympy(answer: str, gold: str) -> bool:
    """PRM800K's comparison, element by element for tuples and intervals with equal brackets."""
    gold_normal, answer_normal = _normal(gold), _normal(answer)
    if not answer_normal:
        return False
    if gold_normal == answer_normal:
        return True
    gold_elements, answer_elements = _elements(gold_normal), _elements(answer_normal)
    if len(gold_elements) != len(answer_elements):
        return False
    if len(gold_elements) > 1 and (
        gold_normal[0] != answer_normal[0] or gold_normal[-1] != answer_normal[-1]
    ):
        return False
    return bool(gold_elements) and all(map(_equal_element, gold_elements, answer_elements))


def _equal_element(gold: str, answer: str) -> bool:
    if _FRACTION.search(gold) and _FRACTION.search(answer):
        return gold == answer  # an unreduced fraction is wrong
    if _is_integer(gold) != _is_integer(answer):
        return False  # an integer wants an integer, not an expression
    difference = f"({gold})-({answer})"
    letters = {letter for letter in difference.replace("sqrt", "").replace("frac", "") if letter.isalpha()}
    if len(letters) > 2 or "^{" in difference or "^(" in difference:
        return False
    if re.search(r"\^[0-9]+\^|\^[0-9][0-9]+", difference) or not is_cheap(difference):
        return False
    parsed = parse_safely(difference.replace("^", "**"), _TRANSFORMATIONS, _LETTERS)
    if parsed is None:
        return False
    try:
        return bool(sympy.simplify(parsed) == 0)
    except Exception:  # sympy raises what it likes on odd input; the original counts all of it as "not equal"
        return False


def number(text: str) -> float | None:
    """Returns the real number as which the sympy rule reads the text; None if it reads no number."""
    elements = _elements(_normal(text))
    if len(elements) != 1 or not is_cheap(elements[0]):
        return None
    parsed = parse_safely(elements[0].replace("^", "**"), _TRANSFORMATIONS, _LETTERS)
    try:
        return float(parsed) if parsed is not None and parsed.is_number else None
    except (TypeError, AttributeError, ValueError, OverflowError):  # complex, infinite, or no expression
        return None


def _normal(text: str) -> str:
    if match := _TEXT_WRAP.search(text):
        text = match["text"]
    text = _SQUARED_UNIT.sub("", text)  # theirs reads 12 \\text{ cm}^2 as 12^2
    text = text.replace("\\%", "%").replace("\\$", "$").replace("$", "").replace("%", "")
    text = text.replace(" or ", " , ").replace(" and ", " , ")
    text = text.replace("million", "*10^6").replace("billion", "*10^9").replace("trillion", "*10^12")
    if re.search(r"\d", text):  # theirs: without a number too, so that an hour equals a minute
        for pattern in _UNIT_PATTERNS:
            text = pattern.sub("", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text and text[0] == "{" and text[-1] == "}":
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    number = _number(text)
    if number is not None and _near_integer(number):
        text = str(round(number))
    if "\\" in text or "{" in text:
        text = _latex_to_text(text)
    text = re.sub("- *", "-", text)
    text = re.sub(r"^-(\d+) +(\d+/\d+)$", r"-(\1+\2)", text)  # theirs: -7 3/4 is -7+3/4
    text = re.sub("([0-9]) +([0-9])", r"\1+\2", text)  # mixed numbers: 7 3/4
    text = text.replace(" ", "").replace("{", "").replace("}", "")  # theirs in lower case
    if _is_integer(text):
        text = str(int(float(text.replace(",", ""))))
    return text


def _latex_to_text(text: str) -> str:
    """LaTeX as plain arithmetic. theirs is pylatexenc's latex2text, which turns `\\frac{1}{2+3}` into 1/2+3 and
    `\\binom{5}{2}` into 52, and drops `\\phantom{12}`. Commands unknown to this function stay and are not parsed."""
    plain = text.replace("\\frac", " \\frac")
    for _ in range(_MAX_NESTED):
        shorter = _SCRIPT.sub(_plain_script, plain)
        shorter = _SQUARE_ROOT.sub(r"sqrt(\1)", _OTHER_ROOT.sub(r"((\2)^(1/(\1)))", shorter))
        shorter = _BINOMIAL.sub(r"binomial(\1,\2)", _FRACTION_COMMAND.sub(_plain_fraction, shorter))
        if shorter == plain:
            break
        plain = shorter
    plain = _TEXT_COMMAND.sub(r"\1", plain)
    for symbol, name in _SYMBOLS.items():
        plain = plain.replace(symbol, name)
    return plain.strip()


def _plain_fraction(match: re.Match[str]) -> str:
    above, below = match.groups()
    if _ATOM.fullmatch(above) and _ATOM.fullmatch(below):
        return f"{above}/{below}"
    return f"(({above})/({below}))"


def _plain_script(match: re.Match[str]) -> str:
    """Writes an exponent or index without braces: `x^{2}` as `x^2`, `x^{a+b}` as `x^(a+b)`."""
    return match[1] + (match[2] if _ATOM.fullmatch(match[2]) else f"({match[2]})")


def _elements(text: str) -> list[str]:
    shorter = _without_thousands(text)
    is_pair = "," in text and "," not in shorter and text[0] in _BRACKETS  # (100,200) is not (100200)
    text = text if is_pair else shorter
    if not text:
        return []
    first, inner, last = text[0], text[1:-1], text[-1]
    if inner and first in _BRACKETS and last in _BRACKETS and not any(b in inner for b in _BRACKETS):
        return [element.strip() for element in inner.split(",")]
    return [text]


def _without_thousands(text: str) -> str:
    while (shorter := _THOUSANDS.sub(r"\1\3\4", text)) != text:
        text = shorter
    return text


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # theirs: Python's float takes 101_2 for 1012
    except ValueError:
        return None


def _near_integer(number: float) -> bool:
    return abs(number) < 1e300 and abs(number - round(number)) <= 1e-7


def _is_integer(text: str) -> bool:
    number = _number(_without_thousands(text))
    return number is not None and _near_integer(number)
