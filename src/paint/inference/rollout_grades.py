"""The grades of rollouts: what a grader reads of each, and the grades that environments gave."""

from collections.abc import Sequence

from paint.data.problems import row_of
from paint.grading.contract import Grade, Grader, Item
from paint.grading.graders import grade_items
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy
from strictgrade.thoughts import ThoughtTags


def transcript_of(policy: Policy, rollout: Rollout) -> str:
    """Return what a grader reads of a completion: its text, with the thought of the prompt.

    Of a conversation it is the last turn.
    """
    return policy.transcript(*rollout.student_parts[-1])


def is_gradable(rollout: Rollout, *, needs_answer: bool) -> bool:
    """Return whether a rollout is graded: it has an answer if one is needed, or a grade."""
    return bool(rollout.problem.answers or rollout.grade or not needs_answer)


def name_of_grader(graders: Sequence[str], environment: str, *, is_given: bool) -> str:
    """Return who grades, for messages: the graders, or the environment if it gave the grades."""
    if is_given:
        return f"the environment {environment}"
    return f"the grader {', '.join(graders)}"


def grade_rollouts(
    grader: Grader,
    rollouts: Sequence[Rollout],
    texts: Sequence[str],
    *,
    tags: Sequence[ThoughtTags],
    needs_answer: bool,
) -> list[Grade]:
    """Return the grades of the rollouts; those that an environment gave are kept.

    The grader reads ``texts`` (``transcript_of``), with thoughts in the ``tags`` of the model that
    sampled. With ``needs_answer``, rows without an answer are not graded.
    """
    items = []
    for rollout, text in zip(rollouts, texts, strict=True):
        if rollout.grade is None:
            problem, truncated = rollout.problem, rollout.completion.truncated
            items.append(Item(text, problem.answers, truncated, row_of(problem), tags))
    grades = iter(grade_items(grader, items, needs_answer=needs_answer))
    return [rollout.grade or next(grades) for rollout in rollouts]
