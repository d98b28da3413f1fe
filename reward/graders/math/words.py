"""Answers in words: phrases, counted nouns, numbers in words, chemical formulas, option letters, times and dates.

Each function takes the plain text of a whole answer, or of what stands behind its number. It returns one canonical
spelling, so that two answers of one meaning are equal texts, or None if the text is anything else.
"""

from __future__ import annotations

import calendar
import json
import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

from reward.graders.math.commands import names

_LONGEST = 300


# --------------------------------------------------------------------------------- numbers in words
_TABLES = json.loads(files("reward").joinpath("data/words.json").read_text(encoding="utf-8"))


def _listed(table: str) -> list[str]:
    """Returns the words of a table, which has several lines of them."""
    return " ".join(_TABLES[table]).split()


def _values(table: str, ends: tuple[str, ...] = ("", "s")) -> dict[str, Fraction]:
    return {word + end: Fraction(value) for word, value in _TABLES[table].items() for end in ends}


_SMALL = _values("small_numbers", ends=("",))
_MULTIPLES = _values("multiples")
_PARTS = _values("parts") | {"halves": Fraction(1, 2)}
COMMON = frozenset(_listed("common_words"))
"""Words of answers that could also be products of letters."""
NUMBER_WORDS: dict[str, Fraction] = _SMALL | _MULTIPLES | _PARTS
"""Every number word with its value: `three`, `dozen`, `thousand`, `half`, `thirds`."""


def number(text: str) -> Fraction | None:
    """Returns the number that words name; None for anything else, and for an ordinal (`third`).

    Example: number("minus one hundred twenty-one and a half") -> Fraction(-243, 2)
    """
    words = text.lower().replace("-", " ").split()
    if words[:1] in (["minus"], ["negative"]):
        value = number(" ".join(words[1:]))
        return None if value is None or value < 0 else -value
    if words[-1:] == ["half"] or (len(words) > 1 and words[-1] in _PARTS):
        whole, _, count = f" {' '.join(words[:-1])}".rpartition(" and")
        front = number(whole) if whole else Fraction(0)
        size = Fraction(1) if count.strip() in ("", "a", "an") else number(count)
        return None if front is None or size is None else front + size * _PARTS[words[-1]]
    if words == ["zero"]:
        return Fraction(0)
    total = group = Fraction(0)
    least = Fraction(10) ** 99
    for word in words:
        small, multiple = _SMALL.get(word, 0), _MULTIPLES.get(word, Fraction(0))
        if small and (group % 100 == 0 or (group % 100 >= 20 and group % 10 == 0 and small < 10)):
            group += small
        elif word == "hundred" and 0 < group < 100:
            group *= 100
        elif 1000 <= multiple < least and group:
            total, group, least = total + group * multiple, Fraction(0), multiple
        elif word != "and" or group % 100 or not total + group:
            return None
    return total + group if words else None


# --------------------------------------------------------------------------------- phrases and nouns
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[' -](?=[^\W\d_])|\([IVX]{1,4}\))*+")
_KEPT = re.compile(r"(?:([A-Za-z])(?i:\1))+|[IVX]+|[A-Za-z]")
"""A genotype (AaBb), a Roman numeral, a letter."""
_SHORT = names("no on up in of if it is he we us so at to by or an as do go me my ok")
"""The words of two letters; other pairs of letters are mathematics."""
_SPELLINGS = tuple((re.compile(pattern), american) for pattern, american in _TABLES["american"].items())
_MONTHS = [name.lower() for name in calendar.month_name[1:]]
_MONTH = {name[:length]: number for number, name in enumerate(_MONTHS, 1) for length in (3, len(name))} | {
    "sept": 9
}
_SAME = {other: phrase for phrase, others in _TABLES["synonyms"].items() for other in others} | {
    short: _MONTHS[number - 1] for short, number in _MONTH.items()
}


@lru_cache(maxsize=4096)
def phrase(text: str) -> str | None:
    """Returns plain words as they are compared: without article, full stop or hyphens, in lower case unless their case
    has a meaning, and in one spelling; None if there are digits, signs or no word of three letters.

    Example: phrase("The Mitochondria.") -> "mitochondria"
    """
    if len(text) > _LONGEST:
        return None
    bare = " ".join(unicodedata.normalize("NFKC", text).replace("’", "'").split())
    bare = re.sub(r"(?<=[^\W\d_])\.(?=\s|$)|\s(?=\([IVX]+\))", "", bare)
    if not _WORDS.fullmatch(bare):
        return None
    bare = re.sub(r"^(?:the|an|a)(?=[ -][^\W\d_])", "", bare, flags=re.IGNORECASE).replace("-", " ").strip()
    if not re.search(r"[^\W\d_]{3}", bare) and bare.lower() not in _SHORT:
        return None
    bare = re.sub(r"\b([Nn])on (?=[a-z])", r"\1on", re.sub(r"[^\W\d_]+", lambda word: _lower(word[0]), bare))
    return _SAME.get(bare.lower(), bare)


def _lower(word: str) -> str:
    """Returns a word in lower case and American spelling, unless its case has a meaning: a capital behind a small
    letter (mRNA), capitals without a vowel (XYZ), and what `_KEPT` says."""
    is_usual = word[1:].islower() or (word.isupper() and re.search("[AEIOU]", word))
    if not is_usual or _KEPT.fullmatch(word):
        return word
    word = word.lower()
    for pattern, american in _SPELLINGS:
        word = pattern.sub(american, word)
    return word


_FUNCTION_WORDS = {*_listed("function_words"), *NUMBER_WORDS} - {"quarter", "quarters"}
"""Words that make what stands behind a number more than the name of what is counted."""
_WAYS = _listed("ways")
_DIRECTIONS = names("BC AD BCE CE up")
_CHANGING = {*_listed("changing_words"), *NUMBER_WORDS}


def is_name(text: str) -> bool:
    """Whether words in front of `=` name a value: `Area of ABC`, but not `minus` or `more than`."""
    return not _CHANGING & {*text.lower().split()}


@lru_cache(maxsize=4096)
def noun(text: str) -> str | None:
    """Returns the stem of what is counted by the number before it, one to four words; None if one of them is a
    function word or a number, or changes the value.

    Example: noun("red balls") -> "red ball"
    """
    bare = text.strip().removesuffix(".") if len(text) <= _LONGEST else ""
    bare = re.sub(r"(?:^|\s)(?:in total|in all|altogether)$", "", bare)
    words = re.split(r"[\s-]+", bare.replace("’", "'"))
    if len(words) > 4 or bare in ("square", "cubic"):
        return None
    stems = []
    for place, word in enumerate(words):
        is_noun = (
            re.fullmatch(r"[^\W\d_][a-zà-ÿ]{2,}(?:'[a-z]*)?", word) and word.lower() not in _FUNCTION_WORDS
        )
        if not (is_noun or word in _DIRECTIONS or (word == "of" and 0 < place < len(words) - 1)):
            return None
        stems.append(_stem(word.lower()) if is_noun else word)
    is_way = stems[-1] in _WAYS and {*stems[:-1]} <= {"possible", "different", "distinct"}
    return "way" if is_way else " ".join(stems)


def _stem(word: str) -> str:
    """Returns the same for the singular and the plural of a noun; it need not be a word."""
    word = re.sub(r"'s?$", "", word)
    if len(word) > 4:
        word = re.sub(r"(?<=o|x|h)es$|(?<=ss|zz)es$", "", re.sub(r"ies?$", "y", word))
    return re.sub(r"(?<=..[^sui])s$", "", word)


# --------------------------------------------------------------------------------- chemistry
_ELEMENTS = frozenset(_listed("elements"))
_NO_FORMULAS = names("No In As At He Be Am Pa NO ON OK IN")
"""Words and units that are spelled like a formula."""
_DIATOMIC = names("H2 N2 O2 O3 F2 I2 P4 S8")
_ARROWS = {
    "<->": ("<=>", "⇌", "⇄", "↔", "<->", "\\rightleftharpoons", "\\leftrightarrow", "\\rightleftarrows"),
    "<-": ("\\leftarrow", "\\longleftarrow", "←", "<-"),
    "->": ("\\longrightarrow", "\\rightarrow", "\\to", "→", "⟶", "->", "=>", "⇒", "="),
}
_ARROW = {text: arrow for arrow, texts in _ARROWS.items() for text in texts}
_AN_ARROW = re.compile("|".join(re.escape(text) + r"(?![A-Za-z])" * text[-1].isalpha() for text in _ARROW))
_UNWRAP = re.compile(
    r"\\(?:ce|text|textrm|textbf|mathrm|mathbf|mbox|rm)\b\s*+|\\[,;:! ]|[$~]|\\(?:left|right)(?![a-z])"
)
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_PLAIN = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉", "0123456789+-0123456789")
_CHARGE = re.compile(r"\s*+\^\s*+(?:\{\s*+(?:[+-]\s*+\d{1,2}|\d{0,2}\s*+[+-])\s*+\}|\d{0,2}\s*+[+-](?!\d))")
_RAISED_SIGNS = str.maketrans("+-", "⁺⁻")
"""How charges are written while a plus still separates the species of an equation."""
_FRONT = re.compile(r"(\d+/\d+|\d*)\s*+(.*)", re.DOTALL)
_ATOMS = rf"(?:(?:{'|'.join(sorted(_ELEMENTS, key=len, reverse=True))})(?![a-z])(?!0)\d*)+"
_GROUP = re.compile(rf"(?:\({_ATOMS}\)|\[{_ATOMS}\])\d*")
_FORMULA = re.compile(rf"{_ATOMS}(?:·\d*H2O)?")


@lru_cache(maxsize=4096)
def formula(text: str) -> str | None:
    """Returns a chemical formula, ion, hydrate or equation in one spelling; None for anything else, and for what may as
    well be a variable: `N`, `P_1`, `2S`, `VI`. The order of the species on one side of an equation does not matter.

    Example: formula("SO_4^{2-}") -> "SO4^2-"
    """
    if len(text) > _LONGEST:
        return None
    text = _UNWRAP.sub("", text.replace("−", "-").replace("–", "-"))
    text = _RAISED.sub(lambda found: f"^{{{found[0]}}}", text).translate(_PLAIN)
    text = re.sub(r"_\s*+\{\s*+(\d{1,3})\s*+\}", r"_\1", text)
    text = _CHARGE.sub(
        lambda found: "^" + re.sub(r"[\s{}^]", "", found[0]).translate(_RAISED_SIGNS) + " ", text
    )
    text = re.sub(r"[{}]", "", text).strip().removesuffix(".")
    arrows: list[str] = _AN_ARROW.findall(text)
    if not arrows:
        species = _species(text)
        return species if species and _is_certain(species) else None
    sides = [_side(side) for side in _AN_ARROW.split(text)]
    is_equal_sign = arrows[0] == "="  # in mathematics, more often than not
    if len(arrows) > 1 or None in sides or (is_equal_sign and not all(map(_is_chemistry, sides))):
        return None
    if _ARROW[arrows[0]] == "<-":
        return f"{sides[1]} -> {sides[0]}"
    return f"{sides[0]} {_ARROW[arrows[0]]} {sides[1]}"


def _is_chemistry(side: str | None) -> bool:
    return any(
        _is_certain(species) and re.search("[a-z]|[A-Z)]\\d", species) for species in str(side).split(" + ")
    )


def _side(text: str) -> str | None:
    """Returns one side of an equation, its species in alphabetical order and without their states."""
    parts = re.split(r"(?<=\s)\+|\+(?=[\dA-Ze(\[])", text.strip())
    found = [_species(re.sub(r"\s*\((?:s|l|g|aq)\)\s*$", "", part)) for part in parts]
    return None if None in found else " + ".join(sorted(map(str, found)))


def _species(text: str) -> str | None:
    """Returns one formula or an electron, with its coefficient and charge: 2SO4^2-."""
    front, rest = _FRONT.fullmatch(text.strip()).groups()  # type: ignore[union-attr]
    body, _, charge = rest.strip().partition("^")
    body = body.strip()
    if not charge and (ending := re.search(r"(?:(?<=[\])a-zA-Z\d])|\s)(\d?)\s?([+-])$", body)):
        body, charge = _with_charge(body, ending)
    body = re.sub(r"(?:\\cdot(?![a-z])|[·•⋅∙*.])(?=\d*H2O$)", "·", re.sub(r"[_\s]", "", body))
    charge = charge.strip().translate(_PLAIN)
    if charge[:1] in ("+", "-"):  # Ca^{+2}, but B^{-1} is an inverse
        if charge[1:] and charge[0] == "-" and not re.search(r"[a-z\d]", body):
            return None
        charge = charge[1:] + charge[0]
    charge = charge.removeprefix("1") if len(charge) == 2 else charge
    if not re.fullmatch(r"(?:\d{0,2}[+-])?", charge) or not (body + charge == "e-" or _is_formula(body)):
        return None
    return ("" if front == "1" else front) + body + (f"^{charge}" if charge else "")


def _with_charge(body: str, ending: re.Match[str]) -> tuple[str, str]:
    """Splits a charge without `^` off: Na+, Fe3+, SO42-, NH4+. One digit behind an element alone or a bracket is the
    charge; in NH4+ it is an index."""
    before = body[: ending.start()].rstrip()
    digit = ending[1]
    is_charge = bool(digit) and (
        ending[0][0] == " " or before[-1:] in "])" or before[-1:].isdigit() or before in _ELEMENTS
    )
    return (before, digit + ending[2]) if is_charge or not digit else (before + digit, ending[2])


def _is_formula(body: str) -> bool:
    """Whether the text consists of element symbols with indices, in balanced brackets, and water of hydration."""
    while (outer := _GROUP.sub("H", body)) != body:
        body = outer
    return _FORMULA.fullmatch(body) is not None


def _is_certain(species: str) -> bool:
    """Whether a formula that stands alone is no variable, product of variables, word or Roman numeral."""
    if species in _NO_FORMULAS or re.fullmatch("[IVXLCDM]+|\\d*e.*", species):
        return False
    if "^" in species or species in _DIATOMIC:
        return True
    if species[0].isdigit():  # 5 Pa, 2PV
        return (
            re.search(r"[A-Z].*[A-Z]", species) is not None
            and re.search(r"[a-z]|[A-Z)\]]\d", species) is not None
        )
    return sum(letter.isalpha() for letter in species) > 1


_ORBITALS = re.compile(
    r"(?:\[(?:He|Ne|Ar|Kr|Xe|Rn)\]|(?=(?:\d[spdf]\d+){2}))"
    r"(?:[1-9]s[12]|[1-9]p[1-6]|[1-9]d(?:10|[1-9])|[1-9]f(?:1[0-4]|[1-9]))+"
)
_ROOM = {"s": 2, "p": 6, "d": 10, "f": 14}


def configuration(text: str) -> str | None:
    """Returns the electron configuration of an atom without spaces and exponent signs; None for anything else. It has
    one reading, because a shell is one digit and an orbital holds at most 2, 6, 10 or 14 electrons.

    Example: configuration("1s^{2}2s^{1}") -> "1s22s1"
    """
    if len(text) > _LONGEST:
        return None
    occupied = re.findall(r"([spdf])\s*\^\s*\{\s*(\d{1,3})\s*\}", text)
    if any(int(electrons) > _ROOM[orbital] for orbital, electrons in occupied):
        return None
    bare = re.sub(r"[\s^{}]", "", _UNWRAP.sub("", text.translate(_PLAIN)))
    if not _ORBITALS.fullmatch(bare):
        return None
    core, shells = (
        re.match(r"(?:\[\w+\])?", bare),
        re.findall(r"\ds[12]|\dp[1-6]|\dd(?:10|\d)|\df(?:1[0-4]|\d)", bare),
    )
    return (core[0] if core else "") + " ".join(sorted(shells))


# --------------------------------------------------------------------------------- options, times, dates
_OPTION = re.compile(
    r"(?P<named>(?i:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?\s*:?)\s+)?"
    r"(?:\((?P<round>[a-hA-J])\)|(?P<bare>[a-hA-J]))(?P<sign>[).:]?)"
)


def option(text: str) -> str | None:
    """Returns the letter of an option that stands without its text; None for a bare letter.

    Example: option("(B).") -> "B"
    """
    found = _OPTION.fullmatch(text.strip(" \t\n,;")) if len(text) <= _LONGEST else None
    if found is None:
        return None
    letter, sign = found["round"] or found["bare"], found["sign"]
    if found["round"]:
        is_label = sign != ")"
    else:
        is_label = bool(found["named"]) or (sign in (".", ":") and letter.isupper() and letter < "I")
    return letter.upper() if is_label else None


_CLOCK = re.compile(
    r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d\d))?(?P<oclock>\s*o'?clock)?\s*"
    r"(?P<half>[ap]\.?\s?m\.?|in the (?:morning|afternoon|evening)|noon|midnight)?",
    re.IGNORECASE | re.ASCII,
)
_HALVES = {"a": "am", "p": "pm", "in the m": "am", "midnight": "am", "noon": "pm", "in the ": "pm", "": ""}


def clock(text: str) -> tuple[int, str] | None:
    """Returns a time of day as minutes since midnight or noon, and "am", "pm" or "" if neither is said.

    Example: clock("12:15 p.m.") -> (15, "pm")
    """
    text = " ".join(text.lower().split()).replace("’", "'") if len(text) <= 40 else ""
    found = _CLOCK.fullmatch(f"12 {text}" if text in ("noon", "midnight") else text)
    if found is None:
        return None
    hour, minute, said = int(found["hour"]), int(found["minute"] or 0), found["half"] or ""
    half = next(half for start, half in _HALVES.items() if said.startswith(start))
    if "n" in said and "in the" not in said and (hour, minute) != (12, 0):  # 3 noon
        return None
    is_time = half or found["oclock"] or (found["minute"] and ":" in text)
    if not is_time or minute > 59 or hour > (12 if half else 23) or (half and hour == 0):
        return None
    if not half and (hour > 12 or hour == 0):
        half = "pm" if hour else "am"
    return (hour % 12 if half else hour) * 60 + minute, half


_DATE = re.compile(
    r"(?:(?P<month>[a-z]{3,9})\.?\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?"
    r"|(?P<iso>\d{4}-\d\d-\d\d)|(?:the\s+)?(?P<first>\d{1,2})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<second>[a-z]{3,9})\.?)"
    r"(?:,?\s+(?P<year>\d{4}))?",
    re.IGNORECASE | re.ASCII,
)


def date(text: str) -> str | None:
    """Returns a date as month-day or month-day-year.

    Example: date("4th of July, 2020") -> "7-4-2020"
    """
    found = _DATE.fullmatch(text.strip().removesuffix(".")) if len(text) <= 40 else None
    if found and found["iso"]:
        year, *others = map(int, found["iso"].split("-"))
        return f"{others[0]}-{others[1]}-{year}" if others[0] < 13 and others[1] < 32 else None
    month = _MONTH.get((found["month"] or found["second"]).lower()) if found else None
    if found is None or month is None:
        return None
    day = int(found["day"] or found["first"])
    longest = 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    return "-".join(filter(None, (str(month), str(day), found["year"]))) if 1 <= day <= longest else None
