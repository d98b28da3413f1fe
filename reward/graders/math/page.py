r"""Reads LaTeX or plain text as the page that it typesets, as a tree of nodes.

`read` returns what the page shows, in order: `\frac12`, `\dfrac{1}{2}` and `{1 \over 2}` are one node. It raises
Unreadable, with the reason, at a command that is not in `commands`, at something invisible, or at a sign that is no
mathematics. Text is rewritten here alone, before it is parsed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from importlib.resources import files

from reward.graders.math import commands
from reward.graders.math.nodes import Node, Nodes, Unreadable, show, stripped

_TOKEN = re.compile(
    r"\\(?P<name>[A-Za-z]+)\*?|\\(?P<sign>.)|(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<space>[\s~]+)"
    r"|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_TEXT = re.compile(
    r"\$(?P<math>[^$]*)\$|\\\((?P<round>.*?)\\\)"
    r"|(?P<word>(?:[ap]\.\s?m\.|(?:[^\W\d_]|\\mu\b\s*|\\Omega\b\s*)(?:[^\W\d_]|['’](?=[^\W\d_])|-(?=[^\W\d_]))*))"
    r"|(?P<other>\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|\\?.)",
    re.DOTALL,
)
_MAX_DEPTH, _LONGEST = 60, 10_000
_UNIT_VECTORS = ("i", "j", "k", "\\imath", "\\jmath")
_KINDS = {
    **dict.fromkeys("+-*/:|.", "sign"), **dict.fromkeys("=<>", "relation"), **dict.fromkeys(",;", "comma"),
    **dict.fromkeys("([", "open"), **dict.fromkeys(")]", "close"),
}  # fmt: skip
_COMMAND_KINDS = {
    "letter": commands.LETTERS, "function": commands.FUNCTIONS, "sign": commands.SIGNS | {"|"},
    "relation": commands.RELATIONS, "open": commands.OPENING, "close": commands.CLOSING,
}  # fmt: skip
_JOINED = re.compile(
    f"({'|'.join(sorted({*commands.LETTERS, 'quad', 'qquad'}, key=len, reverse=True))})([A-Za-z]{{1,2}}|x.*)"
)
"""A command that lacks the space behind it."""
_KNOWN = frozenset().union(
    *_COMMAND_KINDS.values(), commands.SYNONYMS, commands.STAND_FOR, commands.TEXTS, commands.WRAPPERS,
    commands.ACCENTS, commands.APPEARANCE, commands.ALPHABETS, commands.CURRENCIES, commands.SPACES,
)  # fmt: skip
_INVISIBLE_IN_TEXT = commands.TEXTS | commands.APPEARANCE | commands.WRAPPERS
_LEAD = (
    Node("relation", "\\approx"), Node("relation", "\\sim"), Node("relation", "\\simeq"), Node("sign", ":"),
    Node("relation", "\\Rightarrow"), Node("sign", "\\therefore"),
)  # fmt: skip
"""Signs in front that say nothing about the value: `~12`, `: 12`."""


def read(box: str) -> Nodes:
    r"""Returns the nodes that a box shows. Raises Unreadable.

    Example: read(r"\dfrac12") -> (Node("frac", parts=((Node("number", "1"),), (Node("number", "2"),))),)
    """
    if len(box) > _LONGEST:
        raise Unreadable("it is too long")
    return _trimmed(_PageParser(_one_spelling(box)).everything())


# ------------------------------------------------------------------------------------- spelling
_TABLES = json.loads(files("reward").joinpath("data/characters.json").read_text(encoding="utf-8"))
CHARACTERS: dict[str, str] = _TABLES["latex"]
"""Characters beyond ASCII, and the LaTeX for what they show."""
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
_STYLED = (*range(0x1D400, 0x1D800), *range(0xFF10, 0xFF1A))
"""Letters in italics and the like, and wide digits."""
_TO_LATEX = str.maketrans(
    {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in _STYLED}
    | CHARACTERS
    | dict(zip(_RAISED + _LOWERED, 2 * "0123456789+-n", strict=True))
)
_ISOTOPE = re.compile(rf"(?i:\b(?:{'|'.join(_TABLES['isotopes'])}))(?=-\d)")
_CHINESE: dict[str, str] = _TABLES["chinese_units"]
_CHINESE_UNIT = re.compile(
    rf"(?<=[\d}}])\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*({'|'.join(_CHINESE)})\s*\}}|({'|'.join(_CHINESE)}))\s*$"
)
"""A unit behind the number."""
_LINES = files("reward").joinpath("data/typing.txt").read_text(encoding="utf-8").splitlines()
_PAIRS = (line.partition(" =>") for line in _LINES if line and not line.startswith("#"))
_TYPED = [(re.compile(typed), meant.strip()) for typed, _, meant in _PAIRS]
"""Ways to type what LaTeX has a command for, or what says nothing about the value."""


def _one_spelling(box: str) -> str:
    """Returns a box as its page is usually typed, with LaTeX for other characters. Any Chinese word but a unit stays,
    and is unreadable, as it may mean `or`."""
    text = box.strip()
    if re.fullmatch(r"-?[0-9.]+|[A-Za-z]|-?\\frac\{[0-9]+\}\{[0-9]+\}", text) and text.count(".") < 2:
        return text
    for typed, meant in _TYPED:
        text = typed.sub(meant, text)
    text = _ISOTOPE.sub(lambda found: _TABLES["isotopes"][found[0].lower()], text.translate(_TO_LATEX))
    return _CHINESE_UNIT.sub(lambda found: f"\\text{{ {_CHINESE[found[1] or found[2]]}}}", text)


def _trimmed(nodes: Sequence[Node]) -> Nodes:
    """Drops spaces at the ends, a final full stop, and the sign of `about 12` or `: 12` in front."""
    found = stripped(nodes)
    if len(found) > 1 and found[-1] == Node("sign", "."):
        return _trimmed(found[:-1])
    is_lead = bool(found) and found[0] in _LEAD and (found[0].text != "\\sim" or found[-1].kind == "number")
    return _trimmed(found[1:]) if is_lead else tuple(found)


class _PageParser:
    """A recursive-descent parser over one text."""

    def __init__(self, text: str, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        self._text, self._at, self._depth = text, 0, depth
        self._dollars = len(re.findall(r"(?<!\\)\$", text))

    def everything(self) -> list[Node]:
        nodes, ended_by = self._nodes()
        if ended_by:
            raise Unreadable(f"`{ended_by}` stands outside of a matrix or has no counterpart")
        return nodes

    def _take(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """Returns what matches at this place, and goes on behind it."""
        match = re.compile(pattern).match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match

    def _skip_spaces(self) -> None:
        self._take(r"\s*")

    def _nodes(self) -> tuple[list[Node], str]:
        """Reads up to a `}`, `&`, `\\\\`, `\\end` or the end, and returns that sign too."""
        found: list[Node] = []
        while (token := self._take(_TOKEN)) is not None:
            if token["name"] is not None:
                if token["name"] == "end":
                    return found, "\\end"
                if token["name"] in ("over", "choose"):
                    below, ended_by = self._nodes()
                    kind = "frac" if token["name"] == "over" else "binom"
                    return [Node(kind, "", (_trimmed(found), _trimmed(below)))], ended_by
                self._skip_spaces()  # which LaTeX does not show behind a command
                self._command(token["name"], found)
            elif token["sign"] is not None:
                if token["sign"] == "\\":
                    return found, "\\\\"
                self._command(token["sign"], found)
            elif token["number"] is not None:
                found.append(Node("number", token["number"]))
            elif token["space"] is not None:
                found.append(Node("space", " "))
            elif token["other"] in "}&":
                return found, token["other"]
            else:
                self._character(token["other"], found)
        return found, ""

    def _character(self, character: str, found: list[Node]) -> None:
        if character == "{":
            inner = self._group()
            found += [Node("group", "", (tuple(inner),))] if _opens_argument(found) else inner
        elif character in "^_":
            self._script(character, found)
        elif character in "'!":
            _drop_spaces(found)
            found.append(Node("mark", character))
        elif character == "%":
            _drop_spaces(found)
            found.append(Node("mark", "\\%"))
        elif character == "$":
            if self._dollars % 2 and self._text[self._at : self._at + 1].isdigit():
                found.append(Node("word", "$"))
        elif character == '"':
            is_inch = bool(found) and found[-1].kind == "number" and any(node.text == "'" for node in found)
            found.append(Node("mark", "''") if is_inch else Node("space", " "))
        elif character in commands.CURRENCY_SIGNS:
            found.append(Node("word", character))
        elif kind := _KINDS.get(character):
            found.append(Node(kind, character))
        elif character.isalpha() and _is_latin(character):
            found.append(Node("letter", character))
        else:
            name = unicodedata.name(character, f"U+{ord(character):04X}")
            raise Unreadable(f"it holds a sign that is no mathematics: {name}")

    def _command(self, name: str, found: list[Node]) -> None:
        if (match := _JOINED.fullmatch(name)) and name not in _KNOWN:  # \\omegat
            self._at -= len(match[2])
            name = match[1]
        name = commands.SYNONYMS.get(name, name)
        if name in commands.STAND_FOR:
            nodes = _PageParser(commands.STAND_FOR[name], self._depth + 1).everything()
            if nodes[0].kind in ("mark", "sup"):
                _drop_spaces(found)
            found.extend(nodes)
        elif name in commands.SPACES:
            found.append(Node("space", " "))
        elif name in commands.WIDE_SPACES:
            found.append(Node("wide", " "))
        elif name in commands.APPEARANCE:
            if name in ("left", "right", "middle", "!"):
                self._skip_spaces()
            if name in ("left", "right", "middle"):
                self._at += self._text.startswith(".", self._at)
        elif name in commands.WRAPPERS:
            found.extend(self._wrapped(name))
        elif name in commands.TEXTS:
            found.extend(self._text_nodes(name))
        elif name in ("color", "textcolor"):
            self._color()
            found.extend(self._argument() if name == "textcolor" else [])
        elif name == "begin":
            found.extend(self._environment())
        elif name in commands.ACCENTS:
            below = _trimmed(self._argument())
            is_unit = name in ("vec", "hat") and len(below) == 1 and below[0].text in _UNIT_VECTORS
            below = (Node("letter", below[0].text.strip("\\")[0]),) if is_unit else below
            found.append(Node("accent", "\\hat" if is_unit else f"\\{name}", (below,)))
        elif name in ("mod", "bmod"):
            found.append(Node("word", "mod"))
        elif name == "%":
            _drop_spaces(found)
            found.append(Node("mark", "\\%"))
        elif name in commands.CURRENCIES:
            found.append(Node("word", commands.CURRENCIES[name]))
        else:
            found.append(self._mathematics(name))

    def _wrapped(self, name: str) -> list[Node]:
        inner = self._argument()
        if name in ("mathbf", "boldsymbol", "bm") and len(inner) == 1 and inner[0].text in _UNIT_VECTORS:
            return [Node("accent", "\\hat", (tuple(inner),))]  # a unit vector
        return inner

    def _mathematics(self, name: str) -> Node:
        """Reads a symbol, or a command with its arguments."""
        command = f"\\{name}"
        if name in ("frac", "binom"):
            return Node(name, "", (_trimmed(self._argument()), _trimmed(self._argument())))
        if name == "sqrt":
            index = self._option()
            return Node("sqrt", "", (_trimmed(self._argument()), *((index,) if index else ())))
        if name == "pmod":
            return Node("mod", "", (_trimmed(self._argument()),))
        if name in commands.ALPHABETS:
            return Node("letter", f"{command}{{{show(self._argument())}}}")
        for kind, names in _COMMAND_KINDS.items():
            if name in names:
                return Node(kind, command)
        raise Unreadable(f"`{command}` is not a command of an answer")

    # --------------------------------------------------------------------------------- arguments
    def _group(self) -> list[Node]:
        """Reads the nodes of a group whose brace is already open."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        inner, ended_by = self._nodes()
        if ended_by != "}":
            raise Unreadable("its braces do not match")
        self._depth -= 1
        return inner

    def _argument(self) -> list[Node]:
        """Reads a group, a command with its arguments, a letter or one digit."""
        self._skip_spaces()
        if self._at < len(self._text) and self._text[self._at].isdigit():
            self._at += 1
            return [Node("number", self._text[self._at - 1])]
        if self._text.startswith("{", self._at):
            self._at += 1
            return self._group()
        token = self._take(_TOKEN)
        found: list[Node] = []
        if token is None or token["number"] or token["other"] in tuple("}&^_"):
            raise Unreadable("a command lacks its argument")
        if token["name"] or token["sign"]:
            self._command(token["name"] or token["sign"], found)
        else:
            self._character(token[0], found)
        return found

    def _option(self) -> Nodes:
        self._skip_spaces()
        if not self._text.startswith("[", self._at):
            return ()
        end = self._text.find("]", self._at)
        if end < 0:
            raise Unreadable("a bracket is not closed")
        inner = _PageParser(self._text[self._at + 1 : end], self._depth + 1).everything()
        self._at = end + 1
        return _trimmed(inner)

    def _script(self, sign: str, found: list[Node]) -> None:
        """Reads an exponent or index behind what it belongs to."""
        _drop_spaces(found)
        self._skip_spaces()
        kind = "sup" if sign == "^" else "sub"
        is_second = bool(found) and found[-1].kind == kind
        if match := self._take(r"[-+]?\d+"):  # 2^10 is meant as 2^{10}
            inner = _PageParser(match[0], self._depth + 1).everything()
        else:
            inner = [*_trimmed(self._argument())]
        if not inner:
            return
        shown = "".join(node.text for node in inner)
        if sign == "^" and inner == [Node("sign", "\\circ")]:
            found.append(Node("mark", "^\\circ"))
        elif is_second:
            raise Unreadable("two exponents or two indices follow one another")
        elif sign == "^" and all(node == Node("mark", "'") for node in inner):
            found.extend(inner)
        elif not (sign == "^" and found and found[-1].kind == "number" and shown in commands.ORDINALS):
            found.append(Node(kind, "", (tuple(inner),)))

    def _color(self) -> None:
        """Reads the name of a color, which is not shown; refuses anything else."""
        if not self._take(r"\s*\{\s*[A-Za-z]+\s*\}"):
            raise Unreadable("`\\color` takes the name of a color")

    def _raw_group(self) -> str:
        """Reads a group verbatim, without its braces."""
        self._skip_spaces()
        start, depth = self._at, 0
        for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(self._text, start):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if brace.start() == start and depth == 0:
                break
            if depth == 0:
                self._at = brace.end()
                return self._text[start + 1 : brace.start()]
        raise Unreadable("a command lacks its argument")

    # --------------------------------------------------------------------------------- text
    def _text_nodes(self, name: str) -> list[Node]:
        """Splits text into its words and the mathematics in it: `\\text{12 cm}` is `12\\text{ cm}`."""
        self._skip_spaces()
        if not self._text.startswith("{", self._at):
            nodes = self._argument()
            if len(nodes) != 1:
                raise Unreadable("a text lacks its argument")
            return [Node("word", node.text) if node.kind == "letter" else node for node in nodes]
        content = self._raw_group()
        if name == "operatorname":
            if not content.isalpha():
                raise Unreadable(f"`{content}` is no function")
            content = commands.SYNONYMS.get(content, content)
            return [Node("function", f"\\{content}" if content in commands.FUNCTIONS else content)]
        if name == "mathrm" and content.strip() in ("i", "e", "d"):  # mathematics set upright, no unit
            return [Node("letter", content.strip())]
        if re.search(r"\\[cdt]?frac\b", content):  # \\mathrm{\\frac{m}{s}}
            return _upright(_PageParser(content, self._depth + 1).everything())
        found: list[Node] = []
        at = 0
        while at < len(content):
            match = _TEXT.match(content, at)
            assert match is not None
            at = match.end()
            if (inner := match["math"] if match["math"] is not None else match["round"]) is not None:
                found += _PageParser(inner, self._depth + 1).everything()
            elif match["word"]:
                found.append(Node("word", self._word(match["word"])))
            else:
                at = self._other_text(content, match, found)
        return found

    def _other_text(self, content: str, match: re.Match[str], found: list[Node]) -> int:
        """Reads what is no word in text; returns the place behind it."""
        token, at = match[0], match.end()
        if token in ("^", "_"):  # cm^2, m/s^{2}, m^{-1}
            script = re.compile(r"\s*(?:\{([^{}]*)\}|([-+]?\d+|\\circ|.))").match(content, at)
            if script is None:
                raise Unreadable("a command lacks its argument")
            at = script.end()
            _PageParser(f"{{{script[1] or script[2]}}}", self._depth + 1)._script(token, found)
        elif token.isspace():
            found.append(Node("space", " "))
        elif token not in ("{", "}") and not (token[0] == "\\" and token[1:] in _INVISIBLE_IN_TEXT):
            found += _PageParser(token, self._depth + 1).everything()
        return at

    def _word(self, word: str) -> str:
        for character in word:
            if not (character.isascii() or _is_latin(character) or character in "Åµ’"):
                raise Unreadable(f"its text holds {unicodedata.name(character, 'an unknown sign')}")
        return re.sub(r"\\mu\s*", "µ", re.sub(r"\\Omega\s*", "Ω", word.replace("’", "'")))

    # --------------------------------------------------------------------------------- environments
    def _environment(self) -> list[Node]:
        name = self._raw_group().strip().removesuffix("*")
        if name in ("array", "matrix"):
            self._take(r"\s*\{[lcr|\s]*\}")
        if name not in commands.MATRICES | commands.LINES:
            raise Unreadable(f"`{name}` is not an environment of an answer")
        rows: list[list[Node]] = [[]]
        ended_by = ""
        while ended_by != "\\end":
            nodes, ended_by = self._nodes()
            if ended_by in ("}", ""):
                raise Unreadable(f"the environment `{name}` does not end")
            rows[-1].append(Node("cell", "", (_trimmed(nodes),)))
            if ended_by == "\\\\":
                rows.append([])
                self._take(r"\s*\[[\w.\s]*\]")
        if self._raw_group().strip().removesuffix("*") != name:
            raise Unreadable(f"the environment `{name}` does not end")
        rows = [row for row in rows if any(cell.parts[0] for cell in row)]
        if name not in commands.LINES:
            return [Node("matrix", {"smallmatrix": "matrix"}.get(name, name), tuple(map(tuple, rows)))]
        found: list[Node] = []
        for row in rows:
            line = [node for cell in row for node in cell.parts[0]]
            if found and line and line[0].kind == "relation":
                raise Unreadable("it shows a derivation in several lines")
            found += [*([Node("comma", ",")] if found else []), *line]
        return found


def _upright(nodes: Iterable[Node]) -> list[Node]:
    """Writes runs of letters as words."""
    found: list[Node] = []
    for node in nodes:
        node = Node(node.kind, node.text, tuple(tuple(_upright(part)) for part in node.parts))
        if node.kind == "letter" and node.text.isalpha():
            is_run = found and found[-1].kind == "word"
            found.append(Node("word", found.pop().text + node.text if is_run else node.text))
        else:
            found.append(node)
    return found


def _opens_argument(found: Sequence[Node]) -> bool:
    """Whether a group that follows is a function's argument: `\\sin{x}`, `\\log_2{x}`."""
    before = (node.kind for node in reversed(found) if node.kind not in ("space", "sup", "sub"))
    return next(before, "") == "function"


def _drop_spaces(found: list[Node]) -> None:
    while found and found[-1].kind in ("space", "wide"):
        found.pop()


def _is_latin(character: str) -> bool:
    """Whether a character is a Latin letter, with or without accent, and not a look-alike from another script."""
    base = unicodedata.normalize("NFD", character)[0]
    return (base.isascii() and base.isalpha()) or character in "ßæœøłđðÆŒØŁ"
