"""Values that change with the steps of a run.

They are functions of the step, so that no checkpoint needs their state.
"""


def linear(step_index: int, start: float, end: float | None, steps: int) -> float:
    """Return a step's value, from ``start`` in step 0 linearly to ``end`` after ``steps``."""
    if end is None:
        return start
    share = min(step_index / steps, 1.0)
    return (1 - share) * start + share * end
