r"""Whether the boxed answer of a completion is right, with a reason, in limited time.

    verify(r"<think>...</think> It is \boxed{\frac{1}{2}}.", "0.5")   -> True
    reason_for(r"It is \boxed{0.6}.", "0.5")                          -> "wrong"

README.md has its use as a reward.
"""

from strictgrade.choice import chosen_letter
from strictgrade.comparer import Comparer, answer_text, compare, reason_for, verify
from strictgrade.equality import GoldReading, Reason, explain_gold
from strictgrade.processes import ProcessError

__all__ = [
    "Comparer",
    "GoldReading",
    "ProcessError",
    "Reason",
    "answer_text",
    "chosen_letter",
    "compare",
    "explain_gold",
    "reason_for",
    "verify",
]
