"""Tests of answers in words: what is one meaning, what differs, and what is left to mathematics."""

from collections.abc import Callable

import pytest

from reward.graders.math.words import formula, noun, option, phrase

Reader = Callable[[str], str | None]


@pytest.mark.parametrize(
    ("read", "same"),
    [
        (phrase, "mitochondria|The mitochondria.|Mitochondria|  the Mitochondria "),
        (phrase, "covalent bond|Covalent  Bond|covalent-bond|a covalent bond"),
        (phrase, "yes|Yes|YES|Yes."),
        (phrase, "no|No|NO"),
        (phrase, "does not exist|DNE|Does not exist.|the limit does not exist"),
        (phrase, "no solution|No solutions|no real solutions|There are no solutions.|the empty set"),
        (phrase, "all real numbers|all reals|All real numbers.|any real number"),
        (phrase, "infinitely many|Infinite|infinitely many solutions"),
        (phrase, "Monday|monday|Mon"),
        (phrase, "grey colour sulphuric ionisation aluminium|gray color sulfuric ionization aluminum"),
        (phrase, "iron(III) oxide centre|Iron(III) oxide center|iron (III) oxide center"),
        (phrase, "non-linear|nonlinear|non linear"),
        (phrase, "Newton's third law|Newton’s third law"),
        (noun, "square tile|Square tiles|square tiles.|square tiles in total"),
        (noun, "piece of candy|pieces of candy"),
        *((noun, f"{one}|{one}s") for one in ("cookie", "rose", "way", "tie", "quarter", "house")),
        *((noun, f"{one}|{one}es") for one in ("box", "class", "potato")),
        (noun, "city|cities"),
        (formula, "SO_{4}^{2-}|SO4^{2-}|SO_4^{2-}"),
        (formula, "H_{2}O|H2O|H_2O."),
        (formula, "CuSO_{4}·5H_{2}O|CuSO4 · 5H2O"),
        (formula, "2H_{2} + O_{2} -> 2H_{2}O|O2+2H2->2H2O|2H2(g) + O2(g) -> 2H2O (l)"),
        (formula, "MnO_{4}^{-} + 8H^{+} + 5e^{-} -> Mn^{2+} + 4H_{2}O|8H^{+}+MnO4^{-}+5e^{-}->4H2O+Mn^{2+}"),
        (option, "(B)|(b)|Option B|choice (B)|Answer: B|the answer is (B).|(B)."),
    ],
)
def test_texts_of_one_meaning(read: Reader, same: str) -> None:
    found = {read(text) for text in same.split("|")}
    assert len(found) == 1
    assert None not in found


@pytest.mark.parametrize(
    ("read", "different"),
    [
        (phrase, "no|on|yes"),
        (phrase, "silent|listen"),
        (phrase, "increase|decrease|true|false"),
        (phrase, "mRNA|MRNA"),
        (phrase, "AaBb|AABB|aabb|AaBB"),
        (phrase, "XYZ|xyz|ZYX"),
        (phrase, "vitamin C|vitamin c"),
        (phrase, "does not exist|undefined|no solution|infinitely many"),
        (phrase, "hour|day|four|our|filled|filed"),
        (phrase, "Newton's third law|Newton's second law"),
        (phrase, "per second|per minute"),
        (phrase, "type II|type III"),
        (noun, "increase|decrease|profit|loss|north|south|down"),
        (formula, "Fe^{3+}|Fe^{2+}|FeO|Fe2O3"),
        (formula, "CO|CO2|C2O"),
        (formula, "2H2O|H2O2|H2O|H_{3}O^{+}"),
        (formula, "O2|O3|O^{2-}"),
        (formula, "[Co(NH_{3})_{6}]^{3+}|[Co(NH_{3})_{5}]^{3+}"),
        (formula, "N2+3H2->2NH3|N2+3H2<->2NH3|2NH3->N2+3H2|N2+2H2->2NH3"),
        (formula, "CuSO4·5H2O|CuSO4·4H2O|CuSO4"),
    ],
)
def test_texts_that_differ(read: Reader, different: str) -> None:
    found = [read(text) for text in different.split("|")]
    assert len(set(found)) == len(found)
    assert None not in found


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (phrase, "|x|A|xy|5|x^2|5 cm|red, blue|x = y|a/b|(B)"),
        (
            noun,
            "|x|ab|cm2|not apples|is not the answer|then|or|and|minus|times x|more than|over|by|if|for|squared|cubed",
        ),
        (
            noun,
            "hundred|dozen|thousandths|half|three|factorial|point two|pm|square|a b c d e|red green blue white black",
        ),
        (noun, "5|ABC|NaCl|apples, pears|in total|th"),
        (
            formula,
            "|N|K|x|P_1|2S|VI|IV|XL|x_1|AB|2PV|5 Pa|No|He|n|5|B^{-1}|e^{-}|x^{2}|A -> B|F_1 + F_2|B*C|()|H0|Xx2",
        ),
        (formula, "N + 2|H2 -> O2 -> H2|(H2O|H2O)|[H2O)|->|H2 ->|+|H^{2}"),
        (
            option,
            "B|b||A, B|A or B|(B) 5, (C) 6|B. x, A. y|(A) and (B)|B5|(x)|(i)|Option Blue|-B|2B|B'|B = 5|not B",
        ),
        (option, "(A, B)|AB.|B) 5 cm"),
    ],
)
def test_what_is_left_to_others(read: Reader, texts: str) -> None:
    assert [text for text in texts.split("|") if read(text) is not None] == []


@pytest.mark.parametrize("read", [phrase, noun, formula, option])
@pytest.mark.parametrize(
    "part", ["a ", "A", "the ", "million ", "H2 + ", "(", "^{", "_{", "H^2+ ", "1s^{", " ", "'", "-", "->"]
)
def test_no_text_takes_long(read: Reader, part: str) -> None:
    for length in (30, 300):
        read((part * length)[: length - 1] + "!")
