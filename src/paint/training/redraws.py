"""Problems that are drawn again, until a completion of theirs is right (``rollout.max_attempts``).

    rollouts -> grades -> problems that teach nothing -> other seeds -> rollouts -> ...

All attempts are sampled by one policy. A problem that no attempt solves keeps its first rollouts,
which are those of a run that draws it once.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from paint.core.distributed import all_gather_objects
from paint.inference.rollouts import Draws, Rollout
from paint.resolve.algorithm import LearnsFrom

Grades = Callable[[list[Rollout]], list[Rollout]]
"""Grades rollouts."""

Draw = Callable[[Sequence[int], int], list[Rollout]]
"""Samples the rollouts at some places again: in the second attempt, the third, ..."""


class _Verdicts(NamedTuple):
    """What the grader found of a problem's completions, on all ranks."""

    is_graded: bool  # of one at least
    has_right: bool
    teaches: bool


def draw_until_right(
    rollouts: Sequence[Rollout],
    problems: Sequence[Hashable],
    draw: Draw,
    grade: Grades,
    learns_from: LearnsFrom,
    most: int,
) -> list[Rollout]:
    """Return this rank's rollouts, graded, of the first attempt that teaches of their problem.

    All ranks call it together. ``problems`` has a key of each rollout's problem, of which ``most``
    attempts are made, the first included.
    """
    kept = grade(list(rollouts))
    tokens = [[len(r.completion.ids)] for r in kept]
    verdicts = _verdicts(problems, kept, learns_from)
    # Where the grader failed on all of them, nothing says that they are wrong.
    left = {p for p, found in verdicts.items() if found.is_graded and not found.teaches}
    for attempt in range(2, most + 1):
        if not left:  # on all ranks
            break
        places = [i for i, problem in enumerate(problems) if problem in left]
        again = grade(draw(places, attempt))
        found = _verdicts([problems[i] for i in places], again, learns_from)
        for i, rollout in zip(places, again, strict=True):
            tokens[i].append(len(rollout.completion.ids))
            if found[problems[i]].teaches:
                kept[i] = rollout
        taught = {problem: now for problem, now in found.items() if now.teaches}
        verdicts |= taught
        left -= taught.keys()
    return [
        replace(r, draws=Draws(tuple(counts), verdicts[problem].has_right))
        for r, counts, problem in zip(kept, tokens, problems, strict=True)
    ]


def _verdicts(
    problems: Sequence[Hashable], rollouts: Sequence[Rollout], learns_from: LearnsFrom
) -> dict[Hashable, _Verdicts]:
    mine = [
        (problem, r.is_correct, r.grade.reward if r.grade else None)
        for problem, r in zip(problems, rollouts, strict=True)
    ]
    right: defaultdict[Hashable, bool] = defaultdict(bool)
    rewards: defaultdict[Hashable, set[float]] = defaultdict(set)
    for problem, is_right, reward in all_gather_objects(mine):
        right[problem] |= is_right
        rewards[problem] |= set() if reward is None else {reward}
    differ = learns_from == "differences"
    return {
        problem: _Verdicts(
            bool(rewards[problem]),
            right[problem],
            right[problem] or (differ and len(rewards[problem]) > 1),
        )
        for problem in right
    }
