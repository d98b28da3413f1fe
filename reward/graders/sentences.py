"""Counts sentences and words as NLTK does, without NLTK and its data. Deterministic and offline.

`split_sentences` follows the decisions of Punkt (Kiss and Strunk 2006) for English in the order of NLTK's code: a full
stop ends a sentence unless its word is an abbreviation or an initial; `?` and `!` always do, line breaks never; closing
quotes belong to the sentence before them only if a space follows. Punkt's learned tables, of abbreviations and of how
words are written, are replaced by the lists below, so a rare abbreviation or a name may count differently.
"""

from __future__ import annotations

import re
from itertools import pairwise

_ABBREVIATION_WORDS = """
c d e f g h k l m n p r s t v w a.m p.m vs dr mr mrs ms prof sr jr st inc corp co ltd u.s u.k u.n u.s.a d.c l.a n.y n.j
ph.d gen col lt sen rep reps jan feb aug sept oct nov dec tues wed fri ave ft yr messrs maj adm bros calif conn mich
minn va wash ariz fla tenn wis
"""
_STARTER_WORDS = """
the a an it he she they we you i this that these those there in on at by for from with as if when while but
and so however although because after before since what who how why where its his her our their my your
"""
_ABBREVIATIONS, _STARTERS = frozenset(_ABBREVIATION_WORDS.split()), frozenset(_STARTER_WORDS.split())
_CLOSING = r")\";}\]*:@'({\[?!‘’“”«»"
_END = re.compile(rf"[.?!](?=[{_CLOSING}]|\s+(?P<following>\S+))")
_ONLY_CLOSING = re.compile(r"[\"')\]}‘’“”«»]+")
_CONTRACTIONS = re.compile(
    r"(?i)\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b|\b(more)('n)\b|\b(wan)(na)\b"
)


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a text; none of a blank one."""
    text = text.strip()
    if not text:
        return []
    found, rest = [], 0
    ends = [*_END.finditer(text), None]
    for end, later in pairwise(ends):
        assert end is not None
        if later is not None and not re.search(r"\s", text[end.end() : later.start()]):
            continue  # the last mark in a word decides
        if _ends_sentence(text, rest, end.end(), end["following"] or ""):
            start = end.start("following") if end["following"] else end.end()
            found.append(text[rest:start])
            rest = start
    return found if found and _ONLY_CLOSING.fullmatch(text, rest) else [*found, text[rest:]]


def _ends_sentence(text: str, start: int, end: int, following: str) -> bool:
    """Whether the mark before `end` ends the sentence that begins at `start`. `following`: the next word, "" if the
    mark is followed by a closing quote or the like."""
    if text[end - 1] in "?!":
        return True
    word_start = end
    while word_start > start and not text[word_start - 1].isspace():
        word_start -= 1
    word = text[word_start:end]
    core = re.split(rf"[{_CLOSING}]", word[:-1])[-1].lower()
    starts_upper = following.lstrip("\"'“‘([{*_")[:1].isupper()
    starts_lower = following[:1].islower()
    if core.endswith("."):  # an ellipsis ends a sentence when a capital follows
        return starts_upper
    if core in _ABBREVIATIONS or core.rpartition("-")[2] in _ABBREVIATIONS:
        return len(core) > 1 and starts_upper and following.strip("\"'“‘([{*_,.").lower() in _STARTERS
    if core.isdecimal():
        return not starts_lower
    if len(core) == 1 and word[-2].isupper():  # an initial, or the letter of an outline
        is_outline = core in "abix" and _begins_line(text, start, word_start)
        return not starts_lower and (not starts_upper or is_outline or following.lower() in _STARTERS)
    return True


def _begins_line(text: str, start: int, word_start: int) -> bool:
    """Whether nothing but spaces stands before a word in its line, or since `start`."""
    while word_start > start and text[word_start - 1].isspace() and text[word_start - 1] != "\n":
        word_start -= 1
    return word_start == start or text[word_start - 1] == "\n"


def capital_words(text: str) -> list[str]:
    """Tokens in capitals only; tokens are those of the Penn Treebank (`DON'T` is two)."""
    text = re.sub(r"[«“‘„»”’]|``|\"|''", " ", text)
    text = re.sub(r"[;@#$%&?!\[\](){}<>]|--|\.\.\.", " ", text)
    text = re.sub(r"[:,](?=\D|$)", " ", text)
    text = re.sub(r"(?i)(?<=[^' ])('s|'m|'d|'ll|'re|'ve|n't)\b", r" \1", text)
    text = _CONTRACTIONS.sub(lambda match: " ".join(group for group in match.groups() if group), text)
    return [token for token in text.split() if token.isupper()]
