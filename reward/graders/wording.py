"""Answers in words, letters and formulas of chemistry: what STEM asks for beside mathematics."""

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
_FORMULA = re.compile(r"(?=.*\d)(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+")
_LABELLED = re.compile(r"(?:\\text\{\s*\(?[A-H][).:]\s*\}\s*|\(?[A-H][).:]\s+)(?P<value>\S.*)", re.DOTALL)
_MATHEMATICS = {
    "(-\\infty,\\infty)": ("all real numbers", "all reals", "all real values", "any real number", "real numbers"),
    "\\emptyset": ("no solution", "no solutions", "no real solution", "no real solutions", "no solutions exist",
                   "no solution exists", "empty set"),
}  # fmt: skip
_IN_WORDS = {phrase: sign for sign, phrases in _MATHEMATICS.items() for phrase in phrases}
_LONGEST = 300


def option(text: str) -> str | None:
    """The letter if the text is an option letter and nothing else: A, (a), B., \\text{(B)}, Option B. Letters that
    name options (A to H) come in upper case."""
    match = _OPTION.fullmatch(_bare(text)) if len(text) <= _LONGEST else None
    if match is None:
        return None
    letter = match[1] or match[2]
    return letter.upper() if letter in "abcdefgh" else letter


def chosen(text: str) -> str | None:
    """The same, or the letter in front of the text of one option: (B) 5 cm."""
    if (letter := option(text)) or len(text) > _LONGEST:
        return letter
    match = _OPTION_WITH_TEXT.fullmatch(_bare(text))
    if match is None or _LABEL.search(match[3]):
        return None
    return match[1] or match[2]


def words(text: str) -> str | None:
    """Plain words in lower case without an article or a full stop; None of anything else."""
    if len(text) > _LONGEST:
        return None
    bare = _bare(text).removesuffix(".").strip()
    if not _WORDS.fullmatch(bare) or not re.search(r"[A-Za-z]{3}", bare):
        return None
    return re.sub(r"\s+", " ", re.sub(r"^(?:the|an|a)\s+", "", bare.lower()))


def formula(text: str) -> str | None:
    """A chemical formula as one writes it in a line: H2O for \\text{H}_2\\text{O}; None of anything else."""
    if len(text) > _LONGEST:
        return None
    bare = re.sub(r"_\s*(?:\{\s*(\d+)\s*\}|(\d))", r"\1\2", text)
    bare = _WRAP.sub("", bare).replace(" ", "")
    return bare if _FORMULA.fullmatch(bare) else None


def as_mathematics(text: str) -> str:
    """The set that words name: `all real numbers`, `no solution`. Any other text as it is."""
    if re.fullmatch(r"\s*(?:[A-Za-z]\s*\\in\s*)?\\mathbb\{R\}\s*", text):
        return "(-\\infty,\\infty)"
    return "\\emptyset" if text == "\\{\\}" else _IN_WORDS.get(words(text) or "", text)


def without_label(answer: str, gold: str) -> str:
    """The text of an option without its letter, `12` of `(C) 12`: where the gold is no letter itself, and nothing in it
    could be one."""
    match = _LABELLED.fullmatch(answer) if len(answer) <= _LONGEST else None
    if match is None or re.search(r"[A-H:]", gold) or _LABEL.search(match["value"]):
        return answer
    return match["value"]


def _bare(text: str) -> str:
    return _WRAP.sub(" ", text).strip()
