"""The LaTeX commands that an answer may contain, each with its arguments and what it shows.

A command that is not listed makes a box unreadable (see `page`). Add a command only if the page shows all of its
arguments.
"""

from __future__ import annotations


def names(words: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(words.split())


SPACES = names(", ; : > thinspace medspace thickspace enspace enskip nobreakspace") | {" ", "\n", "\t"}
WIDE_SPACES = names("quad qquad")
"""Spaces between two statements; between two equations they mean a comma."""
APPEARANCE = names(
    "! displaystyle textstyle scriptstyle limits nolimits bf it rm sf tt bfseries itshape rmfamily large Large LARGE "
    "huge small normalsize left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm hline "
    "notag nonumber checkmark ( ) [ ]"
)
"""Commands without an argument that change how the rest looks, and the delimiters of mathematics."""
CURRENCIES = {"$": "$", "pounds": "£", "euro": "€", "texteuro": "€", "yen": "¥"}
CURRENCY_SIGNS = "€£¥₹"
ORDINALS = names("st nd rd th")
WRAPPERS = names("mathbf mathit boldsymbol bm mathsf mathtt underline boxed fbox ensuremath ce")
"""Commands whose one argument is shown as it is."""
TEXTS = names(
    "text textrm textbf textit textsf texttt textnormal textup textmd textsl emph mbox hbox mathrm operatorname"
)
"""Commands whose one argument is text."""
SYNONYMS = {
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "dfrac": "frac", "tfrac": "frac",
    "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "varnothing": "emptyset", "to": "rightarrow",
    "implies": "Rightarrow", "iff": "Leftrightarrow", "wedge": "land", "vee": "lor", "lnot": "neg", "dots": "ldots",
    "dotsc": "ldots", "dotsb": "cdots", "smallsetminus": "setminus", "backslash": "setminus",
    "infin": "infty", "mathbbm": "mathbb", "longrightarrow": "rightarrow",
}  # fmt: skip
"""Other names of a command."""
STAND_FOR = {
    "colon": ":", "ast": "*", "lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "prime": "'",
    "lVert": "\\|", "rVert": "\\|", "Vert": "\\|", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]",
    "degree": "^\\circ", "R": "\\mathbb{R}", "lparen": "(", "rparen": ")",
}  # fmt: skip
"""Commands that are another way to type these signs."""
LETTERS = names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi varpi rho varrho "
    "sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega "
    "hbar ell Re Im aleph nabla partial infty emptyset imath jmath"
)
FUNCTIONS = names(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arcsinh arccosh "
    "arctanh log ln lg exp det dim ker deg gcd lcm min max sup inf lim arg sum prod int iint oint sgn tr rank"
)
"""Function names: a number behind one is its argument."""
SIGNS = names(
    "cdot times div pm mp cup cap setminus oplus otimes circ bullet star neg triangle angle perp parallel square "
    "ldots cdots vdots forall exists top bot dagger"
)
RELATIONS = names(
    "le ge ne approx equiv sim simeq cong propto in notin ni subset subseteq supset supseteq mid rightarrow leftarrow "
    "Rightarrow Leftarrow Leftrightarrow leftrightarrow rightleftharpoons mapsto land lor ll gg bmod"
)
OPENING = names("lfloor lceil langle {")
CLOSING = names("rfloor rceil rangle }")
ACCENTS = names("overline bar hat widehat vec overrightarrow dot ddot tilde widetilde")
"""Marks over letters. One verifier would ignore them over numbers."""
ALPHABETS = names("mathbb mathcal mathfrak mathscr")
MATRICES = names("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases")
LINES = names("aligned align gathered gather split equation")
"""Environments that stack statements: read as a list."""
