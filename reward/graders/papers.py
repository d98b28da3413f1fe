"""The papers' own verifiers of mathematics, with their holes: `deepscaler`, `math_verify`, and `papers`, which accepts
what either of the two accepts. They are for comparison with the papers; this service's own comparison is not asked.

DeepScaleR's rules follow agentica-project/rllm rewards/math_utils/utils.py (MIT), which joins Hendrycks' MATH
normalisation (MIT) and PRM800K's grader (MIT, OpenAI): units, case and small differences do not count. Theirs evaluates
model text as Python; here an expression reaches sympy only through `safe`. math-verify is huggingface/Math-Verify 0.9.0
(Apache-2.0), the distribution's extra `papers`. Some of its verdicts depend on the version of antlr, and the trainer's
Hydra needs an older one, so the extra lives in an environment without a trainer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import sympy
from math_verify import parse, verify
from sympy.parsing import sympy_parser

from reward.extract import last_box
from reward.graders.grade import Grade
from reward.graders.safe import MAX_CHARACTERS, is_cheap, is_shallow, parse_safely

for _name in ("math_verify", "math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # it logs model text

_LONGEST_SHOWN = 500
_UNITS = "degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard"
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
_ATOM = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+")
_SYMBOLS = {
    "\\pi": "pi ", "\\infty": "inf ", "\\cup": "U ", "\\cdot": "*", "\\times": "*", "\\{": "{", "\\}": "}"
}  # fmt: skip
_TRANSFORMATIONS = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """Grades the text after the reasoning as the task's "verifier" does; `details` name it."""
    box = last_box(text)
    is_right = accepts(task["verifier"], text, task["answer"])
    extracted = text[-_LONGEST_SHOWN:] if box is None else box[:_LONGEST_SHOWN]
    details = {"extracted": extracted, "gold": task["answer"][:_LONGEST_SHOWN], "verifier": task["verifier"]}
    verdict = "correct" if is_right else "no_box" if box is None else "wrong"
    return Grade(score=float(is_right), verdict=verdict, details=details)


def accepts(verifier: str, text: str, gold: str) -> bool:
    """Whether a verifier takes the text after the reasoning for right. math-verify searches all of it, as in its
    README; DeepScaleR's rules get the last box."""
    content = last_box(gold)
    content = (gold if content is None else content).strip()
    if verifier != "math_verify" and _deepscaler_accepts(text, content):
        return True
    return verifier != "deepscaler" and _math_verify_accepts(text, content)


def _math_verify_accepts(text: str, gold: str) -> bool:
    box = last_box(text)
    if box is not None and not is_cheap(box):
        return False
    try:
        golds = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        return bool(verify(golds, parse(text, parsing_timeout=None), timeout_seconds=None))
    except Exception:  # sympy raises what it likes on odd input; trainers count it as wrong
        return False


# ------------------------------------------------------------------------------------- DeepScaleR's rules
def _deepscaler_accepts(text: str, gold: str) -> bool:
    """Whether the last box has Hendrycks' normal form of the gold, or is equal by PRM800K's comparison with sympy."""
    answer = last_box(text)
    if answer is None or len(answer) > MAX_CHARACTERS or not is_shallow(answer):
        return False
    if (normal := _mathd_normal(answer)) and normal == _mathd_normal(gold):
        return True
    ours, golds = _sympy_normal(answer), _sympy_normal(gold)
    if not ours or ours == golds:
        return bool(ours)
    parts, gold_parts = _elements(ours), _elements(golds)
    if len(parts) != len(gold_parts) or (len(parts) > 1 and (ours[0], ours[-1]) != (golds[0], golds[-1])):
        return False
    return bool(parts) and all(map(_same_element, parts, gold_parts))


def _mathd_normal(answer: str) -> str:
    answer = re.sub(r"^\\text\{(.+?)\}$", r"\1", answer.strip()).strip()
    try:
        return _strip_string(answer)
    except (IndexError, ValueError):  # theirs keeps an answer that it cannot normalise
        return answer


def _strip_string(text: str) -> str:
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac").replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    if "\\text{ " in text:
        text, _ = text.split("\\text{ ")
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    sides = text.split("=")
    text = sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text
    first, *rest = text.split("\\sqrt")
    text = first + "".join(f"\\sqrt{part if part[0] == '{' else f'{{{part[0]}}}{part[1:]}'}" for part in rest)
    first, *rest = text.replace(" ", "").split("\\frac")
    text = first + "".join(f"\\frac{_braced(part)}" for part in rest)
    text = "\\frac{1}{2}" if text == "0.5" else text
    slash = re.fullmatch(r"(0|-?[1-9]\d{0,999})/(0|-?[1-9]\d{0,999})", text, re.ASCII)
    return f"\\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


def _braced(part: str) -> str:
    """Returns what follows `\\frac` with braces: `12` as `{1}{2}`."""
    if part[0] == "{":
        return part
    return f"{{{part[0]}}}{part[1:]}" if part[1] == "{" else f"{{{part[0]}}}{{{part[1]}}}{part[2:]}"


def _sympy_normal(text: str) -> str:
    text = re.sub(r"^\\text\{(.+?)\}$", r"\1", text)
    text = text.replace("\\%", "").replace("\\$", "").replace("$", "").replace("%", "")
    text = text.replace(" or ", " , ").replace(" and ", " , ")
    text = text.replace("million", "*10^6").replace("billion", "*10^9").replace("trillion", "*10^12")
    for unit in _UNITS.split("|"):
        text = re.sub(rf"{unit}(es)?(s)? *(\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    text = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    text = re.sub(r",\\! *", "", text)
    text = _integer(text) or text
    text = _latex_to_text(text) if "\\" in text else text
    text = re.sub("- *", "-", text)
    text = re.sub("([0-9]) +([0-9])", r"\1+\2", text)  # mixed numbers: 7 3/4
    text = text.replace(" ", "").replace("{", "").replace("}", "").lower()
    return _integer(text) or text


def _latex_to_text(text: str) -> str:
    """Writes LaTeX as plain arithmetic. theirs is pylatexenc's, which turns `\\frac{1}{2+3}` into 1/2+3 and
    `\\binom{5}{2}` into 52; commands unknown to this function stay and are not parsed."""
    plain = text.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac").replace("\\frac", " \\frac")
    for _ in range(20):
        shorter = re.sub(r"([_^])\{([^{}]*)\}", lambda match: match[1] + _atom(match[2]), plain)
        shorter = re.sub(r"\\sqrt\[([^\[\]{}]*)\]\{([^{}]*)\}", r"((\2)^(1/(\1)))", shorter)
        shorter = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", shorter)
        shorter = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", _plain_fraction, shorter)
        shorter = re.sub(r"\\binom\{([^{}]*)\}\{([^{}]*)\}", r"binomial(\1,\2)", shorter)
        if shorter == plain:
            break
        plain = shorter
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", plain)
    for symbol, name in _SYMBOLS.items():
        plain = plain.replace(symbol, name)
    return plain.strip()


def _plain_fraction(match: re.Match[str]) -> str:
    fraction = f"{_atom(match[1])}/{_atom(match[2])}"
    return f"({fraction})" if "(" in fraction else fraction


def _atom(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"


def _same_element(answer: str, gold: str) -> bool:
    if _FRACTION.search(gold) and _FRACTION.search(answer):
        return gold == answer  # an unreduced fraction is wrong
    if (_integer(gold) is None) != (_integer(answer) is None):
        return False
    difference = f"({gold})-({answer})"
    letters = {letter for letter in difference.replace("sqrt", "").replace("frac", "") if letter.isalpha()}
    if len(letters) > 2 or re.search(r"\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+", difference):
        return False
    parsed = parse_safely(difference.replace("^", "**"), _TRANSFORMATIONS)
    try:
        return parsed is not None and bool(sympy.simplify(parsed) == 0)
    except Exception:  # theirs counts whatever sympy raises as "not equal"
        return False


def _elements(text: str) -> list[str]:
    text = _without_thousands(text)
    inner = text[1:-1]
    if inner and text[0] in "()[]" and text[-1] in "()[]" and not re.search(r"[()\[\]]", inner):
        return [element.strip() for element in inner.split(",")]
    return [text] if text else []


def _without_thousands(text: str) -> str:
    while (shorter := re.sub(r"(\d),(\d\d\d)($|\D)", r"\1\2\3", text)) != text:
        text = shorter
    return text


def _integer(text: str) -> str | None:
    """Returns the integer that a number is, give or take 1e-7; None for anything else. theirs also rounds integers of
    more than 15 digits."""
    text = _without_thousands(text).strip()
    if re.fullmatch(r"[-+]?\d{1,400}", text, re.ASCII):
        return str(int(text))
    try:
        number = float(text) if "_" not in text else float("nan")
        return str(round(number)) if abs(number - round(number)) <= 1e-7 else None
    except (ValueError, OverflowError):
        return None
