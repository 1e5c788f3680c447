r"""Cells of products and sums of matrices, as text that sympy evaluates."""

import pytest
from sympy import Matrix

from strictgrade.matrices import Cells, sides_of_matrices
from strictgrade.parse import Scalar, parse_answer
from verdicts import is_correct

A = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"
B = r"\begin{bmatrix}0&1\\1&0\end{bmatrix}"
COLUMN = r"\begin{pmatrix}5\\7\end{pmatrix}"


def evaluated(cells: Cells | str) -> list[list[object]]:
    assert isinstance(cells, list)
    rows = [[parse_answer(cell) for cell in row] for row in cells]
    assert all(isinstance(value, Scalar) for row in rows for value in row)
    return [[value.expr.simplify() for value in row if isinstance(value, Scalar)] for row in rows]


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        (A, Matrix([[1, 2], [3, 4]])),
        (rf"-\frac12{A}", Matrix([[1, 2], [3, 4]]) / -2),
        (rf"2\cdot {A}", 2 * Matrix([[1, 2], [3, 4]])),
        (rf"{A} \times 3", 3 * Matrix([[1, 2], [3, 4]])),
        (rf"{A}/2", Matrix([[1, 2], [3, 4]]) / 2),
        (rf"\frac{{{A}}}{{2}}", Matrix([[1, 2], [3, 4]]) / 2),
        (rf"{A}^T", Matrix([[1, 3], [2, 4]])),
        (rf"{A}{B}", Matrix([[2, 1], [4, 3]])),
        (rf"{A} - 2{B}", Matrix([[1, 0], [1, 4]])),
        (rf"2 \cdot -{COLUMN}", Matrix([-10, -14])),
        (rf"3\left({A}+{B}\right)", Matrix([[3, 9], [12, 12]])),
        (rf"{A}{COLUMN}+{COLUMN}", Matrix([24, 50])),
        (r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]", Matrix([[1, 2], [3, 4]])),
    ],
)
def test_sides_of_matrices_expression_has_its_cells(text: str, matrix: Matrix) -> None:
    (side,) = sides_of_matrices(text)
    assert evaluated(side) == matrix.tolist()


@pytest.mark.parametrize(
    "text",
    [
        rf"2+{A}",
        rf"{A}+{COLUMN}",
        rf"{COLUMN}{A}",
        rf"{A}^2",
        rf"\left({A}",
        r"\begin{cases}1\\2\end{cases}",
        r"\begin{pmatrix}1",
        r"\begin{pmatrix}\end{pmatrix}",
        rf"\begin{{pmatrix}}{A}\end{{pmatrix}}",
    ],
)
def test_sides_of_matrices_without_cells_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        sides_of_matrices(text)


def test_sides_of_matrices_equation_has_both_sides() -> None:
    name, side = sides_of_matrices(rf"\vec{{v}} = {COLUMN}")
    assert name == r"\vec{v} "
    assert side == [["5"], ["7"]]


PLUS = r"\begin{pmatrix}1&1\\1&-1\end{pmatrix}"
INVERSE = r"\begin{pmatrix}d&-b\\-c&a\end{pmatrix}"


@pytest.mark.parametrize(
    ("gold", "given", "is_right"),
    [
        (rf"\frac{{1}}{{\sqrt2}}{PLUS}", rf"\frac{{\sqrt2}}2{PLUS}", True),
        (rf"\frac{{1}}{{\sqrt2}}{PLUS}", rf"\frac12{PLUS}", False),
        (rf"\frac{{1}}{{ad-bc}}{INVERSE}", rf"(ad-bc)^{{-1}}{INVERSE}", True),
        (rf"\frac{{1}}{{ad-bc}}{INVERSE}", INVERSE, False),
        (rf"{COLUMN}+t{COLUMN}", r"\begin{pmatrix}5+5t\\7+7t\end{pmatrix}", True),
        (r"\begin{pmatrix}10\\14\end{pmatrix}", f"x=2{COLUMN}={COLUMN}+{COLUMN}", True),
        (r"\begin{pmatrix}10\\14\end{pmatrix}", f"x=2{COLUMN}={COLUMN}", False),
        (COLUMN, r"\begin{pmatrix}5&7\end{pmatrix}", False),
        (f"A = 2{A}", r"A = \begin{pmatrix}2&4\\6&8\end{pmatrix}", True),
        (f"A = 2{A}", r"B = \begin{pmatrix}2&4\\6&8\end{pmatrix}", False),
    ],
)
def test_is_correct_multiple_of_matrix_is_its_product(
    gold: str, given: str, is_right: bool
) -> None:
    assert is_correct(rf"\boxed{{{given}}}", gold) == is_right
