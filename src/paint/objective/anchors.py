r"""The anchors of a solution: its boxed answer, formulas and numbers.

    solution -> anchors;   normalised text, anchor -> contains -> bool

The text is normalised by strictgrade.text, which knows no verdict. No function raises on any text,
and each takes time linear in its length.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from strictgrade.text import (
    BOX,
    CUT,
    END,
    FUNCTIONS,
    LETTER,
    MARKS,
    START,
    UNBOX,
    canonical,
    mark,
    tighten,
    unmark,
)

# In characters. Longer formulas hardly occur in two texts; longer answers are not read by graders.
# Both limits keep the search linear.
LONGEST_SIDE, LONGEST_ANSWER = 80, 2000
MOST_ANCHORS = 1000  # the longest real solutions have 150; it keeps the search linear

# The word or number begins before the piece; it continues after the piece.
_RUNS_IN = re.compile(rf"[0-9.][0-9]++|[0-9]\.|{LETTER}{{2,}}+|\\.")
_RUNS_ON = re.compile(rf"[0-9]\.?[0-9]|{LETTER}{{2}}")

# An index is matched as one, because no number in it counts. Limits (`\sum_{k=10}`) are no indices.
_NO_RELATION = r"[^{}=<>≤≥≠∈→]"
_INDEX_BRACES = rf"\{{(?:{_NO_RELATION}++|\{{{_NO_RELATION}*+\}})*+\}}"
_NUMBER = re.compile(  # one set of first characters, so that the search can skip between them
    r"[0-9._\\](?:(?<=\\)frac\{[0-9]++\}\{[0-9]++\}|(?<=\.)[0-9]++"
    r"|(?<=[0-9])(?:[0-9]*+\.[0-9]++|[0-9]++)"
    rf"|(?<=_)(?<!\\sum_)(?<!\\prod_)(?<!\\int_){_INDEX_BRACES}(?P<index>))"
)

# A box without a closing brace extends to the next mark.
_MARKED_BOX = re.compile(f"{BOX}(?:([^{BOX}{UNBOX}]*+){UNBOX}|([^{MARKS}]*+))")
_PICTURE = re.compile(r"<img_\{[0-9]++\}>")

_RELATIONS = "=<>≤≥≠≈≡∈∼→:"  # noqa: RUF001
# Spans end at formulas and cells, except that `x &= 5` is one statement.
_SPAN = re.compile(f"([{START}{END}{CUT}](?!(?<={CUT}){CUT}?[{_RELATIONS}]))")
_KINDS = (
    dict.fromkeys("([{", "opening")
    | dict.fromkeys(")]}", "closing")
    | dict.fromkeys(_RELATIONS, "relation")
    | dict.fromkeys(",;⇒⇔", "stop")
)
_PROSE_KINDS = {sign: kind for sign, kind in _KINDS.items() if sign not in ",;:"}

_WORD = rf"(?<!\\)(?<!{LETTER}){LETTER}{{2,}}+"
_ARTICLE = rf"(?<!{LETTER})[aAI](?=[0-9(\\ ])"  # a, A and I before a number are not factors
_FORMULA_SEAM = re.compile(f"[{re.escape(''.join(_KINDS))}]")
_FULL_STOP = r"\.(?![0-9])"
_PROSE_SEAM = re.compile(rf"{_FORMULA_SEAM.pattern}|[?!|]|{_FULL_STOP}|{_WORD}|{_ARTICLE}")

_JOINED = re.compile(rf"[-+*/^!|±{_RELATIONS}]|\\[a-z]|[0-9],")
_INDEX = re.compile(rf"_(?:{_INDEX_BRACES}|\{{[^{{}}]*+\}})")
_SIGN_BETWEEN = r"(?<=.)[-+]"  # not the sign of -x
_OPERATOR_COMMAND = r"\\(?:frac|binom|sqrt|sum|prod|int|lfloor|lceil)"
_FUNCTION = rf"(?:{'|'.join(FUNCTIONS.split())})(?!{LETTER})"
_OPERATION = re.compile(rf"{_SIGN_BETWEEN}|[*/^!|±]|{_OPERATOR_COMMAND}|{_FUNCTION}")
_LIST = re.compile(r",.*[0-9]|[0-9].*,")
_OPERAND = re.compile(rf"(?<![\\A-Za-z])(?:{LETTER}++|[0-9.]++)")


def anchors(solution: str) -> tuple[str, ...]:
    r"""Extract the anchors of a solution: normalised, in order, without repetition.

    A(y*), "the boxed answer, formula-like spans, and informative numbers" (paper: overlap score):
    the content of every box, up to 2,000 characters; each side of a relation that joins operands by
    an operation or lists a number, up to 80 characters, or the complete relation if neither side
    does (`x=7`); numbers of two digits or more, decimals and numerical fractions, except those in
    an index. Names (`x`, `f(x)`), drawing code ([asy]) and pictures are none. Each anchor is
    contained in normalize(solution).
    """
    return tuple(boxed_anchors(solution))


def boxed_anchors(solution: str) -> dict[str, bool]:
    """Map the anchors of a solution, in order, to whether a box contains them."""
    plain = mark(solution)
    first, *rest = canonical(plain).split("[asy]")
    without_drawings = CUT.join([first, *(part.partition("[/asy]")[2] for part in rest)])
    marked = _PICTURE.sub(CUT, without_drawings)

    placed = []
    for box in _MARKED_BOX.finditer(marked):
        answer = _trim(box[1] or box[2] or "")
        if 0 < len(answer) <= LONGEST_ANSWER:
            placed.append((box.start(), answer))
    answers = {answer for _, answer in placed}
    placed += _formulas(marked)
    numbers = (match for match in _NUMBER.finditer(marked) if match["index"] is None)
    placed += [(number.start(), number[0]) for number in numbers]
    pieces = [*dict.fromkeys(piece for _, piece in sorted(placed))][:MOST_ANCHORS]

    # Without marks a formula can join with the text around it (`$3ad$ b` becomes 3adb); such an
    # anchor is not found in the normalised text.
    normalized = canonical(unmark(plain))
    anchors: dict[str, bool] = {}
    for piece in pieces:
        if contains(normalized, piece):
            anchors[piece] = piece in answers
    return anchors


def _formulas(marked: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of the formula-like spans."""
    is_prose, position = True, 0
    for span in _SPAN.split(marked):
        if span in (START, END):
            is_prose = span == END
        elif len(span) > 2 and _JOINED.search(span):
            for start, piece in _relation_sides(span, is_prose):
                yield position + start, piece
        position += len(span)


def _relation_sides(span: str, is_prose: bool) -> Iterator[tuple[int, str]]:
    """Yield position and text of the informative sides of all statements in a span."""
    seam, kinds = (_PROSE_SEAM, _PROSE_KINDS) if is_prose else (_FORMULA_SEAM, _KINDS)
    depth, sides = 0, [0]  # nesting of brackets; starts of the statement's sides

    for match in seam.finditer(span):
        kind = kinds.get(match[0], "word")
        if kind == "opening":
            depth += 1
        elif kind == "closing":
            depth = max(depth - 1, 0)
        elif kind == "relation" and not depth:
            sides.append(match.end())
        elif kind == "word" or (kind == "stop" and not depth):
            yield from _informative_sides(span, [*sides, match.start() + 1])
            depth, sides = 0, [match.end()]

    yield from _informative_sides(span, [*sides, len(span) + 1])


def _informative_sides(span: str, edges: list[int]) -> list[tuple[int, str]]:
    """The informative sides of a statement; the statement itself if neither of two sides is."""
    if edges[-1] - edges[0] < 4:
        return []

    sides = [(start, _trim(span[start : stop - 1])) for start, stop in pairwise(edges)]
    informative = [(start, side) for start, side in sides if _is_informative(side)]

    if not informative and len(sides) == 2 and all(side for _, side in sides):
        statement = _trim(span[edges[0] : edges[-1] - 1])
        is_short = len(statement) <= LONGEST_SIDE // 2
        if is_short and _is_balanced(statement) and re.search(LETTER, statement):
            return [(edges[0], statement)]

    return informative


def _is_informative(side: str) -> bool:
    """Whether a side joins operands by an operation, or lists a number."""
    if not 2 < len(side) <= LONGEST_SIDE or not _is_balanced(side):
        return False
    side = _INDEX.sub("", side)
    return bool(_OPERATION.search(side) or _LIST.search(side)) and len(_OPERAND.findall(side)) > 1


def _is_balanced(piece: str) -> bool:
    return piece.count("(") == piece.count(")") and piece.count("{") == piece.count("}")


def _trim(piece: str) -> str:
    if not piece.isprintable():
        piece = tighten(unmark(piece))
    return piece.lstrip("+*/.:?,;=…'° ").rstrip("+-*/.:?,;=… ")


def contains(text: str, piece: str) -> bool:
    """Whether a normalised text contains an anchor at word and number boundaries.

    12 is in `12x`, but neither in 312 nor in 3.12.
    """
    start = text.find(piece)
    while start >= 0:
        if start and (run := _RUNS_IN.match(text, start - 1)):
            start = text.find(piece, run.end())
        elif _RUNS_ON.match(text, start + len(piece) - 1):
            start = text.find(piece, start + 1)
        else:
            return True
    return False
