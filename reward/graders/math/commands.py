"""The LaTeX commands that an answer may contain, each with its arguments and what it shows.

A command that is not listed makes a box unreadable (see `page`). Add a command only if the page shows all of its
arguments.
"""

from __future__ import annotations

import re


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


SPACES = _names(", ; : > thinspace medspace thickspace enspace enskip nobreakspace") | {" ", "\n", "\t"}
WIDE_SPACES = _names("quad qquad")
"""Spaces between two statements; between two equations they mean a comma."""
APPEARANCE = _names(
    "! displaystyle textstyle scriptstyle limits nolimits bf it rm sf tt bfseries itshape rmfamily large Large LARGE "
    "huge small normalsize left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm hline "
    "notag nonumber checkmark ( ) [ ]"
)
"""Commands without an argument that change how the rest looks, and the delimiters of mathematics."""
CURRENCIES = {"$": "$", "pounds": "£", "euro": "€", "texteuro": "€", "yen": "¥"}
CURRENCY_SIGNS = "€£¥₹"
ORDINALS = _names("st nd rd th")
WRAPPERS = _names("mathbf mathit boldsymbol bm mathsf mathtt underline boxed fbox ensuremath ce")
"""Commands whose one argument is shown as it is."""
TEXTS = _names(
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
LETTERS = _names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi varpi rho varrho "
    "sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega "
    "hbar ell Re Im aleph nabla partial infty emptyset imath jmath"
)
FUNCTIONS = _names(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arcsinh arccosh "
    "arctanh log ln lg exp det dim ker deg gcd lcm min max sup inf lim arg sum prod int iint oint sgn tr rank"
)
"""Function names: a number behind one is its argument."""
SIGNS = _names(
    "cdot times div pm mp cup cap setminus oplus otimes circ bullet star neg triangle angle perp parallel square "
    "ldots cdots vdots forall exists top bot dagger"
)
RELATIONS = _names(
    "le ge ne approx equiv sim simeq cong propto in notin ni subset subseteq supset supseteq mid rightarrow leftarrow "
    "Rightarrow Leftarrow Leftrightarrow leftrightarrow rightleftharpoons mapsto land lor ll gg bmod"
)
OPENING = _names("lfloor lceil langle {")
CLOSING = _names("rfloor rceil rangle }")
ACCENTS = _names("overline bar hat widehat vec overrightarrow dot ddot tilde widetilde")
"""Marks over letters. One verifier would ignore them over numbers."""
ALPHABETS = _names("mathbb mathcal mathfrak mathscr")
MATRICES = _names("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases")
LINES = _names("aligned align gathered gather split equation")
"""Environments that stack statements: read as a list."""

CHARACTERS = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "·": "\\cdot ", "°": "^\\circ ", "，": ",", "（": "(", "）": ")",
    "½": "\\frac{1}{2}", "⅓": "\\frac{1}{3}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "⅔": "\\frac{2}{3}",
    "’": "'", "‘": "'", "′": "'", "“": '"', "”": '"', "：": ":", "；": ";", "．": ".", "＝": "=", "＋": "+",
    "＜": "<", "＞": ">", "∗": "*", "∣": "|", "‖": "\\|", "⟨": "\\langle ", "⟩": "\\rangle ", "⌊": "\\lfloor ",
    "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ",
    "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "δ": "\\delta ", "ε": "\\varepsilon ", "ϵ": "\\epsilon ",
    "ζ": "\\zeta ", "η": "\\eta ", "θ": "\\theta ", "ϑ": "\\vartheta ", "ι": "\\iota ", "κ": "\\kappa ",
    "λ": "\\lambda ", "μ": "\\mu ", "µ": "\\mu ", "ν": "\\nu ", "ξ": "\\xi ", "π": "\\pi ", "ϖ": "\\varpi ",
    "ρ": "\\rho ", "ϱ": "\\varrho ", "σ": "\\sigma ", "ς": "\\varsigma ", "τ": "\\tau ", "υ": "\\upsilon ",
    "φ": "\\phi ", "ϕ": "\\phi ", "χ": "\\chi ", "ψ": "\\psi ", "ω": "\\omega ", "Γ": "\\Gamma ", "Δ": "\\Delta ",
    "Θ": "\\Theta ", "Λ": "\\Lambda ", "Ξ": "\\Xi ", "Π": "\\Pi ", "Σ": "\\Sigma ", "Υ": "\\Upsilon ",
    "Φ": "\\Phi ", "Ψ": "\\Psi ", "Ω": "\\Omega ", "ħ": "\\hbar ", "ℏ": "\\hbar ", "ℓ": "\\ell ", "ℜ": "\\Re ",
    "ℑ": "\\Im ", "ℵ": "\\aleph ", "∇": "\\nabla ", "∂": "\\partial ", "∞": "\\infty ", "∅": "\\emptyset ",
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}",
    "∑": "\\sum ", "∏": "\\prod ", "∫": "\\int ", "∬": "\\iint ", "∮": "\\oint ",
    "⋅": "\\cdot ", "×": "\\times ", "÷": "\\div ", "±": "\\pm ", "∓": "\\mp ", "∪": "\\cup ", "∩": "\\cap ",
    "∖": "\\setminus ", "⊕": "\\oplus ", "⊗": "\\otimes ", "∘": "\\circ ", "•": "\\bullet ", "⋆": "\\star ",
    "¬": "\\neg ", "△": "\\triangle ", "∠": "\\angle ", "⊥": "\\perp ", "⟂": "\\perp ", "∥": "\\parallel ",
    "□": "\\square ", "…": "\\ldots ", "⋯": "\\cdots ", "⋮": "\\vdots ", "∀": "\\forall ", "∃": "\\exists ",
    "⊤": "\\top ", "†": "\\dagger ",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "≡": "\\equiv ", "∼": "\\sim ", "≃": "\\simeq ",
    "≅": "\\cong ", "∝": "\\propto ", "∈": "\\in ", "∉": "\\notin ", "∋": "\\ni ", "⊂": "\\subset ",
    "⊆": "\\subseteq ", "⊃": "\\supset ", "⊇": "\\supseteq ", "→": "\\to ", "←": "\\leftarrow ",
    "⇒": "\\Rightarrow ", "⇐": "\\Leftarrow ", "⇔": "\\Leftrightarrow ", "↔": "\\leftrightarrow ",
    "⇌": "\\rightleftharpoons ", "↦": "\\mapsto ", "∧": "\\land ", "∨": "\\lor ", "≪": "\\ll ", "≫": "\\gg ",
    "\u00a0": " ", "\u2002": " ", "\u2003": " ", "\u2004": " ", "\u2005": " ", "\u2006": " ", "\u2007": " ",
    "\u2008": " ", "\u2009": " ", "\u200a": " ", "\u202f": " ", "\u3000": " ",
}  # fmt: skip
"""Characters beyond ASCII, and the LaTeX for what they show."""
SUPERSCRIPTS: dict[str | int, str | int | None] = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
SUBSCRIPTS: dict[str | int, str | int | None] = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n", strict=True))
CHINESE = {
    "平方毫米": "mm^2", "平方厘米": "cm^2", "平方米": "m^2", "平方千米": "km^2", "平方公里": "km^2", "立方厘米": "cm^3",
    "立方米": "m^3", "毫米": "mm", "厘米": "cm", "分米": "dm", "千米": "km", "公里": "km", "米": "m", "毫克": "mg",
    "千克": "kg", "公斤": "kg", "克": "g", "吨": "tonnes", "毫升": "mL", "升": "L", "分钟": "minutes", "小时": "hours",
    "秒": "s", "天": "days", "周": "weeks", "年": "years", "岁": "years", "度": "degrees", "元": "yuan", "个": "pieces",
    "人": "people", "次": "times",
}  # fmt: skip
CHINESE_UNIT = re.compile(
    rf"(?<=[\d}}])\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*({'|'.join(CHINESE)})\s*\}}|({'|'.join(CHINESE)}))\s*$"
)
"""A unit behind the number."""
