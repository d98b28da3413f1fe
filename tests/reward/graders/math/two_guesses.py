"""Boxes that show or hide two values. No such box may be right for both of them.

`forms` is a grammar: a wrapper around the first value, a separator or a hiding place between the two, and a form of the
second. `PAIRS` are golds of every kind; the two of a pair are not equal.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

PAIRS = (
    ("630", "12"), ("7", "-7"), ("0", "5"), ("1234", "234"), ("100", "1"), ("101", "5"), ("52", "10"),
    ("3.5", "0.25"),
    ("\\frac{1}{2}", "\\frac{3}{4}"), ("\\frac{7}{3}", "12"), ("-\\frac{5}{6}", "\\frac{5}{6}"),
    ("2\\sqrt{3}", "\\sqrt{5}"),
    ("\\frac{\\pi}{2}", "2\\pi"), ("x+1", "x-1"), ("x^2", "2x"), ("(1,2)", "(2,1)"), ("[0,1]", "(0,1)"),
    ("1,2,3", "4,5,6"), ("3+4i", "5"),
    ("(0,\\infty)", "[0,\\infty)"), ("1:2:3", "1:3:2"),
    ("\\begin{cases}1 & x>0\\\\2 & x<0\\end{cases}", "\\begin{cases}1 & x>0\\\\3 & x<0\\end{cases}"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}3\\\\4\\end{pmatrix}"),
)  # fmt: skip
"""Pairs of golds."""

SEPARATORS = r"""
@ | \ | \, | \; | \: | \! | \quad | \qquad | ~ | , | ,\  | ; | : | . | .\  | / | = | == | != | \ne | \neq
\approx | \equiv | \sim | \cong | \simeq | \propto | \to | \rightarrow | \Rightarrow | \implies | \iff
\leftarrow | \leftrightarrow | \mapsto | \mid | \vert | \Vert | \parallel | \perp | < | > | \le | \ge | \ll
\gg | \in | \subset | \cup | \cap | \setminus | \wedge | \vee | \land | \lor | \oplus | \otimes | \circ | \star
\bullet | \dagger | \cdot | \times | \div | \bmod | \pm | \mp | + | - | * | ** | ^ | _ | ! | ' | " | ? | @@ | #
& | \\ | \newline | \par | % | \% | $ | \$ | $$ | \_ | \& | \# | \( | \) | \text{ or } | \text{ and }
\text{or} | \text{ not } | \text{ vs } | \text{, or } | \textbf{ or } | \mathrm{or} | or | and
\operatorname{or} | \text{ if } | \text{ cm} | \text{ or possibly } | \text{ (} | \text{;} | \ldots | , \ldots,
\cdots | \dots | \hspace{1cm} | \kern3pt | \hfill | \hskip1em | \mskip3mu | \linebreak | \relax | \empty | \null
\stackrel{?}{=} | \overset{!}{=} | \xrightarrow{} | \backslash | \prime | ^\circ | ^\circ\ | \colon | \middle|
\big| | \left.\right. | \limits | \allowbreak | \n | \t | \xa0 | \u2009 | \u200b | \u2060 | \u00ad | \u202e
\ufeff | ＝ | ， | ； | 、 | ｜ | 或 | → | ⇒ | ≈ | ≡ | ∨ | ∧ | ∪ | •
"""
HIDING = r"""
\label{V} | \hspace{V} | \hspace*{V} | \vspace{V} | \phantom{V} | \hphantom{V} | \vphantom{V} | \color{V}
\textcolor{V}{} | \textcolor{white}{V} | \color{white}V | {\color{white}V} | \ensuremath{V} | \tag{V} | \tag*{V}
\ref{V} | \eqref{V} | \cite{V} | \footnote{V} | \index{V} | \input{V} | \include{V} | \includegraphics{V}
\href{V}{} | \href{}{V} | \url{V} | \rule{V}{0pt} | \kern V | \raisebox{V}{} | \raisebox{0pt}{V} | \makebox[V]{}
\makebox{V} | \hbox{V} | \vbox{V} | \mbox{V} | \fbox{V} | \boxed{V} | \cancel{V} | \bcancel{V} | \xcancel{V}
\sout{V} | \not{V} | \not V | \stackrel{V}{} | \stackrel{}{V} | \overset{V}{=} | \underset{V}{=} | \substack{V}
\substack{\\V} | \underbrace{}_{V} | \overbrace{}^{V} | \xrightarrow{V} | \xrightarrow[V]{} | \xleftarrow{V}
\overline{V} | \underline{V} | \hat{V} | \widehat{V} | \bar{V} | \vec{V} | \dot{V} | \tilde{V} | _{V} | ^{V}
_V | ^V | ^{\text{V}} | _{\text{V}} | \text{V} | \textbf{V} | \textit{V} | \mathrm{V} | \mathbf{V} | \mathbb{V}
\mathcal{V} | \operatorname{V} | \pmod{V} | \pmod V | \mod V | \text{$V$} | \text{\(V\)} | \text{ V}
\text{ cm V} | \text{ (V)} | \text{(or V)} | \text{(since it is V)} | \text{ or V} | \text{is V} | \mathrm{ V}
$V$ | \(V\) | \[V\] | $$V$$ | % V | %V | \iffalse V\fi | \if V\fi | \def\a{V} | \def\a{V}\a | \let\a V
\newcommand{\a}{V}\a | \csname V\endcsname | \verb|V| | \begin{cases}V\end{cases} | \begin{matrix}V\end{matrix}
\begin{array}{c}V\end{array} | \begin{array}{V}\end{array} | \begin{aligned}V\end{aligned}
\begin{aligned}\\V\end{aligned} | \begin{comment}V\end{comment} | \begin{V}\end{V}
\begin{align*}&=V\end{align*} | \sqrt[V]{} | \sqrt[V]{1} | \frac{V}{} | \frac{}{V} | \binom{V}{0} | \log_{V}1
\lim_{x\to V} | \sum_{V}^{V} | \int_V^V | \left.\right|_{V} | \{V\} | (V) | [V] | |V| | \langle V\rangle
\lfloor V\rfloor | \lvert V\rvert | \left(V\right) | \left\{V\right\} | \big(V\big) | \{\,\mid V\}
\{x\mid x=V\} | \min(V) | \max(V) | f(V) | f(V)= | \displaystyle V | \scriptscriptstyle{V} | \tiny{V}
\smash{V} | <!--V--> | <b>V</b> | <sub>V</sub> | &nbsp;V | [V](x) | ![](V) | **V** | `V` | #V
\begin{tabular}{c}V\end{tabular} | \special{V} | \mathop{V} | \mathrel{V} | \mathbin{V} | \mathord{V}
\mathinner{V} | \mathchoice{V}{V}{V}{V} | \limits_{V} | \nolimits^{V} | \llap{V} | \rlap{V} | \ce{V} | \unit{V}
\SI{V}{} | \num{V} | \qty{V} | \operatorname*{V} | \mathstrut{V} | \strut V | \noindent V | \char V | \symbol{V}
\^{V} | \"{V}
"""
DRESSES = r"""
V | {V} | \to V | =V | x=V | \Rightarrow V | . V | , V | ; V | \ V | \text{ }V | \text{is }V | $V$ | \(V\)
\[V\] | \boxed{V} | \fbox{V} | {} V | \quad V | : V | or V | \text{ or }V | \mid V | \approx V | \text{V} | (V)
+V-V+V | \displaystyle V | 0+V | V. | V, | V\text{ cm} | \; V
"""
WRAPPERS = r"""
G | \boxed{G} | x=G | G\ldots | \text{G} | {G} | (G) | \left(G\right) | \displaystyle G | G. | $G$ | G\text{ cm}
\approx G | \mathbf{G} | \{G\}
"""
NOTATIONS = r"""
G<x<V | G \le x \le V | x<G \text{ or } x>V | x>G \text{ and } x<V | x \in [G,V] | \{x \mid G<x<V\}
\{x : x=G \text{ or } x=V\} | x \le G \text{ or } x=V | G<x, x=V | x \ge G, V | (G)_V | (G)_{V}
G_{\text{two}} V | G_\text{two}V | (G)_{\text{two}}(V)_{\text{two}} | \log_e G V | \log_e(G) \to V | \log_G V
\langle G,V\rangle | \langle G\rangle V | \langle G\rangle,V | \{(G,V)\} | \{(G,G),(V,V)\} | \{(G),(V)\}
\text{no solution } G \text{ or } V | \text{all real numbers } G, V | \mathbb{R} G V | \emptyset G V
\emptyset \cup \{G\} V | A) G V | A) G B) V | (A) G (B) V | \textbf{(A)} G \textbf{(B)} V | (A) G \text{ or } V
(A) G, V | A. G. V | A: G: V | \text{A) }G\text{ B) }V | G \text{ or } V | G \text{ (or }V\text{)} | G \lor V
G or V | G \text{ or } G \text{ or } V | V \text{ or } G | G \text{ or } x=V | G^{\text{th}} V | G^{\text{th}}V
G^{th} V | G\text{th} V | G \text{ million } V | G \text{ million} V | G \text{ million or } V
G \text{ million, } V | G million V | G\times 10^{V} | G = V | x = G = V | \frac{G}{1} = V | \frac{10^5}{G} = V
\text{Area} = G = V | \text{Area } V = G | \text{The answer } V = G | G, x \in [V, \infty)
x = G \text{ and } y = V | x = G \quad y = V | [G, V) \cup (V, G]
x<G=V | G=V<x<9 | G<x<V=G | \{x | G<x<V\} | G:V:1 | G=V:3:4 | {G \choose V} | \sim G V | : G V | \pounds G V
\begin{cases}G & x>0\\V & x<0\end{cases} | a) G V | a) G b) V | 1) G 2) V | 1) G V | i) G ii) V | (a) G, (b) V
G\text{厘米}V | G 厘米 V | G\text{或}V | G 元 V 元 | \text{G}{V} | x_{\text{G}} V | \text{G → V} | \ce{G -> V}
"""
"""Notations that verifiers read differently, with room for a second value."""
UNCERTAIN_PARTS = (
    (r"1/2\pi", r"\frac{\pi}{2}", r"\frac{1}{2\pi}"), ("1/2a", r"\frac{a}{2}", r"\frac{1}{2a}"),
    (r"50\%", "50", "0.5"), ("0.333333", r"\frac{1}{3}", "0.333333"), ("3.141593", r"\pi", "3.141593"),
    (r"5\times10^{-19}", r"2\times10^{-19}", r"5\times10^{-19}"), ("101_2", "101", "101_2"),
    ("101_2", "101_3", "101_2"), ("9'", "9", "9'"), ("3=4", "3", "4"), (r"5\text{ m}", r"5\text{ m}", r"5\text{ cm}"),
    ("1, 234", "1234", "234"), (r"3 \text{ or } 4", "3", "4"),
)  # fmt: skip
"""A part of an answer, and two golds that either verifier reads in it."""
IN_PARTS = (
    ("x<P", r"(-\infty,P)"), (r"x \ge P", r"[P,\infty)"), ("P<x", r"(P,\infty)"), ("-1<x<P", "(-1,P)"),
    (r"P \le x<1000", "[P,1000)"), (r"\{x \mid x>P\}", r"(P,\infty)"), (r"x \in (-1,P)", "-1<x<P"),
    (r"x<-1 \text{ or } x>P", r"(-\infty,-1)\cup(P,\infty)"), ("P:3:4", "P:3:4"), ("3:4:P", "3:4:P"),
    (r"\begin{cases}P & x>0\\7 & x<0\end{cases}", r"\begin{cases}P & x>0\\7 & x<0\end{cases}"),
    (r"\begin{cases}y=P\\z=7\end{cases}", r"\begin{cases}y=P\\z=7\end{cases}"),
)  # fmt: skip
"""Answers that are compared in parts, and their golds, with P for a part."""
_INVISIBLE = {"@": "", "@@": "@", "\\n": "\n", "\\t": "\t"}


def _entries(table: str) -> list[str]:
    entries = [entry for row in table.strip().split("\n") for entry in row.split(" | ")]
    return [
        _INVISIBLE.get(entry, re.sub(r"^\\(?:u[0-9a-f]{4}|xa0)$", _character, entry)) for entry in entries
    ]


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[0][2:], 16))


def forms() -> Iterator[str]:
    """Returns every form of the grammar, with G and V for the two values; `NOTATIONS` first."""
    separators, hiding, dresses, wrappers = map(_entries, (SEPARATORS, HIDING, DRESSES, WRAPPERS))
    yield from _entries(NOTATIONS)
    for separator, wrapper in itertools.product(separators, wrappers):
        for space in ("", " "):
            yield f"{wrapper}{space}{separator}{space}V"
    for separator, dress in itertools.product(separators, dresses):
        yield f"G {separator} {dress}"
    for hidden, dress in itertools.product(hiding, dresses):
        inner = hidden.replace("V", dress)
        yield f"G{inner}"
        yield f"G {inner}"
        yield f"{inner} G"
        yield f"{inner}G"
    for hidden, wrapper in itertools.product(hiding, wrappers):
        yield f"{wrapper}{hidden}"
        yield f"{hidden}{wrapper}"


def filled(form: str, first: str, second: str) -> str:
    return form.replace("G", "\0").replace("V", second).replace("\0", first)
