r"""Reads a box as it is typeset, and writes it as one text that every verifier gets.

DeepScaleR's rules and math-verify each have their own LaTeX reader. One drops the argument of a command that the other
reads, one stops where the other goes on. So a box such as `630\label{\to 12}` was right for 630 and for 12. Here the
box is parsed once, before either sees it. `read` writes what the typeset page shows, in one spelling (`\frac12`,
`\dfrac{1}{2}` and `{1 \over 2}` all become `\frac{1}{2}`). It raises `Unreadable`, with the reason, if a box holds a
command that is not in `latex_commands`, something invisible, or two values side by side without a sign between them.
"""

from __future__ import annotations

import re
import unicodedata

from reward.graders import latex_commands as commands
from reward.graders.typeset import Piece, Unreadable, attach, last_of, to_text

_TOKEN = re.compile(
    r"\\(?P<name>[A-Za-z]+)\*?|\\(?P<sign>.)|(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<space>[\s~]+)|(?P<dots>\.\.\.+)"
    r"|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_TEXT_TOKEN = re.compile(r"\\(?P<name>[A-Za-z]+)\*?\s*|\\(?P<sign>.)|(?P<brace>[{}])|[^\\{}]+", re.DOTALL)
_NUMBER_IN_TEXT = re.compile(r"(?<![\w^_{.,\-])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|[.,]\d)", re.ASCII)
_REMARK = re.compile(r"\s*\((?!or\b)[a-z]{2,} [^(){}]*\)\s*")
"""A remark in brackets, kept whole: both verifiers ignore it, including its numbers."""
_MATH_IN_TEXT = re.compile(r"(?<!\\)\$([^$]*)\$|\\\((.*?)\\\)", re.DOTALL)
_ORDINAL = re.compile(r"(?:\\text\{\s*)?(?:st|nd|rd|th)\s*\}?")
_LARGE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LARGE_NUMBER = re.compile(
    rf"(?:(?<=\d)|(?<=\d\}}))\s*(?:\\text\{{\s*({'|'.join(_LARGE)})s?\b([^{{}}]*)\}}|({'|'.join(_LARGE)})s?\b)"
)
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}  # fmt: skip
_BASE = re.compile(rf"(?<=[\dA-F)])_\{{({'|'.join(_BASES)})\}}")
_NUMERAL = re.compile(r"\(([0-9A-F]+)\)(?=_\{\d+\}$)")
_VECTOR = re.compile(r"\\langle((?:(?!\\[lr]angle).)*,(?:(?!\\[lr]angle).)*)\\rangle")
_BARE_MATRIX = re.compile(
    r"([(\[])\s*\\begin\{(matrix|array)\}(?:\{[^{}]*\})?((?:(?!\\begin).)*?)\\end\{\2\}\s*[)\]]", re.DOTALL
)
_CHINESE = {
    "平方毫米": "mm^2", "平方厘米": "cm^2", "平方米": "m^2", "平方千米": "km^2", "平方公里": "km^2", "立方厘米": "cm^3",
    "立方米": "m^3", "毫米": "mm", "厘米": "cm", "分米": "dm", "千米": "km", "公里": "km", "米": "m", "毫克": "mg",
    "千克": "kg", "公斤": "kg", "克": "g", "吨": "tonnes", "毫升": "mL", "升": "L", "分钟": "minutes", "小时": "hours",
    "秒": "s", "天": "days", "周": "weeks", "年": "years", "岁": "years", "度": "degrees", "元": "yuan", "个": "pieces",
    "人": "people", "次": "times",
}  # fmt: skip
_CHINESE_UNIT = re.compile(
    rf"(?<=[\d}}])\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*({'|'.join(_CHINESE)})\s*\}}|({'|'.join(_CHINESE)}))\s*$"
)
"""A unit behind the number. Any other Chinese word is unreadable, because it may mean `or`."""
_CHARACTERS = str.maketrans(commands.CHARACTERS)
_MAX_DEPTH = 60


_KINDS = {
    **dict.fromkeys("+-*/:.|", "sign"), **dict.fromkeys("=<>", "relation"), **dict.fromkeys(",;", "comma"),
    **dict.fromkeys("([", "open"), **dict.fromkeys(")]", "close"),
}  # fmt: skip
_COMMAND_KINDS = {
    "letter": commands.LETTERS, "function": commands.FUNCTIONS, "sign": commands.SIGNS | {"|"},
    "relation": commands.RELATIONS, "open": commands.OPENING, "close": commands.CLOSING,
}  # fmt: skip


def read(box: str) -> str:
    r"""What the box shows, in one spelling. Raises Unreadable.

    Example: read(r"\dfrac12 \, \mathrm{cm}") -> r"\frac{1}{2} \text{cm}"
    """
    text = re.sub(r"\s*\\+\s*$", "", box.strip())
    if match := re.fullmatch(r"(\*\*|`)([^*`]+)\1", text):  # Markdown
        text = match[2]
    text = _CHINESE_UNIT.sub(lambda found: f"\\text{{ {_CHINESE[found[1] or found[2]]}}}", text)
    shown = _Parser(text.translate(_CHARACTERS)).everything()
    shown = _LARGE_NUMBER.sub(_power_of_ten, shown)
    shown = re.sub(r"^(?:\\(?:approx|sim|simeq)\b|:)\s*", "", shown)
    shown = _BASE.sub(lambda found: f"_{{{_BASES[found[1]]}}}", shown)
    shown = _VECTOR.sub(r"(\1)", _NUMERAL.sub(r"\1", shown))
    return _BARE_MATRIX.sub(_bracketed_matrix, shown)


def _power_of_ten(found: re.Match[str]) -> str:
    words = found[2] or ""
    power = _LARGE[found[1] or found[3]]
    return f"\\times 10^{{{power}}}" + (f"\\text{{{words}}}" if words.strip() else "")


def _bracketed_matrix(found: re.Match[str]) -> str:
    name = "pmatrix" if found[1] == "(" else "bmatrix"
    return f"\\begin{{{name}}}{found[3]}\\end{{{name}}}"


# ------------------------------------------------------------------------------------- from LaTeX to pieces
class _Parser:
    """A recursive-descent parser over one text. Reading methods return pieces, or the line that they form."""

    def __init__(self, text: str, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        self._text, self._at, self._depth = text, 0, depth
        self._dollars = len(re.findall(r"(?<!\\)\$", text))

    def everything(self) -> str:
        pieces, ended_by = self._pieces()
        if ended_by:
            raise Unreadable(f"`{ended_by}` stands outside of a matrix or has no counterpart")
        return to_text(pieces)

    def _next(self) -> re.Match[str] | None:
        match = _TOKEN.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _skip_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _pieces(self) -> tuple[list[Piece], str]:
        """Reads pieces up to a `}`, `&`, `\\\\`, `\\end` or the `]` of an option, returned with that sign, or to the
        end."""
        found: list[Piece] = []
        while (token := self._next()) is not None:
            if token["name"] is not None:
                if token["name"] == "end":
                    return found, "\\end"
                if token["name"] in ("over", "choose"):
                    below, ended_by = self._pieces()
                    command = "frac" if token["name"] == "over" else "binom"
                    return [Piece("value", f"\\{command}{{{to_text(found)}}}{{{to_text(below)}}}")], ended_by
                self._command(token["name"], found)
            elif token["sign"] is not None:
                if token["sign"] == "\\":
                    return found, "\\\\"
                self._command(token["sign"], found)
            elif token["number"] is not None:
                found.append(Piece("number", token["number"]))
            elif token["space"] is not None:
                found.append(Piece("space", " "))
            elif token["dots"] is not None:
                found.append(Piece("sign", "\\ldots"))
            elif token["other"] in "}&":
                return found, token["other"]
            else:
                self._character(token["other"], found)
        return found, ""

    def _character(self, character: str, found: list[Piece]) -> None:
        if character == "{":
            inner = self._group()
            last = last_of(found)
            if last is not None and last.kind == "function":
                found.append(Piece("value", f"{{{to_text(inner)}}}"))
            else:
                found.extend(inner)
        elif character in "^_":
            self._script(character, found)
        elif character in "'!":
            attach(found, character)
        elif character == "%":
            attach(found, "\\%")
        elif character == "$":
            if self._dollars % 2 and self._text[self._at : self._at + 1].isdigit():
                found.append(Piece("sign", "\\$"))
        elif character == '"':
            found.append(Piece("space", " "))
        elif kind := _KINDS.get(character):
            found.append(Piece(kind, character))
        elif character.isalpha() and _is_latin(character):
            found.append(Piece("letter", character))
        else:
            name = unicodedata.name(character, f"U+{ord(character):04X}")
            raise Unreadable(f"it holds a sign that is no mathematics: {name}")

    def _command(self, name: str, found: list[Piece]) -> None:
        if match := re.fullmatch(r"(q?quad)([A-Za-z]+)", name):  # a space is missing behind it
            self._at -= len(match[2])
            name = match[1]
        name = commands.SYNONYMS.get(name, name)
        if name in commands.STAND_FOR:
            inner = _Parser(commands.STAND_FOR[name], self._depth + 1)
            if commands.STAND_FOR[name][0] in "^'":
                inner._prepend(found)
            else:
                found.extend(inner._pieces()[0])
        elif name in commands.SPACES:
            found.append(Piece("space", " "))
        elif name in commands.WIDE_SPACES:
            found.append(Piece("wide", " "))
        elif name in commands.APPEARANCE | commands.CURRENCIES:
            if name in ("left", "right", "middle", "!"):
                self._skip_spaces()
            if name in ("left", "right", "middle"):
                self._at += self._text.startswith(".", self._at)
        elif name in commands.WRAPPERS:
            found.extend(self._argument())
        elif name in commands.TEXTS:
            found.extend(self._text_pieces(name))
        elif name in ("color", "textcolor"):
            self._color()
            found.extend(self._argument() if name == "textcolor" else [])
        elif name == "begin":
            found.append(self._environment())
        elif name == "not":
            found.append(Piece("relation", self._negated()))
        elif name in ("%", "$"):
            attach(found, "\\%") if name == "%" else found.append(Piece("sign", "\\$"))
        else:
            found.append(self._mathematics(name))

    def _mathematics(self, name: str) -> Piece:
        """Reads a symbol, or a command with its arguments."""
        command = f"\\{name}"
        if name in ("frac", "binom"):
            above, below = to_text(self._argument()), to_text(self._argument())
            return Piece("value", f"{command}{{{above}}}{{{below}}}")
        if name == "sqrt":
            index = self._option()
            return Piece("value", f"{command}{index}{{{to_text(self._argument())}}}")
        if name == "pmod":
            return Piece("value", f"{command}{{{to_text(self._argument())}}}")
        if name in commands.ALPHABETS:
            return Piece("letter", f"{command}{{{to_text(self._argument())}}}")
        if name in commands.ACCENTS:
            below = to_text(self._argument())
            if name == "overline" and re.fullmatch(r"[A-Z]{2}", below):  # a line segment
                return Piece("letter", below)
            if re.search(r"\d", re.sub(r"_(\d|\{[^{}]*\})", "", below)):
                raise Unreadable(f"`{command}` stands over a number")
            return Piece("value", f"{command}{{{below}}}")
        for kind, names in _COMMAND_KINDS.items():
            if name in names:
                return Piece(kind, command)
        raise Unreadable(f"`{command}` is not a command of an answer")

    # --------------------------------------------------------------------------------- arguments
    def _group(self) -> list[Piece]:
        """Reads the pieces of a group whose brace is already open."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable("it is nested too deeply")
        inner, ended_by = self._pieces()
        if ended_by != "}":
            raise Unreadable("its braces do not match")
        self._depth -= 1
        return inner

    def _argument(self) -> list[Piece]:
        """Reads a group, a command with its arguments, a letter or one digit."""
        self._skip_spaces()
        if self._at < len(self._text) and self._text[self._at].isdigit():
            self._at += 1
            return [Piece("number", self._text[self._at - 1])]
        token = self._next()
        found: list[Piece] = []
        if token is None or token["other"] in tuple("}&^_"):
            raise Unreadable("a command lacks its argument")
        if token["name"] or token["sign"]:
            self._command(token["name"] or token["sign"], found)
        else:
            self._character(token[0], found)
        return found

    def _option(self) -> str:
        self._skip_spaces()
        if not self._text.startswith("[", self._at):
            return ""
        end = self._text.find("]", self._at)
        if end < 0:
            raise Unreadable("a bracket is not closed")
        inner = _Parser(self._text[self._at + 1 : end], self._depth + 1).everything()
        self._at = end + 1
        return f"[{inner}]"

    def _script(self, sign: str, found: list[Piece]) -> None:
        """Reads an exponent or index and writes it behind what it belongs to."""
        self._skip_spaces()
        if match := re.compile(r"[-+]?\d+").match(self._text, self._at):  # 2^10 is meant as 2^{10}
            self._at = match.end()
            attach(found, _scripted(sign, match[0]))
            return
        inner = to_text(self._argument()).strip()
        base = last_of(found)
        if sign == "^" and base is not None and base.kind == "number" and _ORDINAL.fullmatch(inner):
            return
        if inner and (script := _scripted(sign, inner)) != "^'":
            attach(found, script)
        elif inner:
            attach(found, inner)

    def _prepend(self, found: list[Piece]) -> None:
        """Reads this text behind what another parser has found: a degree sign or a prime belongs to that."""
        while (token := self._next()) is not None:
            self._character(token[0], found)

    def _color(self) -> None:
        """Reads the name of a color, which is not shown; refuses anything else."""
        match = re.compile(r"\s*\{\s*[A-Za-z]+\s*\}").match(self._text, self._at)
        if match is None:
            raise Unreadable("`\\color` takes the name of a color")
        self._at = match.end()

    def _negated(self) -> str:
        match = re.compile(r"\s*(=|\\in\b|\\equiv\b)").match(self._text, self._at)
        if match is None:
            raise Unreadable("`\\not` strikes something out")
        self._at = match.end()
        return {"=": "\\ne", "\\in": "\\notin"}.get(match[1], "\\not\\equiv")

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
    def _text_pieces(self, name: str) -> list[Piece]:
        """Splits text into words and the numbers and mathematics in it: `\\text{12 cm}` is `12\\text{ cm}`."""
        self._skip_spaces()
        if not self._text.startswith("{", self._at):
            return [Piece("text", f"\\text{{{to_text(self._argument())}}}")]
        content = self._raw_group()
        if name == "operatorname" and content.isalpha():
            is_known = content in commands.FUNCTIONS
            return [Piece("function", f"\\{content}" if is_known else f"\\operatorname{{{content}}}")]
        if name == "mathrm" and content.strip() in ("i", "e", "d", "T"):  # mathematics set upright, no unit
            return [Piece("letter", content.strip())]
        found: list[Piece] = []
        end = 0
        for math in _MATH_IN_TEXT.finditer(content):
            found += self._plain_text(content[end : math.start()])
            found += _Parser(math[1] or math[2] or "", self._depth + 1)._all_pieces()
            end = math.end()
        return found + self._plain_text(content[end:])

    def _plain_text(self, text: str) -> list[Piece]:
        words, found, end = _without_commands(text), [], 0
        if _REMARK.fullmatch(words):
            return [Piece("text", f"\\text{{{words}}}")]
        for number in _NUMBER_IN_TEXT.finditer(words):
            found += self._words(words[end : number.start()])
            found += _Parser(number[0], self._depth + 1)._all_pieces()
            end = number.end()
        return found + self._words(words[end:])

    def _words(self, words: str) -> list[Piece]:
        if re.search(r"[^\W\d_]", words):
            for character in words:
                if not (character.isascii() or _is_latin(character)):
                    raise Unreadable(f"its text holds {unicodedata.name(character, 'an unknown sign')}")
            return [Piece("text", f"\\text{{{words}}}")]
        return _Parser(words, self._depth + 1)._all_pieces()

    def _all_pieces(self) -> list[Piece]:
        pieces, ended_by = self._pieces()
        if ended_by:
            raise Unreadable(f"`{ended_by}` stands in a text")
        return pieces

    # --------------------------------------------------------------------------------- environments
    def _environment(self) -> Piece:
        name = self._raw_group().strip().removesuffix("*")
        columns = re.compile(r"\s*\{[lcr|\s]*\}").match(self._text, self._at)
        if columns is not None and name in ("array", "matrix"):
            self._at = columns.end()
        if name not in commands.MATRICES | commands.LINES:
            raise Unreadable(f"`{name}` is not an environment of an answer")
        rows: list[list[str]] = [[]]
        ended_by = ""
        while ended_by != "\\end":
            pieces, ended_by = self._pieces()
            if ended_by in ("}", ""):
                raise Unreadable(f"the environment `{name}` does not end")
            rows[-1].append(to_text(pieces))
            if ended_by == "\\\\":
                rows.append([])
                if space := re.compile(r"\s*\[[\w.\s]*\]").match(self._text, self._at):
                    self._at = space.end()
        if self._raw_group().strip().removesuffix("*") != name:
            raise Unreadable(f"the environment `{name}` does not end")
        rows = [row for row in rows if any(row)]
        if name in commands.LINES:
            lines = ["".join(row) for row in rows]
            if any(
                re.match(r"\s*(?:[=<>]|\\(?:le|ge|ne|approx|equiv|Rightarrow)\b)", line) for line in lines[1:]
            ):
                raise Unreadable("it shows a derivation in several lines")
            return Piece("value", ", ".join(lines))
        name = {"smallmatrix": "matrix"}.get(name, name)
        option = f"{{{'c' * max(map(len, rows), default=1)}}}" if name == "array" else ""
        body = " \\\\ ".join(" & ".join(row) for row in rows)
        return Piece("value", f"\\begin{{{name}}}{option}{body}\\end{{{name}}}")


# ------------------------------------------------------------------------------------- small readings
def _is_latin(character: str) -> bool:
    """Whether a character is a Latin letter, with or without accent, and not a look-alike from another script."""
    base = unicodedata.normalize("NFD", character)[0]
    return (base.isascii() and base.isalpha()) or character in "ßæœøłđðÆŒØŁ"


def _scripted(sign: str, inner: str) -> str:
    """Returns an exponent or index with its sign. An upright index as in v_{\\text{max}} becomes the index v_{max}."""
    if sign == "_" and (word := re.fullmatch(r"\\text\{\s*([A-Za-z]+)\s*\}", inner)):
        inner = word[1]
    return sign + inner if inner in ("\\circ", "'") else f"{sign}{{{inner}}}"


def _without_commands(text: str) -> str:
    """Removes commands and braces from text. Raises Unreadable at a command that is unknown in text."""
    found: list[str] = []
    for token in _TEXT_TOKEN.finditer(text):
        name = token["name"] or token["sign"]
        if name is None:
            found.append("" if token["brace"] else token[0])
        elif name in commands.SPACES | commands.WIDE_SPACES:
            found.append(" ")
        elif name in commands.TEXTS | commands.APPEARANCE | commands.WRAPPERS:
            found.append("")
        elif name in ("%", "$", "&", "_", "#"):
            found.append({"%": "\\%", "$": "\\$"}.get(name, name))
        elif name in ("mu", "Omega", "cdot", "circ", "times"):
            found.append(f"\\{name} ")
        else:
            raise Unreadable(f"`\\{name}` stands in a text")
    return re.sub(r"\s+", " ", "".join(found).replace("~", " "))
