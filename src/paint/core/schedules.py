"""Values that change with the steps of a run.

They are functions of the step, so that no checkpoint needs their state.
"""


def linear(step_index: int, start: float, end: float | None, steps: int) -> float:
    """The value of a step, counted from 0: ``start`` in the first one, ``end`` after ``steps``.

    It changes by the same amount in each step, and stays at the end. Without an end it is start.
    """
    if end is None:
        return start
    share = min(step_index / steps, 1.0)
    return (1 - share) * start + share * end
