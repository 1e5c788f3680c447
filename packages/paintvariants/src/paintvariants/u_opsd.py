"""U-OPSD: the solution is a completion that the majority agrees with; no row needs an answer.

    teacher   reads the shortest completion with the answer of at least ``threshold`` of its group
    student   learns from the longest completion with another answer; other groups are skipped

Source: On-Policy Self-Distillation without Any Supervision, https://arxiv.org/abs/2608.06296.
Answers agree where their texts are equal; of equal votes the shortest completion's wins.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from paint.algorithms.paint import score_rollouts
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.core.settings import setting, within
from paint.data.contexts import Context
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models.policy import Policy
from paint.resolve.algorithm import Algorithm
from paint.resolve.check import Resolved
from paint.training import train_step as ts
from paint.training.teacher_views import fitting_view
from paint.training.weighting import learn_from, rows_with_context
from strictgrade.comparer import answer_text


@dataclass(frozen=True)
class Options:
    threshold: float = setting(0.5, within("(0, 1]"), "default: 0.5")
    """Share of a problem's completions that must agree on the answer, in (0, 1]."""


class UOpsd(Algorithm):
    needs_context = True
    min_samples = 3
    options: Options

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        size = setup.config.rollout.samples_per_problem
        every = sorted(all_gather_objects(rollouts), key=lambda r: r.row)
        groups = [every[i : i + size] for i in range(0, len(every), size)]
        # Every rank sees all groups, and so finds the same lessons.
        lessons = [lesson(group, self.options.threshold) for group in groups]
        taught = []
        for rollout in rollouts:
            text, _ = lessons[rollout.row // size]
            view = lesson_view(setup.policy, setup.resolved, rollout, text)
            taught.append(replace(rollout, teacher_prompt=view))
        # Those of which a lesson is too long for a prompt are passed over.
        rows = rows_with_context(taught) & {row for _, row in lessons}
        score = partial(score_rollouts, setup)
        return learn_from(setup, taught, rows, score, step_index, clock)


def lesson_view(policy: Policy, run: Resolved, rollout: Rollout, text: str | None) -> TeacherPrompt:
    """The teacher's prompt of a completion, with the completion that it is compared with."""
    # With a name the text counts as generated: special tokens that a model spelled are dropped.
    shown = Context(text, complete=text is not None, names={"completion": rollout.text})
    conversation = rollout.completion.conversation
    return fitting_view(policy, run, rollout.problem, shown, conversation)


def lesson(group: Sequence[Rollout], threshold: float) -> tuple[str | None, int | None]:
    """Of a problem's completions: the text that the teacher reads, and the row to learn from."""
    by_length = sorted(group, key=lambda r: len(r.completion.ids))
    answers = [(answer_text(r.text), r) for r in by_length]
    boxed = [(answer, r) for answer, r in answers if answer is not None]
    if not boxed:
        return None, None
    # Of equal counts, Counter names the one that it saw first: that of the shortest completion.
    [(majority, votes)] = Counter(answer for answer, _ in boxed).most_common(1)
    others = [r.row for answer, r in boxed if answer != majority]
    if votes < threshold * len(group) or not others:
        return None, None
    # In the order of lengths: the first that agrees is the shortest, the last other the longest.
    return next(r.text for answer, r in boxed if answer == majority), others[-1]
