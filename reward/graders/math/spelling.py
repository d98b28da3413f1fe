"""Writes a text as its page is usually typed, before anything is parsed: the only place where text is rewritten."""

from __future__ import annotations

import itertools
import re

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
_TO_LATEX = str.maketrans(CHARACTERS)
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
_THIN = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\[,;]|,?\{\\,\})\s*(?=\d{3}(?!\d))")
_RELATIONS = (("<=", "\\le "), (">=", "\\ge "), (" !=", "\\ne "))
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")


def one_spelling(box: str) -> str:
    """Returns a box without line breaks at its end and Markdown around it, with LaTeX for other characters. Any Chinese
    word but a unit stays, and is unreadable, as it may mean `or`."""
    text = re.sub(r"\s*\\+\s*$", "", box.strip())
    if match := re.fullmatch(r"(\*\*|`)([^*`]+)\1", text):  # Markdown
        text = match[2]
    text = re.sub(r"(?<!\\)[,;~]\s*$", "", text)
    for typed, command in _RELATIONS:
        text = text.replace(typed, command)
    text = _scripts(_THIN.sub("", text)).translate(_TO_LATEX)
    return CHINESE_UNIT.sub(lambda found: f"\\text{{ {CHINESE[found[1] or found[2]]}}}", text)


def _scripts(text: str) -> str:
    """Writes raised and lowered digits and the sign of a root as LaTeX."""
    if text.isascii():
        return text
    for sign, digits in (("^", SUPERSCRIPTS), ("_", SUBSCRIPTS)):
        pieces = re.split(f"([{''.join(map(str, digits))}]+)", text)
        runs = (f"{sign}{{{run.translate(str.maketrans(digits))}}}" for run in pieces[1::2])
        text = "".join(itertools.chain.from_iterable(itertools.zip_longest(pieces[::2], runs, fillvalue="")))
    return _ROOT.sub(lambda found: f"\\sqrt{{{found[found.lastindex or 1]}}}", text)
