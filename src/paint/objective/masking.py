"""Overlap, mask ratio and masked solution.

    completion -> overlap with the solution's anchors -> mask ratio -> masked solution

Source: section 'Overlap-Adaptive Partial Solution Conditioning'. The mask ratio depends on the
overlap alone, never on whether the completion's answer is right.
"""

import random
import re
from typing import Literal, get_args

from paint.objective.anchors import anchors, boxed_anchors, contains
from strictgrade.text import normalize

__all__ = ["MARKER", "Placement", "anchors", "mask_ratio", "mask_solution", "normalize", "overlap"]

MARKER = "...(omitted)..."

Placement = Literal["suffix", "prefix", "middle", "random", "punctuation"]


def overlap(completion: str, solution: str) -> float:
    """Overlap score: the share of the solution's anchors that the completion contains (paper).

        alpha = |{a in A(y*) : a ⊆ Norm(y)}| / |A(y*)|  in [0, 1];  0 without anchors

    Anchors match at word and number boundaries: `5` and `12` are neither in 512 nor in 3.12, `ab`
    is not in cab, `2x` is in x+2x. The overlap of a solution with itself is exactly 1 when it has
    an anchor.
    """
    return overlap_metrics(completion, solution)["overlap"]


def overlap_metrics(completion: str, solution: str, *, words: bool = False) -> dict[str, float]:
    """Compute overlap and overlap_without_answer, which is logged and counts no boxed anchors.

    By ``words`` there is the overlap alone: the share of the solution's different sequences of
    three words that the completion contains (ours).
    """
    if words:
        pieces = _word_triples(solution)
        return {"overlap": len(pieces & _word_triples(completion)) / max(len(pieces), 1)}
    is_boxed = boxed_anchors(solution)
    text = normalize(completion) if is_boxed else ""
    found = {anchor: contains(text, anchor) for anchor in is_boxed}
    others = [found[anchor] for anchor in is_boxed if not is_boxed[anchor]]
    return {
        "overlap": sum(found.values()) / max(len(found), 1),
        "overlap_without_answer": sum(others) / max(len(others), 1),
    }


def _word_triples(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return set(zip(words, words[1:], words[2:], strict=False))


def mask_ratio(overlap: float, *, wrong: float = 0.30, correct: float = 0.40) -> float:
    """Share of the solution to mask (paper: the affine schedule).

        rho = wrong + (correct - wrong) alpha

    ``overlap`` is alpha in [0, 1]; 0 <= wrong <= correct < 1, and equal ends fix the ratio.
    Raises ValueError for values outside these ranges.
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap must be in [0, 1], got {overlap}")
    if not 0 <= wrong <= correct < 1:
        raise ValueError(
            f"mask ratios need 0 <= wrong <= correct < 1, got wrong={wrong}, correct={correct}"
        )
    return wrong + (correct - wrong) * overlap


def mask_solution(
    solution: str, ratio: float, *, placement: Placement = "suffix", seed: int | None = None
) -> str:
    """Replace int(ratio * length) contiguous characters of the solution by an omission marker.

    M(y*; rho) (paper: M_tail is "suffix"; 'Mask Placement Strategy' has the others). The masked
    block is at the end ("suffix"), the start ("prefix"), the centre ("middle") or at random (with
    the seed). "punctuation" moves the cut of "suffix" back to the last end of a sentence, paragraph
    or displayed formula that leaves at least half of the visible part. Whitespace next to the block
    is removed, and that around the solution does not count. A ratio that masks less than one
    character returns the solution unchanged.
    Raises ValueError for a ratio outside [0, 1), an unknown placement, and "random" without a seed.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"mask ratio must be in [0, 1), got {ratio}")
    if placement == "random" and seed is None:
        raise ValueError("placement 'random' needs a seed, got None")

    # 0.29 * 100 is 28.999999999999996 in floating point, and must still hide 29.
    text = solution.strip()
    hidden = int(ratio * len(text) + 1e-9)
    if hidden == 0:
        return solution

    last = len(text) - hidden
    match placement:
        case "prefix":
            start = 0
        case "middle":
            start = last // 2
        case "random":
            start = random.Random(seed).randint(0, last)
        case "punctuation":
            start = _sentence_end(text, last)
            hidden = len(text) - start
        case "suffix":
            start = last
        case _:
            raise ValueError(f"placement {placement!r} is none of {', '.join(get_args(Placement))}")

    before, after = text[:start].rstrip(), text[start + hidden :].lstrip()
    return " ".join(part for part in (before, MARKER, after) if part)


# Ends of sentences, at which the visible part may end, and delimiters of formulas, inside which it
# may not.
_EDGE = r"\\(?P<edge>begin|end)\{[A-Za-z]{1,20}\*?\}"
_BRACKET = r"\\(?P<bracket>[()\[\]])"
_ESCAPED = r"\\."
_DOLLAR = r"(?P<dollar>\$\$?)"
_SENTENCE_END = r"[.!?][\"'”)\]]*+(?=\s++[A-Z0-9$\\(“])"
_PARAGRAPH_END = r"\n[ \t\r]*+\n"
_STOP = re.compile(
    f"{_EDGE}|{_BRACKET}|{_ESCAPED}|{_DOLLAR}|(?P<sentence>{_SENTENCE_END}|{_PARAGRAPH_END})",
    re.DOTALL,
)


def _sentence_end(text: str, limit: int) -> int:
    """Last end of a sentence, paragraph or display in [limit / 2, limit], or else limit."""
    cut = limit
    opener = ""  # delimiter of the open formula: $, $$, \\( or \\[
    depth = 0  # of nested environments
    for stop in _STOP.finditer(text):
        if stop.end() > limit:
            break

        sign, kind = stop[0], stop.lastgroup
        is_end = False
        if kind == "edge" and not opener:
            depth = max(depth + (1 if stop["edge"] == "begin" else -1), 0)
            is_end = stop["edge"] == "end" and not depth
        elif kind == "bracket" and not opener and sign in ("\\(", "\\["):
            opener = sign
        elif kind == "bracket" and opener == {"\\)": "\\(", "\\]": "\\["}.get(sign):
            opener = ""
            is_end = sign == "\\]"
        elif kind == "dollar" and opener in ("", "$", "$$"):
            is_end = opener == "$$"
            opener = "" if opener else sign
        elif kind == "sentence":
            if opener == "$" and sign[0] == "\n":
                opener = ""  # a formula cannot span paragraphs, so that dollar sign was literal
            is_end = not opener and not depth

        if is_end and 2 * stop.end() >= limit:
            cut = stop.end()
    return cut
