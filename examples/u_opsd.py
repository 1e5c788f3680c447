"""U-OPSD: the solution is a completion that the majority agrees with; no row needs an answer.

    teacher   reads the shortest completion with the answer of at least THRESHOLD of its group
    student   learns from the longest completion with another answer; other groups are skipped

(On-Policy Self-Distillation without Any Supervision, arXiv 2608.06296.)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import paint
from paint.algorithms.paint import score_rollouts
from paint.core.distributed import all_gather_objects
from paint.grading.math.grader import answer_text
from paint.training import train_step as ts
from paint.training.rollouts import TeacherPrompt

THRESHOLD = 0.5


def lesson(group: Sequence[Any]) -> tuple[str | None, int | None]:
    """Of a problem's completions: the text that the teacher reads, and the row to learn from."""
    by_length = sorted(group, key=lambda r: len(r.completion.ids))
    boxed = [(a, r) for r in by_length if (a := answer_text(r.text)) is not None]
    [(answer, votes)] = Counter(a for a, _ in boxed).most_common(1) or [("", 0)]
    others = [r.row for a, r in boxed if a != answer]
    if votes < THRESHOLD * len(group) or not others:
        return None, None
    return next(r.text for a, r in boxed if a == answer), others[-1]


class UOpsd(paint.Algorithm):
    needs_context = True
    min_samples = 3

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        size = setup.config.rollout.samples_per_problem
        every = sorted(all_gather_objects(rollouts), key=lambda r: r.row)
        lessons = [lesson(every[i : i + size]) for i in range(0, len(every), size)]

        def taught(r: Any) -> Any:
            text, row = lessons[r.row // size]
            prompt = setup.policy.teacher_prompt(r.problem, text, complete=True)
            view = TeacherPrompt(text, text is not None, prompt)
            return replace(r, teacher_prompt=view, kept=r.row == row)

        rollouts = [taught(r) for r in rollouts]
        return ts.learn(setup, rollouts, partial(score_rollouts, setup), step_index, clock)


if __name__ == "__main__":
    method, groups = {"method": UOpsd, "steps": 2}, {"samples_per_problem": 8}
    run = paint.train("demo-opsd", output_dir="runs/u-opsd", train=method, rollout=groups)
    print(run.metrics[["kl", "gradient_norm"]])
