"""Answers in words: phrases, counted nouns, chemical formulas and option letters.

Each function takes the plain text of a whole answer, or of what stands behind its number. It returns one canonical
spelling, so that two answers of one meaning are equal texts, or None if the text is anything else.
"""

from __future__ import annotations

import json
import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files

from reward.graders.math.commands import names


# --------------------------------------------------------------------------------- numbers in words
def _values(text: str, ends: tuple[str, ...] = ("", "s")) -> dict[str, Fraction]:
    pairs = zip(text.split()[::2], text.split()[1::2], strict=True)
    return {word + end: Fraction(value) for value, word in pairs for end in ends}


NUMBER_WORDS: dict[str, Fraction] = (
    _values(
        "0 zero 1 one 2 two 3 three 4 four 5 five 6 six 7 seven 8 eight 9 nine 10 ten 11 eleven 12 twelve 13 thirteen "
        "14 fourteen 15 fifteen 16 sixteen 17 seventeen 18 eighteen 19 nineteen 20 twenty 30 thirty 40 forty 50 fifty "
        "60 sixty 70 seventy 80 eighty 90 ninety",
        ends=("",),
    )
    | _values(
        "12 dozen 100 hundred 1000 thousand 1000000 million 1000000000 billion 1000000000000 trillion 1/2 half "
        "1/4 quarter 1/3 third 1/4 fourth 1/5 fifth 1/6 sixth 1/7 seventh 1/8 eighth 1/9 ninth 1/10 tenth "
        "1/11 eleventh 1/12 twelfth 1/20 twentieth 1/100 hundredth 1/1000 thousandth 1/1000000 millionth "
        "1/1000000000 billionth"
    )
    | {"halves": Fraction(1, 2)}
)
"""Every number word with its value: `three`, `dozen`, `thousand`, `half`, `thirds`."""


# --------------------------------------------------------------------------------- phrases and nouns
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[' -](?=[^\W\d_])|\([IVX]{1,4}\))*+")
_KEPT = re.compile(r"(?:([A-Za-z])(?i:\1))+|[IVX]+|[A-Za-z]")
"""A genotype (AaBb), a Roman numeral, a letter."""
_SHORT = names("no on up in of if it is he we us so at to by or an as do go me my ok")
"""The words of two letters; other pairs of letters are mathematics."""
_TABLES = json.loads(files("reward").joinpath("data/words.json").read_text(encoding="utf-8"))
_SPELLINGS = tuple((re.compile(pattern), american) for pattern, american in _TABLES["american"].items())
_SAME = {other: phrase for phrase, others in _TABLES["synonyms"].items() for other in others}


@lru_cache(maxsize=4096)
def phrase(text: str) -> str | None:
    """Returns plain words as they are compared: without article, full stop or hyphens, in lower case unless their case
    has a meaning, and in one spelling; None if there are digits, signs or no word of three letters.

    Example: phrase("The Mitochondria.") -> "mitochondria"
    """
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


_FUNCTION_WORDS = names(
    "a an the not no none never nor is are was were be been being am pm isn't aren't then or and but else otherwise "
    "minus plus times than over by if for squared cubed factorial choose mod modulo divided multiplied added "
    "subtracted power root point negative equal equals approximately approx about around roughly nearly almost at "
    "least most except without unless until when where while with as because since so thus hence therefore that which "
    "who whose this these those i it he she they we you can cannot could may might must shall should will would do "
    "does did has have had to from through between into on in out of off per each every either neither both all "
    "some th st nd rd second seconds sqrt log sin cos tan exp max min lim infinity infinite wrong incorrect false "
    "true yes twice thrice double triple half reciprocal inverse opposite fewer less more gross score"
) | (frozenset(NUMBER_WORDS) - {"quarter", "quarters"})
"""Words that make what stands behind a number more than the name of what is counted."""
_CHANGING = names(
    "not no never nor neither minus plus times than less more most least fewer at over squared cubed half twice double "
    "negative opposite reciprocal inverse or except without wrong incorrect false isn't aren't"
)


def is_name(text: str) -> bool:
    """Whether words in front of `=` name a value: `Area of ABC`, but not `minus` or `more than`."""
    return not _CHANGING & {*text.lower().split()}


@lru_cache(maxsize=4096)
def noun(text: str) -> str | None:
    """Returns the stem of what is counted by the number before it, one to four words; None if one of them is a
    function word or a number, or changes the value.

    Example: noun("red balls") -> "red ball"
    """
    bare = re.sub(r"(?:^|\s)(?:in total|in all|altogether)$", "", text.strip().removesuffix("."))
    words = re.split(r"[\s-]+", bare.replace("’", "'"))
    if len(words) > 4 or bare in ("square", "cubic"):
        return None
    stems = []
    for place, word in enumerate(words):
        is_noun = (
            re.fullmatch(r"[^\W\d_][a-zà-ÿ]{2,}(?:'[a-z]*)?", word) and word.lower() not in _FUNCTION_WORDS
        )
        if not (is_noun or (word == "of" and 0 < place < len(words) - 1)):
            return None
        stems.append(_stem(word.lower()) if is_noun else word)
    return " ".join(stems)


def _stem(word: str) -> str:
    """Returns the same for the singular and the plural of a noun; it need not be a word."""
    word = re.sub(r"'s?$", "", word)
    if len(word) > 4:
        word = re.sub(r"(?<=o|x|h)es$|(?<=ss|zz)es$", "", re.sub(r"ies?$", "y", word))
    return re.sub(r"(?<=..[^sui])s$", "", word)


# --------------------------------------------------------------------------------- chemistry
_ELEMENTS = names(
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb "
    "Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au "
    "Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts "
    "Og"
)
_NO_FORMULAS = names("No In As At He Be Am Pa NO ON OK IN")
"""Words and units that are spelled like a formula."""
_DIATOMIC = names("H2 N2 O2 O3 F2 I2 P4 S8")
_CHARGE = re.compile(r"\^\{(\d{0,2}[+-])\}")
_RAISED_SIGNS = str.maketrans("+-", "⁺⁻")
"""How charges are written, because a plus separates the species of an equation."""
_STATE = r"\((?:s|l|g|aq)\)"
_ATOMS = rf"(?:(?:{'|'.join(sorted(_ELEMENTS, key=len, reverse=True))})(?![a-z])(?!0)\d*)+"
_GROUP = re.compile(rf"(?:\({_ATOMS}\)|\[{_ATOMS}\])\d*")
_SPECIES = re.compile(rf"(?:\d*{_ATOMS}(?:·\d*H2O)?(?:\^\d*[⁺⁻])?|\d*e\^⁻)")


@lru_cache(maxsize=4096)
def formula(text: str) -> str | None:
    """Returns a chemical formula, ion, hydrate or equation in one spelling; None for anything else, and for what may as
    well be a variable: `N`, `P_1`, `2S`, `VI`. The order of the species on one side of an equation does not matter.

    Example: formula("SO_{4}^{2-}") -> "SO4^2⁻"
    """
    text = _CHARGE.sub(lambda found: f"^{found[1].translate(_RAISED_SIGNS)}", text)
    text = re.sub(rf"[_{{}}\s]|{_STATE}", "", text).removesuffix(".")
    sides = [sorted(side.split("+")) for side in re.split("<?->", text)]
    if len(sides) > 2 or not all(map(_is_species, [species for side in sides for species in side])):
        return None
    if len(sides) == 1:
        return text if len(sides[0]) == 1 and _is_certain(text) else None
    return (" <-> " if "<->" in text else " -> ").join(" + ".join(side) for side in sides)


def _is_species(text: str) -> bool:
    """Whether the text consists of element symbols with indices, in balanced brackets, and a charge, or is an
    electron."""
    while (outer := _GROUP.sub("H", text)) != text:
        text = outer
    return _SPECIES.fullmatch(text) is not None


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


# --------------------------------------------------------------------------------- options
_OPTION = re.compile(
    r"(?P<named>(?i:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?\s*:?)\s+)?"
    r"(?:\((?P<round>[a-hA-J])\)|(?P<bare>[a-hA-J]))\.?"
)


def option(text: str) -> str | None:
    """Returns the letter of an option that stands without its text; None for a bare letter.

    Example: option("(B).") -> "B"
    """
    found = _OPTION.fullmatch(text)
    return (found["round"] or found["bare"]).upper() if found and (found["round"] or found["named"]) else None
