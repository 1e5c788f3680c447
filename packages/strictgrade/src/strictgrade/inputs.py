"""What the functions of the library take: texts, numbers as answers, and the packages they need."""

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from numbers import Real
from typing import Any

Answer = str | float | Real | Decimal
"""An answer: a text, or a number."""

Gold = Answer | Sequence[Answer]
"""A gold answer, or several of which each is right."""

PACKAGES = {
    "sympy": "sympy",
    "mpmath": "mpmath",
    "latex2sympy2_extended": "latex2sympy2_extended",
    "antlr4": "antlr4-python3-runtime",
}
"""What algebra imports, each with the name of its package."""


@cache
def require_packages() -> None:
    """Raise ModuleNotFoundError with the packages that are not installed."""
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ModuleNotFoundError(
            f"strictgrade needs packages that are not installed: {', '.join(missing)}; "
            f"pip install strictgrade installs them"
        )


def require_text(completion: object) -> None:
    """Raise TypeError for a completion that is no text."""
    if isinstance(completion, str):
        return
    hint = ""
    last = completion[-1] if isinstance(completion, list) and completion else completion
    if isinstance(last, dict) and "content" in last:
        hint = '; of a conversation give the text of its last message, completion[-1]["content"]'
    raise TypeError(f"a completion must be a text, and this is {_kind(completion)}{hint}")


def text_of(answer: Any) -> str:
    """An answer as a text; numbers as Python writes them.

    Raises:
        TypeError: it is neither a text nor a real number.
        ValueError: it is nan.
    """
    if isinstance(answer, str):
        return answer
    number = answer
    if not isinstance(number, Real | Decimal) and getattr(number, "ndim", None) == 0:
        number = number.item()  # an array or a tensor of one number, or numpy's bool
    if isinstance(number, bool) or not isinstance(number, Real | Decimal):
        raise TypeError(
            f"an answer must be a text, a real number or a list of these, and this is "
            f"{_kind(answer)}"
        )
    if number != number:  # only nan is not equal to itself
        raise ValueError("an answer is nan, to which nothing is equal; leave its row out")
    return str(number)


def texts_of(gold: Any) -> list[str]:
    """The accepted answers, one or several, as texts.

    Raises:
        TypeError: an answer is neither a text nor a real number.
        ValueError: an answer is nan, or there is none.
    """
    is_array = getattr(gold, "ndim", None) == 1
    if not is_array and not isinstance(gold, list | tuple | set | frozenset):
        return [text_of(gold)]
    answers = list(map(text_of, gold))
    if not answers:
        raise ValueError("a list of accepted answers is empty")
    return answers


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
