"""Reads nodes of mathematics as a sympy expression: every node is part of it, or it is unreadable.

Numbers are exact, decimals too. Letters are real variables, case and index included; `e`, `i` and `\\pi` are constants.
An operation that a question may ask to carry out (a limit, sum, product, derivative, gcd, maximum, floor,
determinant) is reported in `pending`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sympy

from reward.graders.math.arithmetic import binomial, factorial, raised, repeating, root, rounded, symbol
from reward.graders.math.nodes import Node, Nodes, Unreadable, closing, is_comma, is_sign_of, show, split
from reward.graders.math.variants import CALLED
from reward.graders.safe import MAX_FACTORIAL

_NAMES = ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech", "csch")
_INVERSE = {f"\\{name}": getattr(sympy, f"a{name}") for name in _NAMES}
_SIMPLE = {
    **{f"\\{name}": getattr(sympy, name) for name in _NAMES},
    **{f"\\arc{name[1:]}": function for name, function in _INVERSE.items()},
    "\\exp": lambda value: raised(sympy.E, value), "\\ln": sympy.log, "\\log": sympy.log,
    "\\lg": lambda value: sympy.log(value, 10), "\\arg": sympy.arg, "\\sgn": sympy.sign,
    "cis": lambda value: sympy.exp(sympy.I * value),
}  # fmt: skip
_MANY = {
    "\\gcd": lambda *values: sympy.gcd_list([*values]), "\\lcm": lambda *values: sympy.lcm_list([*values]),
    "\\max": sympy.Max, "\\min": sympy.Min,
}  # fmt: skip
_BOUND = ("\\sum", "\\prod", "\\lim")
_BRACKETS = {"(": ")", "[": "]", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "\\{": "\\}", "|": "|"}
_TIMES = ("\\cdot", "\\times", "*", "\\ast")
_OVER = ("/", "\\div")
_CONSTANTS = {"e": sympy.E, "i": sympy.I, "\\pi": sympy.pi, "\\infty": sympy.oo, "\\imath": sympy.I}
_DIFFERENTIALS = (Node("letter", "d"), Node("letter", "\\partial"))
_LONGEST = 400
_MOST_LOGARITHMS = 4
"""Each one in an argument takes sympy several times as long to compute."""


def parse(nodes: Sequence[Node], bound: frozenset[str] = frozenset()) -> tuple[Any, frozenset[str]]:
    """Returns the sympy expression of the nodes, and the operations that are left to carry out. Raises Unreadable."""
    parser = _ExpressionParser([node for node in nodes if node.kind not in ("space", "wide")], bound)
    value = parser.sum()
    if parser.node is not None:
        raise Unreadable(f"`{show([parser.node])}` stands where no part of an expression can stand")
    is_constant = isinstance(value, sympy.Expr) and not value.free_symbols
    if is_constant and parser.has_variables and not parser.pending:
        parser.pending.add("simplify")  # x^0 is not yet 1
    return value, frozenset(parser.pending)


class _ExpressionParser:
    """A recursive-descent parser over nodes without spaces."""

    def __init__(self, nodes: list[Node], bound: frozenset[str]) -> None:
        if not nodes:
            raise Unreadable("a part of an expression is missing")
        if len(nodes) > _LONGEST:
            raise Unreadable("it is too long")
        self._nodes, self._at, self._bound = nodes, 0, bound
        self.pending: set[str] = set()
        self.has_variables = False

    @property
    def node(self) -> Node | None:
        return self._nodes[self._at] if self._at < len(self._nodes) else None

    def _ahead(self, steps: int = 1) -> Node | None:
        return self._nodes[self._at + steps] if self._at + steps < len(self._nodes) else None

    def _is(self, *signs: str) -> bool:
        return self.node is not None and self.node.kind == "sign" and self.node.text in signs

    def _inner(self, nodes: Sequence[Node]) -> Any:
        """Returns the value of an argument, an exponent or a bracket's content."""
        value, pending = parse(nodes, self._bound)
        self.pending |= pending
        return value

    def sum(self) -> Any:
        total = self._signed()
        while self._is("+", "-"):
            total = total + self._signed()
        return total

    def _signed(self) -> Any:
        sign = 1
        while self._is("+", "-"):
            sign = -sign if self._is("-") else sign
            self._at += 1
        return sign * self._product()

    def _product(self) -> Any:
        value = self._factor()
        is_divided = is_below = False
        while self.node is not None:
            if self._is(*_TIMES):
                self._at += 1
                value, is_divided = self._times(value, self._signed_factor()), False
            elif self._is(*_OVER):
                self._at += 1
                divisor = self._signed_factor()
                if divisor == 0:
                    raise Unreadable("it divides by zero")
                is_below = bool(value.free_symbols or divisor.free_symbols)
                value, is_divided = value / divisor, True
            elif self._begins_factor():
                if is_divided and is_below:  # h/2\pi is h/(2\pi), but 1/2x is half of x
                    value = value / self._factor()
                else:
                    value = self._times(value, self._factor())
            else:
                break
        return value

    def _times(self, one: Any, other: Any) -> Any:
        are_matrices = isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase)
        if are_matrices and not (one.is_Identity or other.is_Identity):
            self.pending.add("matrix product")
        return one * other

    def _signed_factor(self) -> Any:
        sign = -1 if self._is("-") else 1
        self._at += self._is("-", "+")
        return sign * self._factor()

    def _begins_factor(self) -> bool:
        node = self.node
        if node is None:
            return False
        if node.kind == "number":  # 2^n3^n, 7!3!
            before = self._nodes[self._at - 1]
            following = self._ahead()
            is_power = following is not None and following.kind == "sup"
            is_apart = before.kind == "sup" or before in (Node("mark", "!"), Node("letter", "i"))
            if not is_apart and not (before.kind in ("close", "binom") and is_power):  # (n-2)2^n
                raise Unreadable(f"a number follows a value without a sign: `{node.text}`")
            return True
        if node.text == "|":
            return self._at + 1 < len(self._nodes) and self._closing("|") is not None
        kinds = ("letter", "function", "frac", "binom", "sqrt", "accent", "matrix", "group")
        return node.kind in kinds or (node.kind == "open" and node.text in _BRACKETS)

    # --------------------------------------------------------------------------------- factors
    def _factor(self) -> Any:
        node = self.node
        if node is None:
            raise Unreadable("a part of an expression is missing")
        start = self._at
        self._at += 1
        match node.kind:
            case "number":
                return self._powers(self._number(node))
            case "letter":
                return self._letter(node)
            case "frac":
                return self._powers(self._fraction(node))
            case "binom":
                return self._powers(binomial(*map(self._inner, node.parts)))
            case "sqrt":
                index = self._inner(node.parts[1]) if len(node.parts) > 1 else sympy.Integer(2)
                return self._powers(root(self._inner(node.parts[0]), index))
            case "accent":
                return self._powers(self._indexed(f"{node.text}{{{show(node.parts[0])}}}"))
            case "matrix":
                rows = [[self._inner(cell.parts[0]) for cell in row if cell.parts[0]] for row in node.parts]
                if node.text in ("vmatrix", "Vmatrix", "cases"):
                    self.pending.add("determinant")
                return sympy.ImmutableDenseMatrix(rows)
            case "function":
                return self._function(node.text)
            case "open":
                return self._bracket(node.text)
            case "sign" if node.text == "." and self.node is not None and _repeats(self.node):
                self._at -= 1
                return self._powers(self._number(Node("number", "0")))
            case "sign" if node.text == "|":
                self._at = start
                return self._bracket("|")
            case "sign" if node.text == "\\|" and node in self._nodes[self._at :]:  # a norm
                end = self._nodes.index(node, self._at)
                inner, self._at = self._nodes[self._at : end], end + 1
                self._inner(inner)
                return self._powers(self._indexed(f"\\|{show(inner)}\\|"))
        raise Unreadable(f"`{show([node])}` stands where a value is missing")

    def _number(self, node: Node) -> Any:
        digits = node.text
        following, beyond = self.node, self._ahead()
        if following == Node("sign", ".") and beyond is not None and _repeats(beyond):
            self._at += 1
            following, digits = beyond, f"{digits}."
        if following is not None and "." in digits and _repeats(following):
            again = ""
            while self.node is not None and _repeats(self.node):  # 0.\dot{1}\dot{2}
                again += show(self.node.parts[0])
                self._at += 1
            return repeating(digits, again)
        if following == Node("sign", "\\ldots") and "." in digits:
            self._at += 1
            if len({*digits[-3:]}) == 1:  # 0.333...
                return repeating(digits[:-3], digits[-1])
        value = sympy.Rational(digits)
        is_mixed = digits.isdigit() and following is not None and following.kind == "frac"
        if following is not None and is_mixed and all(map(_is_digits, following.parts)):  # 7 3/4
            self._at += 1
            return value + self._fraction(following)
        return value

    def _fraction(self, node: Node) -> Any:
        above, below = node.parts
        if not (above and below):
            raise Unreadable("a part of a fraction is missing")
        is_derivative = above[0] in _DIFFERENTIALS and below[0] in _DIFFERENTIALS
        if is_derivative and below[1:] and below[1].kind == "letter":
            name = f"\\frac{{{show(above)}}}{{{show(below)}}}"
            if len(above) > 1 + (above[1:] != () and above[1].kind == "sup"):  # dy/dx is a name
                return symbol(name)
            self.pending.add("derivative")
            return sympy.Function(name)(self._product())
        divisor = self._inner(below)
        if divisor == 0:
            raise Unreadable("it divides by zero")
        return self._inner(above) / divisor

    def _letter(self, node: Node) -> Any:
        if self.node is not None and self.node.text == "(" and (end := self._closing(")")) is not None:
            inner = self._nodes[self._at + 1 : end]
            if inner and _is_call(node.text, inner):
                self._at, self.has_variables = end + 1, True
                arguments = map(self._inner, split(inner, is_comma))
                return self._powers(sympy.Function(node.text)(*arguments))
        is_indexed = self.node is not None and self.node.kind == "sub"
        if node.text in _CONSTANTS and node.text not in self._bound and not is_indexed:
            return self._powers(_CONSTANTS[node.text])
        return self._powers(self._indexed(node.text))

    def _indexed(self, name: str) -> Any:
        """Returns the variable of a name with its index and primes."""
        if self.node is not None and self.node.kind == "sub":
            name += show([self.node])
            self._at += 1
        while self.node == Node("mark", "'"):
            name += "'"
            self._at += 1
        self.has_variables = True
        return symbol(name)

    def _powers(self, value: Any) -> Any:
        """Reads exponents, factorials and degree signs behind a value."""
        while self.node is not None and self.node.kind in ("sup", "mark"):
            node = self.node
            self._at += 1
            if node.kind == "sup":
                value = raised(value, self._inner(node.parts[0]))
            elif node.text == "!" and self.node == Node("mark", "!"):
                self._at += 1
                is_small = not value.is_number or value <= MAX_FACTORIAL
                value = sympy.factorial2(value) if is_small else factorial(value)
            elif node.text == "!":
                value = factorial(value)
            elif node.text == "^\\circ":
                value = value * sympy.pi / 180
            elif node.text == "\\%":
                value = value / 100
            else:
                raise Unreadable("a prime stands behind what is no name")
        return value

    # --------------------------------------------------------------------------------- brackets
    def _closing(self, close: str) -> int | None:
        """Returns the place of the bracket that closes the one at this place."""
        if close == "|":
            return next(
                (
                    place
                    for place in range(self._at + 1, len(self._nodes))
                    if self._nodes[place] == Node("sign", "|")
                ),
                None,
            )
        steps = closing(self._nodes[self._at :])
        place = None if steps is None else self._at + steps
        return place if place is not None and self._nodes[place].text == close else None

    def _bracket(self, opening: str) -> Any:
        if opening != "|":
            self._at -= 1
        end = self._closing(_BRACKETS[opening]) if opening in _BRACKETS else None
        if end is None:
            raise Unreadable(f"`{opening}` has no counterpart")
        inner = self._inner(self._nodes[self._at + 1 : end])
        self._at = end + 1
        if opening == "|":
            inner = sympy.Abs(inner)
        elif opening in ("\\lfloor", "\\lceil"):
            self.pending.add("floor")
            inner = rounded(sympy.floor if opening == "\\lfloor" else sympy.ceiling, inner)
        elif opening == "\\{":
            raise Unreadable("a set stands in an expression")
        return self._powers(inner)

    # --------------------------------------------------------------------------------- functions
    def _function(self, name: str) -> Any:
        index = power = None
        while self.node is not None and self.node.kind in ("sub", "sup"):
            if self.node.kind == "sub":
                index = self.node.parts[0]
            else:
                power = self.node.parts[0]
            self._at += 1
        if name in _BOUND:
            return self._bounded(name, index, power)
        if name in _MANY or name == "\\det":
            self.pending.add(name[1:])
            if name == "\\det" or index is not None or power is not None:
                raise Unreadable(f"`{name}` is left to carry out")
            return _MANY[name](*self._arguments(name))
        function = _SIMPLE.get(name)
        if function is None:
            function = sympy.Function(name)
        if index is not None:
            if name != "\\log":
                raise Unreadable(f"`{name}` has an index")
            base = self._inner(index)
            function = lambda value: sympy.log(value, base)  # noqa: E731
        if power is not None and show(power) == "-1" and name in _INVERSE:
            function, power = _INVERSE[name], None
        argument = self._argument(name)
        if not isinstance(argument, sympy.Expr):
            raise Unreadable(f"`{name}` of what is no number")
        if len(argument.atoms(sympy.log)) > _MOST_LOGARITHMS:
            raise Unreadable("it is nested too deeply")
        value = function(argument)
        return value if power is None else raised(value, self._inner(power))

    def _argument(self, name: str) -> Any:
        """Reads a function's argument: a bracket, or all factors up to a sign or another function."""
        node = self.node
        if node is None:
            raise Unreadable(f"`{name}` lacks its argument")
        if node.kind == "group" or (node.kind == "open" and node.text == "("):
            end = self._closing(")") if node.kind == "open" else self._at
            if end is None:
                raise Unreadable("`(` has no counterpart")
            inner = node.parts[0] if node.kind == "group" else self._nodes[self._at + 1 : end]
            self._at = end + 1
            return self._inner(inner)
        value = self._signed_factor()
        while self.node is not None and self.node.kind in ("letter", "frac", "sqrt", "accent"):
            value = value * self._factor()
        while self._is("/") and (ahead := self._ahead()) is not None and ahead.kind == "number":  # \sin \pi/6
            self._at += 1
            value = value / self._factor()
        return value

    def _arguments(self, name: str) -> list[Any]:
        end = self._closing(")") if self.node == Node("open", "(") else None
        if end is None:
            raise Unreadable(f"`{name}` lacks its arguments")
        inner, self._at = self._nodes[self._at + 1 : end], end + 1
        return [self._inner(part) for part in split(inner, is_comma)]

    def _bounded(self, name: str, low: Nodes | None, high: Nodes | None) -> Any:
        """Reads a sum, product or limit, whose variable gets a name that does not depend on the letter."""
        self.pending.add(name[1:])
        sign = "\\rightarrow" if name == "\\lim" else "="
        sides = split(low or (), is_sign_of(sign))
        if len(sides) != 2 or (name != "\\lim" and not high):
            raise Unreadable(f"`{name}` lacks its bounds")
        self._bound = self._bound | {show(sides[0])}
        variable = self._inner(sides[0])
        ends = (self._inner(sides[1]), *((self._inner(high or ()),) if name != "\\lim" else ()))
        value = self._product()
        if not variable.is_Symbol:
            raise Unreadable(f"`{name}` runs over what is no variable")
        bound = sympy.Symbol(f"bound {len(value.free_symbols)}", real=True)
        value = value.subs(variable, bound)
        index = f"_{{{variable.name}}}"
        value = value.subs(
            {
                one: symbol(one.name.replace(index, "_{bound}"))
                for one in value.free_symbols
                if index in one.name
            }
        )
        return sympy.Function(name)(value, bound, *ends)


def _is_call(name: str, inner: Sequence[Node]) -> bool:
    """Whether a letter and a bracket are a function's call, f(x+1), P(A) or T(n-1), and no product, g(h+R)."""
    if name == "f":
        return True
    text = show(inner)
    if name == "P":
        return re.fullmatch(r"[A-Z](?:[,|][A-Z])*", text) is not None
    return name in CALLED and re.fullmatch(r"[a-z]|\d+|[nkmx][-+]\d", text) is not None


def _is_digits(nodes: Nodes) -> bool:
    return len(nodes) == 1 and nodes[0].kind == "number" and nodes[0].text.isdigit()


def _repeats(node: Node) -> bool:
    return (
        node.kind == "accent" and node.text in ("\\overline", "\\bar", "\\dot") and _is_digits(node.parts[0])
    )
