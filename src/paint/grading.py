r"""Is the final answer of a completion the gold answer?

The verdict is for analysis only: it is logged beside the overlap and never drives the method (paper: section
'Overlap-Adaptive Partial Solution Conditioning'). It is strict: only a boxed answer outside a closed think
block counts, integers are compared as integers, and everything else as normalised text.

Left out for now: symbolic equality (1/2 and 0.5 differ here), units, and sets in another order. A wrong
verdict of this module is therefore nearly always "incorrect" for a right answer, hardly ever the reverse.
"""

import re

from paint.latex import normalize

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*+(?!\{\s*+\})")
_UNBRACED = re.compile(r"\\?[^\s$\\{}]+(?:\{[^{}]*\})*")
_ESCAPE_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SEPARATOR = r"(?:,\\!|\{,\}|\\,|,)"
_INTEGER = re.compile(rf"([+\-\u2212]?)\s*([0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+)")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def is_correct(completion: str, answer: str) -> bool:
    r"""Whether the strict answer of a completion equals the gold answer, which may itself be boxed.

    Two integers are equal when their values are: 1{,}000 and 1000, 007 and 7, +5 and 5, -0 and 0, $5$. and 5.
    All else is equal when `latex.normalize` makes it the same non-empty text. Never raises; takes time
    linear in the texts.
    """
    predicted = answer_text(completion)
    if predicted is None:
        return False
    given, gold = _bare(predicted), _bare(boxed(answer) or answer)
    integers = _integer(given), _integer(gold)
    if None not in integers:
        return integers[0] == integers[1]
    given = normalize(given)
    return bool(given) and given == normalize(gold)


def answer_text(completion: str) -> str | None:
    """The boxed answer after the last closed think block; None without one, or with a block left open.

    A completion without think tags is searched as a whole. Where the prompt's template opens the think block,
    the caller puts its opening tag in front, or an answer in a cut-off thought counts.
    """
    final = completion.rpartition("</think>")[2]
    return None if "<think>" in final else boxed(final)


def boxed(text: str) -> str | None:
    r"""What the last \boxed{...} (or \fbox, \framebox) holds, its braces balanced; None when there is none.

    Empty boxes, as in the instruction "within \boxed{}", are passed over. A last box whose brace never closes
    is a text that was cut inside its answer: None. Without braces, \boxed 5 holds what stands up to white
    space, $ or a brace, unless it is a word of prose.
    """
    for box in reversed(list(_BOX.finditer(text))):
        if text.startswith("{", box.end()):
            end = _closing_brace(text, box.end())
            if end is None:
                return None
            content = text[box.end() + 1 : end].strip()
        else:
            unbraced = _UNBRACED.match(text, box.end())
            content = unbraced[0].rstrip(".,;:!?)") if unbraced else ""
            content = "" if len(content) > 1 and content.isalpha() else content
        if content:
            return content
    return None


def _closing_brace(text: str, opening: int) -> int | None:
    depth = 0
    for found in _ESCAPE_OR_BRACE.finditer(text, opening):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0 and found[0] == "}":
            return found.start()
    return None


def _bare(text: str) -> str:
    """The text without its outer math delimiters and the full stop of its sentence."""
    text = _without_stop(text)
    for left, right in _DELIMITERS:
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
            return _without_stop(text[len(left) : -len(right)])
    return text


def _without_stop(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def _integer(text: str) -> str | None:
    """The canonical digits of an integer, or None. Not int(), which refuses 5,000 digits."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    digits = re.sub("[^0-9]", "", found[2]).lstrip("0")
    negative = digits and found[1] not in ("", "+")
    return f"-{digits}" if negative else digits or "0"
