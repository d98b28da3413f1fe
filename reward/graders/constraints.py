"""Instruction following: the 25 verifiable rules of IFEval, each a pure function of the response.

Our own implementation of the rules of google-research/instruction_following_eval (Apache-2.0; Zhou et al. 2023, arXiv
2311.07911), with the same ids, arguments and results, except for these deliberate differences:

* A language that cannot be detected (digits, `!!!`) fails the language rules; the original passes it.
* langdetect is seeded, so repeated calls give the same result.
* Missing or unknown arguments are the caller's error; the original draws them at random.
* Sentences are those of `split_sentences` (reward.graders.sentences), which follows NLTK's Punkt without its data.
* Each rule takes time linear in the response. Where the original's pattern backtracks over the same characters again
  and again, an equivalent pattern replaces it.

The original has holes that a policy would learn: a forbidden word with an invisible character inside, `3*4*5` as a
highlighted section, all closed answers at once. With "strict": true, as in the training rows of `data build`, a rule
with a hole is judged by its stricter form, which stands behind it (`_strictly`), on the text as it stands or without
Markdown around its words: the original refuses `**The end.**`.

task {"instruction_id_list", "kwargs", "strict"?}; options for evaluation: "mode": "strict" (default; IFEval's name for
the response as it is) or "loose", "aggregate": "fraction" (default) or "all".
"""

from __future__ import annotations

import html
import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langdetect import DetectorFactory, LangDetectException, detect

from reward.frames import refuse_constant
from reward.graders import sentences
from reward.graders.constraint_arguments import KINDS, PLAIN_KINDS
from reward.graders.grade import Grade, InvalidTask, require

DetectorFactory.seed = 0
_MAX_INSTRUCTIONS = 100
_FULL_STOPS = str.maketrans(
    {"．": ".", "！": "!", "？": "?", "‼": "!", "⁇": "?", "؟": "?"} | dict.fromkeys("。｡।॥۔։።။។", ". ")
)
_LOOK_ALIKES = str.maketrans(
    # Cyrillic, Greek, Armenian, small capitals and other Latin letters, then dashes, apostrophes and quotation marks.
    # Some are alike as capitals only (В, Н, Ν).
    "авеѕіјкмнорстухһӏԁԍԛԝӕ" "αβεζηικμνορτυχγωϳ" "օսհցո" "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢıɑɡǃ" "‐‒–—−’‘ʼ“”",
    "abesijkmhopctyxhldgqwæ" "abezhikmnoptyxywj" "ouhgn" "abcdefghijklmnoprstuvwyziag!" "-----'''\"\"",
)  # fmt: skip
_PRINTABLE = frozenset(string.printable)
_EMPHASIS = re.compile(r"[*_~`\\]+|</?[a-z!][^<>]{0,99}>")
_AROUND_WORDS = re.compile(r"(?<![\w*_~`])[*_~`]+(?=[^\s*_~`])|(?<=[^\s*_~`])[*_~`]+(?!\w)")
_HANGUL_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Letters that look like spaces."""
_COMMAS = frozenset("\u00b8\u02cc\u066b\u066c\u201a\ua4f9")
"""Signs that look like a comma and are none."""
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
_CLOSED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@dataclass(frozen=True, slots=True)
class InstructionRule:
    """`follows(response, **arguments)` and the arguments it needs, by name and kind. `strictly` is the same without
    holes, for tasks with "strict": true."""

    follows: Callable[..., bool]
    arguments: Mapping[str, str]
    strictly: Callable[..., bool]


RULES: dict[str, InstructionRule] = {}


def _rule(name: str, **arguments: str) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Registers a rule, or the stricter form of one that is registered. `arguments`: the kind of each
    (constraint_arguments.KINDS)."""

    def register(follows: Callable[..., bool]) -> Callable[..., bool]:
        rule = RULES.get(name, InstructionRule(follows, arguments, strictly=follows))
        RULES[name] = replace(rule, strictly=follows)
        return follows

    return register


_strictly = _rule


def check(task: Mapping[str, Any]) -> None:
    """Raises InvalidTask unless the task can be graded."""
    ids, kwargs = task.get("instruction_id_list"), task.get("kwargs")
    if not (isinstance(ids, list) and isinstance(kwargs, list)):
        raise InvalidTask('the task needs "instruction_id_list" and "kwargs"')
    require(
        0 < len(ids) <= _MAX_INSTRUCTIONS, f"a task has 1 to {_MAX_INSTRUCTIONS} instructions, not {len(ids)}"
    )
    require(len(ids) == len(kwargs), f"{len(ids)} instructions come with {len(kwargs)} kwargs")
    require(task.get("mode", "strict") in ("strict", "loose"), 'the task\'s "mode" must be strict or loose')
    require(
        task.get("aggregate", "fraction") in ("fraction", "all"),
        'the task\'s "aggregate" must be fraction or all',
    )
    is_strict = task.get("strict", False)
    require(isinstance(is_strict, bool), 'the task\'s "strict" must be true or false')
    require(
        not (is_strict and task.get("mode") == "loose"),
        'a task is either "strict": true, for training, or "mode": "loose", for evaluation',
    )
    for name, arguments in zip(ids, kwargs, strict=True):
        _arguments(name, arguments, is_strict)


def grade(text: str, task: Mapping[str, Any]) -> Grade:
    """Returns the fraction of the instructions that the response follows; with aggregate "all", 1 if it follows
    each."""
    ids, is_strict = task["instruction_id_list"], task.get("strict", False)
    followed = []
    for name, arguments in zip(ids, task["kwargs"], strict=True):
        given = _arguments(name, arguments, is_strict)
        follows = RULES[name].strictly if is_strict else RULES[name].follows
        followed.append(
            any(variant.strip() and follows(variant, **given) for variant in _variants(text, task))
        )
    score = float(all(followed)) if task.get("aggregate") == "all" else sum(followed) / len(followed)
    verdict = "correct" if all(followed) else "partial" if any(followed) else "wrong"
    return Grade(score=score, verdict=verdict, details={"followed": followed, "instruction_id_list": ids})


def _variants(text: str, task: Mapping[str, Any]) -> Iterator[str]:
    yield text
    if task.get("strict") and (plain := _AROUND_WORDS.sub("", text)) != text:
        yield plain
    if task.get("mode", "strict") != "strict":
        # IFEval's loose variants: without the first line, the last line, both, and each also without asterisks.
        lines = text.split("\n")
        parts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
        yield from (*parts[1:], *(part.replace("*", "") for part in parts))


def warm_up() -> None:
    """Loads langdetect's profiles, so that forked workers share them."""
    _language("This loads the language profiles.")


def _arguments(name: Any, given: Any, is_strict: bool) -> dict[str, Any]:
    """Returns a rule's arguments, checked. Null values count as absent, and unknown arguments are ignored (rows of the
    Nemotron data carry every argument of every rule). Raises InvalidTask."""
    require(isinstance(name, str) and name in RULES, f"there is no instruction {str(name)[:80]!r}")
    require(given is None or isinstance(given, dict), f"the kwargs of {name} must be an object")
    arguments = {}
    for key, kind in RULES[name].arguments.items():
        value = (given or {}).get(key)
        if value is None:
            raise InvalidTask(f"{name} lacks its argument {key!r}")
        arguments[key] = (PLAIN_KINDS if is_strict else KINDS)[kind](value, f"{name}: {key}")
    return arguments


def _holds(actual: int, relation: str, count: int) -> bool:
    return actual < count if relation == "less than" else actual >= count


def _language(text: str) -> str | None:
    try:
        return str(detect(text))
    except LangDetectException:
        return None


# ------------------------------------------------------------------------------------- what a reader sees
def _without_invisible(text: str) -> str:
    """Returns a text in its composed form (NFKC), without what shows nothing (control and format characters, variation
    selectors, fillers) and without accents that no letter has."""
    composed = unicodedata.normalize("NFKC", text)
    kinds = {char: unicodedata.category(char) for char in {*composed} - _PRINTABLE}
    hidden = [char for char in kinds if kinds[char] in ("Cc", "Cf", "Mn") or char in _HANGUL_FILLERS]
    return composed.translate(dict.fromkeys(map(ord, hidden))) if hidden else composed


def _fold(text: str) -> str:
    """Returns a text as a reader sees it, so that a forbidden word cannot hide: without invisible characters, in lower
    case, with look-alikes as plain letters and signs."""
    return _without_invisible(html.unescape(text)).lower().translate(_LOOK_ALIKES)


def _says_something(text: str) -> bool:
    """Whether a reader sees a letter or digit."""
    return any(char.isalnum() and char not in _HANGUL_FILLERS for char in text)


def _mentions(text: str, keyword: str, whole_words: bool = False) -> int:
    """Returns how often a text contains a keyword, as plain text, not as a pattern. Emphasis and tags inside a word do
    not hide it, nor does a line break between its words."""
    pattern = r"\s+".join(map(re.escape, _fold(keyword).split()))
    if whole_words:  # \b does not end a word at a sign, and takes the _ of _word_ for a letter
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    plain = _fold(text)
    return max(len(re.findall(pattern, variant)) for variant in (plain, _EMPHASIS.sub("", plain)))


# ------------------------------------------------------------------------------------- keywords
@_rule("keywords:existence", keywords="patterns")
def _has_keywords(text: str, keywords: list[str]) -> bool:
    return all(re.search(keyword, text, re.IGNORECASE) for keyword in keywords)


@_strictly("keywords:existence")
def _mentions_keywords(text: str, keywords: list[str]) -> bool:
    return all(_mentions(text, keyword) for keyword in keywords)


@_rule("keywords:frequency", keyword="pattern", frequency="count", relation="relation")
def _keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _holds(len(re.findall(keyword, text, re.IGNORECASE)), relation, frequency)


@_strictly("keywords:frequency")
def _mention_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _holds(_mentions(text, keyword), relation, frequency)


@_rule("keywords:forbidden_words", forbidden_words="patterns")
def _no_forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words)


@_strictly("keywords:forbidden_words")
def _mentions_no_forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    return not any(_mentions(text, word, whole_words=True) for word in forbidden_words)


@_rule("keywords:letter_frequency", letter="letter", let_frequency="count", let_relation="relation")
def _letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _holds(Counter(text.lower())[letter], let_relation, let_frequency)


@_strictly("keywords:letter_frequency")
def _folded_letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _letter_frequency(_fold(text), _fold(letter), let_frequency, let_relation)


# ------------------------------------------------------------------------------------- language
@_rule("language:response_language", language="text")
def _in_language(text: str, language: str) -> bool:
    return _language(text) == language


# ------------------------------------------------------------------------------------- length
@_rule("length_constraints:number_sentences", num_sentences="count", relation="relation")
def _number_of_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _holds(len(sentences.split_sentences(text)), relation, num_sentences)


@_strictly("length_constraints:number_sentences")
def _number_of_visible_sentences(text: str, num_sentences: int, relation: str) -> bool:
    """A full stop alone is no sentence."""
    found = sentences.split_sentences(text.translate(_FULL_STOPS))
    return _holds(sum(map(_says_something, found)), relation, num_sentences)


@_rule("length_constraints:number_paragraphs", num_paragraphs="count")
def _number_of_paragraphs(text: str, num_paragraphs: int) -> bool:
    paragraphs = re.split(r"\s?\*\*\*\s?", text)
    if any(not paragraph.strip() for paragraph in paragraphs[1:-1]):
        return False
    return sum(bool(paragraph.strip()) for paragraph in paragraphs) == num_paragraphs


@_strictly("length_constraints:number_paragraphs")
def _number_of_divided_paragraphs(text: str, num_paragraphs: int) -> bool:
    """The stars of ***a word*** divide nothing."""
    parts = re.split(r"(?<!\S)\*\*\*(?!\S)", text.strip("* \t\n"))
    return len(parts) == num_paragraphs and all(map(_says_something, parts))


@_rule("length_constraints:number_words", num_words="count", relation="relation")
def _number_of_words(text: str, num_words: int, relation: str) -> bool:
    return _holds(len(re.findall(r"\w+", text)), relation, num_words)


@_strictly("length_constraints:number_words")
def _number_of_visible_words(text: str, num_words: int, relation: str) -> bool:
    """Words joined by _ or a Hangul filler are not one, and an invisible character does not split one."""
    if relation == "less than":
        return len(re.findall(rf"[^\W_{_HANGUL_FILLERS}]+", text)) < num_words
    return _number_of_words(_without_invisible(text), num_words, relation)


@_rule(
    "length_constraints:nth_paragraph_first_word",
    num_paragraphs="count",
    nth_paragraph="count",
    first_word="text",
)
def _nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = text.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if not 1 <= nth_paragraph <= count or not (paragraph := paragraphs[nth_paragraph - 1].strip()):
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"').lower()
    return count == num_paragraphs and re.split(r"[.,?!'\"]", word)[0] == first_word.lower()


# ------------------------------------------------------------------------------------- content
@_rule("detectable_content:number_placeholders", num_placeholders="count")
def _number_of_placeholders(text: str, num_placeholders: int) -> bool:
    # The original's \[.*?\] reads the rest of the line again for each unclosed bracket. This pattern consumes that rest
    # together with the bracket.
    return re.findall(r"\[[^\]\n]*(\]?)", text).count("]") >= num_placeholders


@_strictly("detectable_content:number_placeholders")
def _number_of_named_placeholders(text: str, num_placeholders: int) -> bool:
    """Counts placeholders, which have a name and are no link: not `[ ]`, `[x]`, `[1]`, `a[i]` or `[text](address)`."""
    names = re.findall(r"(?<!\w)\[([^\[\]\n]*)\](?!\()", text)
    return sum(any(map(str.isalpha, name)) and name not in "xX" for name in names) >= num_placeholders


@_rule("detectable_content:postscript", postscript_marker="text")
def _has_postscript(text: str, postscript_marker: str) -> bool:
    marker = _POSTSCRIPTS.get(postscript_marker, re.escape(postscript_marker.lower()))
    return re.search(marker, text.lower()) is not None


@_strictly("detectable_content:postscript")
def _has_postscript_behind_text(text: str, postscript_marker: str) -> bool:
    """Not in `U.P.S.`, and something stands before and behind it."""
    marker = _POSTSCRIPTS.get(postscript_marker, re.escape(postscript_marker.lower()))
    parts = re.split(rf"(?<![\w.]){marker}", text.lower(), maxsplit=1)
    return len(parts) == 2 and all(map(_says_something, parts))


# ------------------------------------------------------------------------------------- format
@_rule("detectable_format:number_bullet_lists", num_bullets="count")
def _number_of_bullets(text: str, num_bullets: int) -> bool:
    # The original has ^\s*, which also begins at the blank lines before a bullet, and finds the same bullets.
    stars = re.findall(r"^[^\S\n]*\*[^\*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^[^\S\n]*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


@_strictly("detectable_format:number_bullet_lists")
def _number_of_items(text: str, num_bullets: int) -> bool:
    """Counts bullets, which are followed by a space and something: not `-5`, `---` or `* * *`."""
    return len(re.findall(r"^[^\S\n]*[*-][^\S\n]+(?=.*[^\s*_-]).*$", text, re.MULTILINE)) == num_bullets


@_rule("detectable_format:constrained_response")
def _closed_answer(text: str) -> bool:
    return any(answer in text for answer in _CLOSED_ANSWERS)


@_strictly("detectable_format:constrained_response")
def _one_closed_answer(text: str) -> bool:
    """No other answer stands before a mark or at the end: `My answer is yes. But also no.`"""
    answer = r"(?:yes|no|maybe)\b"
    found = re.findall(
        rf"(?<=my answer is ){answer}|\b(?<!not ){answer}(?=\W*(?:[.,;:!?]|$))",
        " ".join(_EMPHASIS.sub("", _fold(text)).split()),
    )
    return _closed_answer(text) and len(set(found)) == 1


@_rule("detectable_format:number_highlighted_sections", num_highlights="count")
def _number_of_highlights(text: str, num_highlights: int) -> bool:
    single = re.findall(r"\*[^\n\*]*\*", text)
    double = re.findall(r"\*\*[^\n\*]*\*\*", text)
    return sum(bool(section.strip("*").strip()) for section in single + double) >= num_highlights


@_strictly("detectable_format:number_highlighted_sections")
def _number_of_emphases(text: str, num_highlights: int) -> bool:
    """Counts emphases. A product (3*4*5, 3 * 4 * 5) is none: no space inside the stars, no letter or digit outside."""
    inside = re.findall(r"(?<![A-Za-z0-9*])(\*{1,3})(?![\s*])([^\n*]+)(?<!\s)\1(?![A-Za-z0-9*])", text)
    return sum(any(map(str.isalnum, section)) for _, section in inside) >= num_highlights


@_rule("detectable_format:multiple_sections", section_spliter="pattern", num_sections="count")
def _number_of_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.split(rf"\s?{section_spliter}\s?\d+\s?", text)) - 1 >= num_sections


@_strictly("detectable_format:multiple_sections")
def _number_of_numbered_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Each section begins a line, has its own number, and says something."""
    _, *parts = re.split(rf"^[^\w\n]*{re.escape(section_spliter)}\s?(\d+)", text, flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return len({number for number, content in sections if _says_something(content)}) >= num_sections


def _json_data(text: str, **options: Any) -> list[Any]:
    """Returns the data of a text that is JSON, fenced or not, as the only item of a list; else an empty list."""
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        return [json.loads(text.removesuffix("```"), **options)]
    except (ValueError, RecursionError):
        return []


@_rule("detectable_format:json_format")
def _is_json(text: str) -> bool:
    return bool(_json_data(text))


@_strictly("detectable_format:json_format")
def _is_strict_json(text: str) -> bool:
    """NaN and Infinity are no JSON; a text in quotation marks is JSON, but not in JSON's form."""
    return any(isinstance(data, dict | list) for data in _json_data(text, parse_constant=refuse_constant))


@_rule("detectable_format:title")
def _has_title(text: str) -> bool:
    # Finds what the original's <<[^\n]+>> finds: in each line everything from the first << to the last >>.
    spans = ((line, line.find("<<"), line.rfind(">>")) for line in text.split("\n"))
    titles = (line[start : end + 2] for line, start, end in spans if 0 <= start < end - 2)
    return any(title.lstrip("<").rstrip(">").strip() for title in titles)


# ------------------------------------------------------------------------------------- combination
@_rule("combination:two_responses")
def _two_responses(text: str) -> bool:
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    answers = [part.strip() for part in parts if part.strip()]
    return len(answers) == 2 and answers[0] != answers[1]


@_rule("combination:repeat_prompt", prompt_to_repeat="text")
def _repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


# ------------------------------------------------------------------------------------- start and end
@_rule("startend:end_checker", end_phrase="text")
def _ends_with(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@_strictly("startend:end_checker")
def _ends_with_words(text: str, end_phrase: str) -> bool:
    """Whole words: `We pretend` does not end with `end`. Any quotation marks may stand behind them."""
    end, phrase = (_EMPHASIS.sub("", _fold(one)).strip().strip("\"'") for one in (text, end_phrase))
    return end.endswith(phrase) and not end[-len(phrase) - 1 : -len(phrase)].isalnum()


@_rule("startend:quotation")
def _is_quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == '"' and text[-1] == '"'


# ------------------------------------------------------------------------------------- case and punctuation
@_rule("change_case:capital_word_frequency", capital_frequency="count", capital_relation="relation")
def _capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _holds(len(sentences.capital_words(text)), capital_relation, capital_frequency)


@_rule("change_case:english_capital")
def _english_capital(text: str) -> bool:
    return text.isupper() and _language(text) == "en"


@_strictly("change_case:english_capital")
def _english_in_capitals(text: str) -> bool:
    """langdetect knows words in small letters better: `HELLO WORLD` is Somali to it."""
    return text.isupper() and (_language(text.lower()) == "en" or _language(text) == "en")


@_rule("change_case:english_lowercase")
def _english_lowercase(text: str) -> bool:
    return text.islower() and _language(text) == "en"


@_rule("punctuation:no_comma")
def _no_comma(text: str) -> bool:
    return "," not in text


@_strictly("punctuation:no_comma")
def _no_comma_of_any_script(text: str) -> bool:
    """Also none of full width, ideographic or Arabic, and nothing that looks like one."""
    return not any(
        char in _COMMAS or (unicodedata.category(char) == "Po" and "COMMA" in unicodedata.name(char, ""))
        for char in set(html.unescape(text))
    )
