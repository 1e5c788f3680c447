"""How much of the verified solution the teacher sees.

completion -> overlap with the solution's anchors -> mask ratio -> masked solution -> the teacher's prompt
(paper: section 'Overlap-Adaptive Partial Solution Conditioning').

Left out on purpose: whether the answer is right. The schedule follows the overlap, never the verdict. How
mathematics is normalised, and which of its pieces are anchors, is paint.latex's business.
"""

import random
import re
from typing import Literal, get_args

from paint.latex import anchors, contains, normalize

__all__ = [
    "MARKER",
    "Placement",
    "anchors",
    "mask_ratio",
    "mask_solution",
    "normalize",
    "overlap",
    "rationale_messages",
    "student_messages",
    "teacher_messages",
]

MARKER = "...(omitted)..."

Placement = Literal["suffix", "prefix", "middle", "random", "punctuation"]


def overlap(completion: str, solution: str) -> float:
    """The share of the solution's anchors that the normalised completion contains (paper: overlap score).

        alpha = |{a in A(y*) : a ⊆ Norm(y)}| / |A(y*)|  in [0, 1];  0 without anchors

    An anchor is contained as whole words and numbers: `5` and `12` are neither in 512 nor in 3.12, `ab` is
    not in cab, `2x` is in x+2x. The overlap of a solution with itself is exactly 1 when it has an anchor.
    """
    wanted = anchors(solution)
    text = normalize(completion)
    return sum(contains(text, anchor) for anchor in wanted) / len(wanted) if wanted else 0.0


def mask_ratio(overlap: float, *, wrong: float = 0.30, correct: float = 0.40) -> float:
    """The hidden share of the solution: rho = wrong + (correct - wrong) alpha (paper: the affine schedule).

    ``overlap`` is alpha in [0, 1]; 0 <= wrong <= correct < 1, and equal ends fix the ratio. Else ValueError.
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap must be in [0, 1], got {overlap}")
    if not 0 <= wrong <= correct < 1:
        raise ValueError(f"mask ratios need 0 <= wrong <= correct < 1, got wrong={wrong}, correct={correct}")
    return wrong + (correct - wrong) * overlap


def mask_solution(solution: str, ratio: float, *, placement: Placement = "suffix", seed: int | None = None) -> str:
    """The solution with a contiguous block of int(ratio * length) characters behind the omission marker.

    M(y*; rho) (paper: M_tail is "suffix"; 'Mask Placement Strategy' has the others). The block stands at the
    end ("suffix"), the start ("prefix"), the centre ("middle") or anywhere ("random", drawn with the seed).
    "punctuation" moves the cut of "suffix" back to the last end of a sentence, paragraph or displayed formula
    that leaves at least half of the visible part, where there is one. Blanks beside the block go too. A ratio
    that hides less than one character returns the solution as it is. ValueError for a ratio outside [0, 1),
    another placement, and "random" without a seed.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"mask ratio must be in [0, 1), got {ratio}")
    if placement not in get_args(Placement):
        raise ValueError(f"placement must be one of {', '.join(get_args(Placement))}, got {placement!r}")
    if placement == "random" and seed is None:
        raise ValueError("placement 'random' needs a seed, got None")
    hidden = int(ratio * len(solution) + 1e-9)
    if hidden == 0:
        return solution
    last = len(solution) - hidden
    match placement:
        case "prefix":
            start = 0
        case "middle":
            start = last // 2
        case "random":
            start = random.Random(seed).randint(0, last)
        case "punctuation":
            start = _sentence_end(solution, last)
            hidden = len(solution) - start
        case "suffix":
            start = last
    before, after = solution[:start].rstrip(), solution[start + hidden :].lstrip()
    return " ".join(part for part in (before, MARKER, after) if part)


_STOP = re.compile(
    r"\\(?P<edge>begin|end)\{[A-Za-z]{1,20}\*?\}|\\(?P<bracket>[()\[\]])|\\.|(?P<dollar>\$\$?)"
    r"|(?P<sentence>[.!?][\"'”)\]]*+(?=\s++[A-Z0-9$\\(“])|\n[ \t\r]*+\n)",
    re.DOTALL,
)


def _sentence_end(text: str, limit: int) -> int:
    """The last end of a sentence, paragraph or display in [limit / 2, limit]; limit where there is none."""
    cut, formula, depth = limit, "", 0
    for found in _STOP.finditer(text):
        if found.end() > limit:
            break
        sign, kind, ends = found[0], found.lastgroup, False
        if kind == "edge" and not formula:
            depth = max(depth + (1 if found["edge"] == "begin" else -1), 0)
            ends = found["edge"] == "end" and not depth
        elif kind == "bracket" and not formula and sign in ("\\(", "\\["):
            formula = sign
        elif kind == "bracket" and formula == {"\\)": "\\(", "\\]": "\\["}.get(sign):
            formula, ends = "", sign == "\\]"
        elif kind == "dollar" and formula in ("", "$", "$$"):
            formula, ends = ("" if formula else sign), formula == "$$"
        elif kind == "sentence":
            formula = "" if formula == "$" and sign[0] == "\n" else formula  # a stray dollar sign
            ends = not formula and not depth
        if ends and 2 * found.end() >= limit:
            cut = found.end()
    return cut


INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def student_messages(problem: str) -> list[dict[str, str]]:
    """The deployment prompt: the problem and the instruction (paper, figure 'Prompt views')."""
    return [{"role": "user", "content": f"Problem: {problem}\n\n{INSTRUCTION}"}]


def teacher_messages(
    problem: str, context: str, *, complete: bool, rationale: str | None = None
) -> list[dict[str, str]]:
    """The privileged prompt: the same problem with a masked or complete solution before the instruction.

    With a rationale, what ``rationale_messages`` asks for and the teacher's own reply stand before the instruction
    (paper: 'reason-first teachers'; the wording is ours).
    """
    if rationale is None:
        asked = "After reading the reference solution above, derive the same final answer in your own words."
        return [{"role": "user", "content": f"{_reference(problem, context, complete)}{asked}\n\n{INSTRUCTION}"}]
    return [
        *rationale_messages(problem, context, complete=complete),
        {"role": "assistant", "content": rationale},
        {"role": "user", "content": f"Now derive the same final answer in your own words.\n\n{INSTRUCTION}"},
    ]


def rationale_messages(problem: str, context: str, *, complete: bool) -> list[dict[str, str]]:
    """What makes a reason-first teacher write about the solution before it scores (the wording is ours)."""
    asked = "Explain why the reference solution above works: its key ideas, and what must follow from them."
    return [{"role": "user", "content": f"{_reference(problem, context, complete)}{asked}"}]


def _reference(problem: str, context: str, complete: bool) -> str:
    opening = "Here is a reference solution" if complete else "Here is a part of reference solution"
    return (
        f"Problem: {problem}\n\n"
        f"{opening} to this problem:\n"
        f"=== Reference Solution Begin ===\n{context}\n=== Reference Solution End ===\n\n"
    )
