"""A tool outside of the package: a calculator."""


def calculate(formula: str) -> str:
    """Computes a formula.

    Args:
        formula: Numbers, brackets, and + - * /.
    """
    if not set(formula) <= set("0123456789.()+-*/ "):
        raise ValueError("the formula may have numbers, brackets, and + - * / alone")
    return str(eval(formula))  # of what the line above lets through
