"""Answers in words, option letters and chemical formulas, which STEM tasks ask for beside mathematics."""

from __future__ import annotations

import re

_WRAP = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathsf|mbox|underline|ce)\s*\{|\\[()\[\], ]|[{}$*`\"]"
)
_OPTION = re.compile(r"(?:(?i:option|choice|answer)\s*:?\s+)?(?:\(([A-Za-z])\)|([A-Za-z])[.:]?)")
_OPTION_WITH_TEXT = re.compile(
    r"(?:(?i:option|choice|answer)\s*:?\s+)?(?:\(([A-H])\)|([A-H])[).:])\s+(\S.*)", re.DOTALL
)
_LABEL = re.compile(r"\([A-H]\)|\b[A-H][).:](?!\w)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_WORD = re.compile(r"[A-Za-z]+")
_GENOTYPE = re.compile(r"(?:([A-Za-z])(?i:\1))+")
_FORMULA = re.compile(r"(?=.*\d)(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+")
_LABELLED = re.compile(
    r"(?:\\text\{\s*\(?[A-H][).:]\s*\}\s*|\(?[A-H][).:]\s+|(?:\(?[a-h]|\d|i{1,3})\)\s+)(?P<value>\S.*)",
    re.DOTALL,
)
_MATHEMATICS = {
    "(-\\infty,\\infty)": ("all real numbers", "all reals", "all real values", "any real number", "real numbers"),
    "\\emptyset": ("no solution", "no solutions", "no real solution", "no real solutions", "no solutions exist",
                   "no solution exists", "empty set"),
}  # fmt: skip
_IN_WORDS = {phrase: sign for sign, phrases in _MATHEMATICS.items() for phrase in phrases}
_ORBITALS = re.compile(
    r"(?:\[(?:He|Ne|Ar|Kr|Xe|Rn)\]|(?=(?:\d[spdf]\d+){2}))"
    r"(?:[1-9]s[12]|[1-9]p[1-6]|[1-9]d(?:10|[1-9])|[1-9]f(?:1[0-4]|[1-9]))+"
)
_ROOM = {"s": 2, "p": 6, "d": 10, "f": 14}
_TERM = r"\d*(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+"
_EQUATION = re.compile(rf"{_TERM}(?:\+{_TERM})*(?:\\rightarrow|\\rightleftharpoons){_TERM}(?:\+{_TERM})*")
_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*(?=\{)")
_GROUP = re.compile(r"\{([^{}\\]*)\}")
_LONGEST = 300


def option(text: str) -> str | None:
    """Returns the option letter if the text is nothing else: A, (a), B., \\text{(B)}, Option B. Returns a to h in upper
    case."""
    match = _OPTION.fullmatch(_bare(text)) if len(text) <= _LONGEST else None
    if match is None:
        return None
    letter = match[1] or match[2]
    return letter.upper() if letter in "abcdefgh" else letter


def chosen(text: str) -> str | None:
    """Returns the option letter as `option` reads it, or in front of the text of one option: (B) 5 cm."""
    if (letter := option(text)) or len(text) > _LONGEST:
        return letter
    match = _OPTION_WITH_TEXT.fullmatch(_bare(text))
    if match is None or _LABEL.search(match[3]):
        return None
    return match[1] or match[2]


def words(text: str) -> str | None:
    """Returns the text without article or full stop if it is plain words, in lower case unless its case has a meaning;
    None for anything else."""
    if len(text) > _LONGEST:
        return None
    bare = _bare(text).removesuffix(".").strip()
    if not _WORDS.fullmatch(bare) or not re.search(r"[A-Za-z]{3}|^[Nn][Oo]$", bare):
        return None
    bare = _WORD.sub(_lower, bare)
    return re.sub(r"\s+", " ", re.sub(r"^(?:the|an|a)\s+", "", bare))


def _lower(word: re.Match[str]) -> str:
    """Returns a word in lower case, unless it is a name that differs from others by its case: with a capital behind a
    small letter (mRNA), of capitals without a vowel (XYZ), or a genotype (AaBb, aabb)."""
    text = word[0]
    is_usual = text[1:].islower() or len(text) == 1 or (text.isupper() and re.search("[AEIOU]", text))
    return text.lower() if is_usual and not _GENOTYPE.fullmatch(text) else text


def formula(text: str) -> str | None:
    """Returns a chemical formula or equation in one line, H2O for \\text{H}_2\\text{O}; None for anything else."""
    if len(text) > _LONGEST:
        return None
    bare = re.sub(r"_\s*(?:\{\s*(\d+)\s*\}|(\d))", r"\1\2", text)
    bare = _WRAP.sub("", bare).replace(" ", "").replace("->", "\\rightarrow")
    return bare if _FORMULA.fullmatch(bare) or _EQUATION.fullmatch(bare) else None


def configuration(text: str) -> str | None:
    """Returns the electron configuration of an atom without spaces and exponent signs; None for anything else.

    Read as mathematics, `1s^22s^2` would have the exponent 22. As a configuration it has one reading, because a shell
    is one digit and an orbital holds at most 2, 6, 10 or 14 electrons.

    Example: configuration("1s^{2}2s^{1}") -> "1s22s1"
    """
    occupied = re.findall(r"([spdf])\s*\^\s*\{\s*(\d{1,3})\s*\}", text)
    if len(text) > _LONGEST or any(int(electrons) > _ROOM[orbital] for orbital, electrons in occupied):
        return None
    bare = re.sub(r"[\s^]", "", _WRAP.sub("", text))
    return bare if _ORBITALS.fullmatch(bare) else None


def same_text(answer: str, gold: str) -> bool:
    """Whether both show the same characters in the same places: `\\text{sp}^3` and `sp^3`.

    Ignores only text commands, braces that group nothing, and spaces that separate neither words nor numbers, so that
    no answer equals two golds that look different.
    """
    return max(len(answer), len(gold)) <= _LONGEST and _characters(answer) == _characters(gold)


def _characters(text: str) -> str:
    if re.search(r"\\(?!(?:text|textrm|mathrm|mbox)\s*\{)", text):  # braces may be arguments
        return text.strip()
    text = _GROUP.sub(_without_braces, _TEXT.sub("", text))
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", re.sub(r"\s+", " ", text.strip()))


def _without_braces(group: re.Match[str]) -> str:
    """Returns the content of a group, with braces only where they delimit an exponent or index."""
    is_script = group.string[: group.start()].rstrip()[-1:] in ("^", "_")
    is_alone = len(group[1]) == 1 and not re.match(r"\s*\w", group.string[group.end() :])
    return group[0] if is_script and not is_alone else group[1]


def as_mathematics(text: str) -> str:
    """Returns the set that a phrase names (`all real numbers`, `no solution`); any other text unchanged."""
    if re.fullmatch(r"\s*(?:[A-Za-z]\s*\\in\s*)?\\mathbb\{R\}\s*", text):
        return "(-\\infty,\\infty)"
    return "\\emptyset" if text == "\\{\\}" else _IN_WORDS.get(words(text) or "", text)


def without_label(answer: str, gold: str) -> str:
    """Returns the text of an option without its letter, `12` for `(C) 12`, unless the gold is a letter or contains what
    could be one."""
    match = _LABELLED.fullmatch(answer) if len(answer) <= _LONGEST else None
    if match is None or re.search(r"[A-H:]", gold) or _LABEL.search(match["value"]):
        return answer
    if match["value"].count(")") > match["value"].count("("):  # a second label: a) 1 b) 2
        return answer
    return match["value"]


def _bare(text: str) -> str:
    return _WRAP.sub(" ", text).strip()
