"""Sentences and words as NLTK 3.9 counts them, without NLTK and its data. Deterministic and offline.

`num_sentences` follows the decisions of Punkt (Kiss and Strunk 2006) for English: a full stop ends a sentence unless
its word is an abbreviation or an initial; `?` and `!` always do; line breaks never do. The learnt tables of Punkt are
replaced by the lists below, so rare abbreviations may count differently.
"""

from __future__ import annotations

import re

_ABBREVIATION_WORDS = """
a.m p.m e.g i.e vs dr mr mrs ms prof sr jr st inc corp co ltd llc u.s u.k u.n u.s.a d.c ph.d b.a m.a m.d gen
col sgt capt lt cmdr sen rep gov pres rev hon jan feb aug sept oct nov dec tues wed thurs vol ave blvd mt ft
n.y n.j calif conn mass mich minn va wash ariz fla tex
"""
_STARTER_WORDS = """
the a an it he she they we you i this that these those there in on at by for from with as if when while but
and so however although because after before since what who how why where its his her our their my your
"""
_ABBREVIATIONS, _STARTERS = frozenset(_ABBREVIATION_WORDS.split()), frozenset(_STARTER_WORDS.split())
_END = re.compile(r"(\S*?[.?!]+)([\"'”’)\]}*_]*)\s+(?=(\S+))|([.?!])(?=[?!)\";}\]:@(\[{][^\s]*\s+\S)")
_CONTRACTIONS = re.compile(
    r"(?i)\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b|\b(more)('n)\b|\b(wan)(na)\b"
)


def num_sentences(text: str) -> int:
    """Number of sentences; 0 for blank text."""
    text = text.strip()
    if not text:
        return 0
    return 1 + sum(
        _ends_sentence(match[1], match[2], match[3]) for match in _END.finditer(text) if match[1] is not None
    )


def _ends_sentence(word: str, closing: str, following: str) -> bool:
    if word[-1] in "?!":
        return True
    core = word.rstrip(".").lstrip("\"'“‘([{*_-").lower()
    starts_upper = following.lstrip("\"'“‘([{*_")[:1].isupper()
    if word.endswith(".."):  # an ellipsis ends a sentence when a capital follows
        return starts_upper
    if closing and closing.strip("*_"):
        return True
    if core in _ABBREVIATIONS or core.split("-")[-1] in _ABBREVIATIONS:
        return starts_upper and following.strip("\"'“‘([{*_,.").lower() in _STARTERS
    if len(core) == 1 and core.isalpha() and word[-2:-1].isupper():
        return not starts_upper or following.lower() in _STARTERS
    return True


def capital_words(text: str) -> list[str]:
    """Tokens all of whose letters are capitals, tokens being those of the Penn Treebank (`DON'T` is two)."""
    text = re.sub(r"[«“‘„»”’]|``|\"|''", " ", text)
    text = re.sub(r"[;@#$%&?!\[\](){}<>]|--|\.\.\.", " ", text)
    text = re.sub(r"[:,](?=\D|$)", " ", text)
    text = re.sub(r"(?i)(?<=[^' ])('s|'m|'d|'ll|'re|'ve|n't)\b", r" \1", text)
    text = _CONTRACTIONS.sub(lambda match: " ".join(group for group in match.groups() if group), text)
    return [token for token in text.split() if token.isupper()]
