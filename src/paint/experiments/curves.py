"""Every checkpoint of an experiment: accuracy by step, and against what it cost.

What is reported stays the last checkpoint. Two of these tables need care, and say so: a best
checkpoint is chosen by the answers that measure it, which biases it upward; and the first
checkpoint that reaches another cell's accuracy has had several chances, which favours its cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from jaxtyping import Float

from paint.evaluation.intervals import ROUNDING, SHARE, compare_seeds, over_seeds
from paint.evaluation.tables import Sheet
from paint.experiments.plots import Curve
from paint.experiments.results import BASE, Result, by_step, shares


@dataclass(frozen=True)
class Point:
    """A cell after some steps.

    Attributes:
        scores: share of right samples by seed and problem.
        tokens: sampled for these steps, mean over the seeds.
        seconds: of training, mean over the seeds.
    """

    scores: Float[np.ndarray, "s p"]
    tokens: float
    seconds: float


def points_by_step(results: Sequence[Result]) -> dict[str, dict[int, Point]]:
    """The points of each cell by step, the last one last."""
    return {
        name: {
            step: Point(
                shares(same),
                float(np.mean([result.rollout_tokens for result in same])),
                float(np.mean([result.seconds for result in same])),
            )
            for step, same in steps.items()
        }
        for name, steps in by_step(results).items()
    }


def step_sheets(
    labels: Mapping[str, str], goal: str | None, results: Sequence[Result]
) -> list[Sheet]:
    """Score and cost by step; the best checkpoints; what the others need to reach the goal.

    Args:
        labels: the row's name of every cell, the base model's first.
        goal: a cell whose last checkpoint is held against every checkpoint of the others.
    """
    points = points_by_step(results)
    score = f"Avg@{results[0].exam['samples']}"
    sheets = [_scores(labels, goal, points, score), _best(labels, points, score)]
    return [*sheets, _reached(labels, goal, points, score)] if goal else sheets


def cost_curves(labels: Mapping[str, str], results: Sequence[Result]) -> list[Curve]:
    """The base model, then every cell: its scores against rollout tokens and training seconds."""
    points = points_by_step(results)
    return [
        Curve(
            label,
            [over_seeds(point.scores, bounds=SHARE) for point in points[name].values()],
            [
                [point.tokens for point in points[name].values()],
                [point.seconds for point in points[name].values()],
            ],
        )
        for name, label in labels.items()
    ]


def _scores(
    labels: Mapping[str, str],
    goal: str | None,
    points: Mapping[str, Mapping[int, Point]],
    score: str,
) -> Sheet:
    [base] = points[BASE].values()
    rows = []
    for name, label in labels.items():
        for step, point in points[name].items():
            gain = compare_seeds(base.scores, point.scores).points(sign=True)
            cost = [f"{point.tokens:,.0f}", str(timedelta(seconds=round(point.seconds)))]
            row = [label, str(step), over_seeds(point.scores, bounds=SHARE).points()]
            row += ["", "", ""] if name == BASE else [gain, *cost]
            if goal:
                end = _last(points[goal])
                lead = compare_seeds(point.scores, end.scores).points(sign=True)
                row.append("" if point is end else lead)
            rows.append(row)

    columns = ["", "step", score, "gain over base", "rollout tokens", "training time"]
    columns += [f"last of {labels[goal]} less this"] if goal else []
    return Sheet(f"{score} by step, in % with 95 % interval", columns, rows)


def _best(
    labels: Mapping[str, str], points: Mapping[str, Mapping[int, Point]], score: str
) -> Sheet:
    """The paper's rule ("best checkpoints within 100 steps", Main Results), for every seed."""
    rows = []
    for name, label in labels.items():
        if name == BASE:
            continue
        by_seed = np.array([point.scores.mean(axis=1) for point in points[name].values()])
        chosen = [list(points[name])[row] for row in by_seed.argmax(axis=0)]
        rows.append(
            [
                label,
                f"{100 * by_seed[-1].mean():.1f}",
                f"{100 * by_seed.max(axis=0).mean():.1f}",
                ", ".join(map(str, chosen)),
            ]
        )
    title = (
        f"No result: {score} of each seed's best checkpoint, which the same answers choose, so "
        f"that it is too high (the paper's rule)"
    )
    return Sheet(title, ["", "last", f"best of {_most(points)}", "its step, by seed"], rows)


def _reached(
    labels: Mapping[str, str],
    goal: str,
    points: Mapping[str, Mapping[int, Point]],
    score: str,
) -> Sheet:
    end = _last(points[goal])
    rows = []
    for name, label in labels.items():
        if name in (BASE, goal):
            continue
        near = min(points[name].values(), key=lambda point: abs(point.tokens - end.tokens))
        lead = compare_seeds(near.scores, end.scores).points(sign=True)

        below = [p for p in points[name].values() if compare_seeds(p.scores, end.scores).low > 0]
        surely = _times(below[-1].tokens, end.tokens) if below else "nowhere"

        level = end.scores.mean() - ROUNDING
        reaching = [point for point in points[name].values() if point.scores.mean() >= level]
        before, at = ("", reaching[0]) if reaching else ("not within ", _last(points[name]))
        tokens = before + _times(at.tokens, end.tokens)
        seconds = before + _times(at.seconds, end.seconds)
        rows.append([label, f"{near.tokens:,.0f}", lead, surely, tokens, seconds])

    title = (
        f"What it takes to reach the last {score} of {labels[goal]}, "
        f"{100 * end.scores.mean():.1f} after {end.tokens:,.0f} rollout tokens and "
        f"{end.seconds:,.0f} s: the last checkpoint whose interval lies below it, and the first "
        f"whose mean does not"
    )
    columns = ["", "nearest tokens", "difference there", "below up to", "as high at", "in seconds"]
    return Sheet(title, columns, rows)


def _times(amount: float, other: float) -> str:
    return f"{amount:,.0f} ({amount / other:.1f} times)" if other else f"{amount:,.0f}"


def _last(steps: Mapping[int, Point]) -> Point:
    return steps[max(steps)]


def _most(points: Mapping[str, Mapping[int, Point]]) -> str:
    """How many checkpoints the cells have to choose from."""
    counts = sorted({len(steps) for name, steps in points.items() if name != BASE})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
