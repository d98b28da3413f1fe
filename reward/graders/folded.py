"""Reads text as a reader sees it, so that a forbidden word cannot hide: without invisible characters, with look-alike
letters and signs as their plain ones."""

from __future__ import annotations

import re
import unicodedata

_LOOK_ALIKES = str.maketrans(
    # Cyrillic, Greek, Armenian, small capitals and other Latin letters, then dashes, apostrophes and quotation marks.
    # Some are alike as capitals only (В, Н, Ν).
    "авеѕіјкмнорстухһӏԁԍԛԝӕ" "αβεζηικμνορτυχγωϳ" "օսհցո" "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢıɑɡǃ" "‐‒–—−’‘ʼ“”",
    "abesijkmhopctyxhldgqwæ" "abezhikmnoptyxywj" "ouhgn" "abcdefghijklmnoprstuvwyziag!" "-----'''\"\"",
)  # fmt: skip
_EMPHASIS = re.compile(r"[*_~`]+")


def without_invisible(text: str) -> str:
    """Returns a text in its composed form (NFKC), without format characters and without accents that no letter has."""
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFKC", text)
    return "".join(
        char for char in composed if unicodedata.category(char) != "Cf" and not "\u0300" <= char <= "\u036f"
    )


def fold(text: str) -> str:
    """Returns a text without invisible characters, in lower case, with look-alikes as plain letters and signs."""
    return without_invisible(text).lower().translate(_LOOK_ALIKES)


def mentions(text: str, keyword: str, whole_words: bool = False) -> int:
    """Returns how often a text contains a keyword, as plain text, not as a pattern. Signs of emphasis inside a word do
    not hide it."""
    pattern = re.escape(fold(keyword))
    if whole_words:  # \b does not end a word at a sign, and takes the _ of _word_ for a letter
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    plain = fold(text)
    return max(len(re.findall(pattern, variant)) for variant in (plain, _EMPHASIS.sub("", plain)))
