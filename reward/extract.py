"""Finds the answer in a response. Pure functions of text; None means that there is no answer.

What counts as reasoning ("thought") and what as the answer, in every domain:

1. A thought begins at <think>. A response also begins inside a thought if its prompt has opened one (`in_thought`): the
   chat templates of DeepSeek-R1-Distill and of Qwen3's thinking models end the prompt with <think>.
2. The last </think> of the response ends every thought that began before it. Thoughts do not nest: a second <think>
   inside a thought changes nothing, and text between two </think> is thought.
3. The answer is the text after the last </think>, or the whole response if it has no thought.
4. A thought that is still open at the end of the response leaves no answer, whatever was written before it.

A tag counts anywhere, even in a code block or in quotation marks, because the text alone does not tell a quoted tag
from the token that ends the thought.
"""

from __future__ import annotations

import ast
import re

THINK_START, THINK_END = "<think>", "</think>"
_NAME = r"(?:(?P<name>\\?[A-Za-z]+(?:_\w|_\{\w+\})?)[\s$]*=[\s$]*)?"
_JOINER = re.compile(rf"(?:[\s$,;~}}]|\\[()\[\]]|\\q?quad\b|\\text\{{|\b(?:and|or)\b)*+{_NAME}")
_NAMED = re.compile(rf"(?<![A-Za-z\\]){_NAME}$")
_LONGEST_NAME = 20
_BRACE = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|[{}]|\\boxed\s*(?P<bare>\d+(?:\.\d+)?)(?![\w^\\])")
_MAX_NESTED_BOXES = 10


def visible_text(response: str) -> str:
    """Returns the text after the last </think>, or all of it if there is none, because reasoning is never graded. Drops
    the line breaks that chat templates put after </think>, which are not a part of the answer."""
    _, end, text = response.rpartition(THINK_END)
    return text.lstrip("\r\n") if end else text


def thinks(response: str) -> bool:
    """Whether the response contains the end of a thought."""
    return THINK_END in response


def is_open_thought(text: str, in_thought: bool = False) -> bool:
    """Whether a text ends inside a thought: a response without an answer, or a prompt after which the response begins
    `in_thought`."""
    _, end, rest = text.rpartition(THINK_END)
    return THINK_START in rest or (in_thought and not end)


def boxes(text: str) -> list[tuple[int, int, str]]:
    """Returns every outermost balanced \\boxed{...} or \\fbox{...} as (start, end, content), in order, in linear
    time."""
    open_braces: list[re.Match[str]] = []
    found: list[tuple[int, int, slice]] = []
    for brace in _BRACE.finditer(text):
        if brace.lastgroup:
            found.append((*brace.span(), slice(*brace.span("bare"))))
        elif brace[0] != "}":
            open_braces.append(brace)
        elif open_braces and (opened := open_braces.pop())[0] != "{":
            while found and found[-1][0] > opened.start():  # boxes inside this one
                found.pop()
            found.append((opened.start(), brace.end(), slice(opened.end(), brace.start())))
    contents = ((start, end, text[content].strip()) for start, end, content in found)
    return [box for box in contents if box[2]]


def last_box(text: str) -> str | None:
    """Returns the content of the last box. If that is a box and nothing else, returns the content of the inner one, and
    so on. An unbalanced box does not count."""
    found = boxes(text)
    if not found:
        return None
    content = found[-1][2]
    for _ in range(_MAX_NESTED_BOXES):
        inner = boxes(content)
        if not inner or inner[-1][:2] != (0, len(content)):
            break
        content = inner[-1][2]
    return content


def joined_boxes(text: str) -> str | None:
    """Returns the content of the last box, or as one list those of the run of boxes that it ends, each with the name in
    front of it. White space without a blank line, commas, `and` and `or` join boxes.

    Such a run is one answer in several boxes (`x = \\boxed{1} and y = \\boxed{2}`), so a response gains nothing by
    guessing in many boxes: the list equals no single value.
    """
    found = boxes(text)
    run: list[tuple[str, str]] = []
    is_either = False
    for place in range(len(found) - 1, -1, -1):
        start, end = found[place - 1][1] if place else 0, found[place][0]
        gap = text[start:end]
        joins = _JOINER.fullmatch(gap) if place and not re.search(r"\n\s*\n", gap) else None
        named = joins or _NAMED.search(text, max(start, end - _LONGEST_NAME), end)
        run.append((named["name"] or "" if named else "", found[place][2]))
        if joins is None:
            break
        is_either |= re.search(r"\bor\b", gap) is not None
    if len({content for _, content in run}) < 2:
        return last_box(text)
    items = (
        f"{name}={content}" if name and "=" not in content else content for name, content in reversed(run)
    )
    return (r" \text{ or } " if is_either else ", ").join(items)


def answer_tag(text: str) -> str | None:
    """Returns the content of the last <answer>...</answer>, stripped (as reasoning_gym.utils.extract_answer does)."""
    end = text.rfind("</answer>")
    if end < 0:
        return None
    # reasoning_gym matches from the first <answer> that follows the previous </answer>
    start = text.find("<answer>", text.rfind("</answer>", 0, end) + 1)
    if start < 0 or start > end:
        return None
    return text[start + len("<answer>") : end].strip()


def is_literal(text: str) -> bool:
    """Whether text is the `repr` of Python data."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return True
