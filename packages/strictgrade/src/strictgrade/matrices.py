r"""Products and sums of matrices, computed cell by cell as text.

    \frac13 \begin{pmatrix} 1 \\ x \end{pmatrix} -> (\frac13)\cdot(1), (\frac13)\cdot(x)

A matrix is its cells: rows of texts, which strictgrade.parse reads. Factors stand before or
after a matrix, with or without a sign; matrices are added, multiplied and transposed.
"""

import re
from collections.abc import Sequence

Cells = list[list[str]]
_Token = str | Cells

_KINDS = "(?:[pbB]|small)?matrix|array"
_TOKEN = re.compile(
    rf"\\begin\s*\{{(?P<kind>{_KINDS})\}}(?:\s*\{{[clr| ]*\}})?(?P<rows>.*?)\\end\s*\{{(?P=kind)\}}"
    r"|\\(?:left|right)\s*\.?|\\[A-Za-z]+|\\.|.",
    re.DOTALL,
)
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_TIMES = (r"\cdot", r"\times", "*")
_FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
_TRANSPOSED = re.compile(
    r"T|\\(?:top|intercal)|\{\s*(?:\\math(?:sf|rm|bf)\s*\{\s*T\s*\}|T|\\top)\s*\}"
)
_BLANK = re.compile(r"\s|~|\\[,;:! ]|\\quad")


def sides_of_matrices(text: str) -> list[str | Cells]:
    """The sides of an equation: cells of a side with matrices, and texts of others.

    Raises ValueError for what has no cells, such as a matrix plus a number.
    """
    sides: list[list[_Token]] = [[]]
    depth = 0
    for token in _tokens(text):
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == "=" and depth == 0:
            sides.append([])
        else:
            sides[-1].append(token)
    return [_sum(side) if _has_matrix(side) else "".join(map(str, side)) for side in sides]


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    for token in _TOKEN.finditer(text):
        if token["kind"]:
            rows = [row.split("&") for row in token["rows"].split(r"\\") if row.strip()]
            if r"\begin" in token["rows"] or not rows:
                raise ValueError
            tokens.append(rows)
        elif token[0].startswith((r"\begin", r"\end")):
            raise ValueError
        elif not token[0].startswith((r"\left", r"\right")):
            tokens.append(token[0])
    return tokens


def _has_matrix(tokens: Sequence[_Token]) -> bool:
    return any(isinstance(token, list) for token in tokens)


def _sum(tokens: Sequence[_Token]) -> Cells:
    """The cells of a sum of products."""
    terms: list[tuple[str, list[_Token]]] = [("", [])]
    depth = 0
    before: _Token = ""
    for token in tokens:
        depth += (token in _OPENING) - (token in _CLOSING)
        is_sign = token in ("+", "-") and depth == 0 and before not in (*_TIMES, "/", "^", "_")
        if is_sign:
            terms.append((str(token), []))
        else:
            terms[-1][1].append(token)
        if isinstance(token, list) or not _BLANK.fullmatch(token):
            before = token

    total: Cells | None = None
    for sign, term in terms:
        if not sign and not "".join(map(str, term)).strip():
            continue
        cells = _product(term)
        if sign == "-":
            cells = [[f"-({cell})" for cell in row] for row in cells]
        total = cells if total is None else _cellwise(total, cells)
    if total is None:
        raise ValueError
    return total


def _cellwise(a: Cells, b: Cells) -> Cells:
    rows = zip(a, b, strict=True)
    return [[f"{x}+({y})" for x, y in zip(*row, strict=True)] for row in rows]


def _product(tokens: Sequence[_Token]) -> Cells:
    """The cells of a product of matrices and factors."""
    cells: Cells | None = None
    factors: list[str] = []
    scalar: list[str] = []  # the tokens of a factor
    position = 0
    while position < len(tokens):
        token = tokens[position]
        end = _group_end(tokens, position)
        group = tokens[position + 1 : end - 1]
        new: Cells | None = None
        if isinstance(token, list):
            new = token
        elif token in _OPENING and _has_matrix(group):
            new = _sum(group)
        elif token in _FRACTIONS and _has_matrix(
            tokens[position + 1 : _group_end(tokens, position + 1)]
        ):
            top_end = _group_end(tokens, position + 1)
            end = _group_end(tokens, top_end)
            new = _sum(tokens[position + 2 : top_end - 1])
            factors.append(rf"\frac{{1}}{{{_text(tokens[top_end:end])}}}")
        if new is None:
            scalar += map(str, tokens[position:end])
        else:
            factors.append("".join(scalar))
            scalar = []
            new, end = _transposed(new, tokens, end)
            cells = new if cells is None else _matrix_product(cells, new)
        position = end

    if cells is None:
        raise ValueError
    factors.append("".join(scalar))
    plain = [factor for factor in map(_factor, factors) if factor]
    if not plain:
        return cells
    before = r"\cdot".join(f"({factor})" for factor in plain)
    return [[rf"{before}\cdot({cell})" for cell in row] for row in cells]


def _group_end(tokens: Sequence[_Token], start: int) -> int:
    """Where the group ends that begins here; one token if none does. Raises ValueError if open."""
    depth = 0
    for position in range(start, len(tokens)):
        depth += (tokens[position] in _OPENING) - (tokens[position] in _CLOSING)
        if depth <= 0:
            return position + 1
    raise ValueError


def _text(tokens: Sequence[_Token]) -> str:
    if _has_matrix(tokens):
        raise ValueError
    return "".join(map(str, tokens))


def _factor(text: str) -> str:
    """A factor without signs of products around it; "" for 1."""
    text = _BLANK.sub(" ", text).strip()
    for sign in _TIMES:
        text = text.removeprefix(sign).removesuffix(sign).strip()
    if text.startswith(("/", r"\div")):  # behind a matrix
        return rf"\frac{{1}}{{{text.removeprefix('/').removeprefix(chr(92) + 'div')}}}"
    if text.endswith("-"):
        return f"{text[:-1]}(-1)"
    return text.removesuffix("+")


def _transposed(cells: Cells, tokens: Sequence[_Token], end: int) -> tuple[Cells, int]:
    """A matrix turned if its exponent says so, and where the exponent ends."""
    if end < len(tokens) and tokens[end] == "^":
        after = _group_end(tokens, end + 1)
        if not _TRANSPOSED.fullmatch(_text(tokens[end + 1 : after]).strip()):
            raise ValueError
        return [list(column) for column in zip(*cells, strict=True)], after
    return cells, end


def _matrix_product(a: Cells, b: Cells) -> Cells:
    columns = list(zip(*b, strict=True))
    return [
        [
            "+".join(rf"({x})\cdot({y})" for x, y in zip(row, column, strict=True))
            for column in columns
        ]
        for row in a
    ]
