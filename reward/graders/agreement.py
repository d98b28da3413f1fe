"""Checks that all readers of an accepted answer read the same value.

Each rule reads an answer in its own way. If one rule accepts it, but another reads it as something that is not the
gold, the answer is ambiguous and wrong: it would be right for either gold.
"""

from __future__ import annotations

import math

from reward.graders import deepscaler, math_verify_rule
from reward.graders.safe_expression import is_cheap

_CLOSE = 1e-5


def is_ambiguous(answer: str, gold: str, rule: str) -> bool:
    """Whether a reader other than the accepting rule reads something else in the answer.

    An answer written exactly as the gold is never ambiguous. Percent signs and degrees count as units here, which the
    verifiers drop or convert as they like: 50 % is 50 and 0.5.
    """
    if rule not in ("mathd", "sympy", "math_verify") or answer.replace(" ", "") == gold.replace(" ", ""):
        return False
    ours, golds = answer.replace("\\%", ""), gold.replace("\\%", "")
    if rule == "math_verify":
        return ours == answer and golds == gold and _arithmetic_differs(ours, golds)
    if not (is_cheap(ours) and is_cheap(golds)):
        return False
    return _math_verify_differs(ours, golds) or (rule == "mathd" and _arithmetic_differs(ours, golds))


def _math_verify_differs(answer: str, gold: str) -> bool:
    """Whether math-verify can read both, but as different values, both when it drops a last letter or word as a unit
    and when it keeps it as a variable."""
    for keep_units in (False, True):
        if not (math_verify_rule.value(answer, keep_units) and math_verify_rule.value(gold, keep_units)):
            return False
        if math_verify_rule.equal(answer, gold, keep_units):
            return False
    return True


def _arithmetic_differs(answer: str, gold: str) -> bool:
    one, other = deepscaler.number(answer), deepscaler.number(gold)
    return (
        one is not None and other is not None and not math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
    )
