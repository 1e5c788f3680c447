"""A reason-first teacher: it writes a rationale of its context, and scores with it in its prompt.

    r ~ p_T(· | x, ỹ*, "explain why it works"),     p_T^n = p_T(· | x, ỹ*, r, ŷ_<n)

Source: the paper's appendix 'Training Algorithm' names reason-first teachers and reports none; the
wording is ours (paint.objective.messages.rationale_messages).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from paint.algorithms.variant import Variant
from paint.core.display import Clock
from paint.core.settings import POSITIVE, setting
from paint.data.contexts import Context
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts
from paint.training.teacher_views import require_prompt_fits, view_with_context


@dataclass(frozen=True)
class Options:
    rationale_tokens: int = setting(512, POSITIVE, "tokens; default: 512")
    """Longest rationale, in tokens (ours)."""
    request: str = ""
    """Request for it: a template that sees what prompts.teacher sees, or a field of the row; empty:
    our wording."""


class ReasonFirst(Variant):
    options: Options

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        with clock("rationale"):
            rollouts = self.add_rationales(setup, rollouts, step_index)
        return ts.learn(setup, rollouts, partial(self.score, setup), step_index, clock)

    def add_rationales(
        self, setup: ts.Setup, rollouts: Sequence[Rollout], step_index: int
    ) -> list[Rollout]:
        """Sample the teacher's rationale of its context, and append it to its prompt."""
        policy, config, request = setup.policy, setup.config, self.options.request
        asked, prompts, seeds = [], [], []
        by_row = {}
        for r in rollouts:
            # All rows need the same names, as loss_metrics takes those of the first.
            by_row[r.row] = replace(r, metrics={**r.metrics, "rationale_tokens": 0})
            view = r.teacher_prompt
            if view and view.context is not None:
                asked.append((r, view.context, view.complete))
                prompts.append(
                    policy.rationale_prompt(
                        r.problem, view.context, complete=view.complete, request=request
                    )
                )
                seeds.append(derive_seed(config.train.seed, "rationale", step_index, r.row))
        tokens = self.options.rationale_tokens
        sampling = replace(sampling_from(config.rollout), max_new_tokens=tokens)
        # Always in this process: servers hold the student, not the teacher.
        engine = LocalEngine(policy, batch_size=config.rollout.batch_size)
        with setup.teacher.view():
            written = engine.generate(prompts, sampling, seeds)

        for (r, context, is_complete), completion in zip(asked, written, strict=True):
            rationale = policy.decode(completion.ids).strip()
            # As generated text, which it may be: special tokens that a model spelled are dropped.
            shown = Context(context, is_complete, names={"completion": r.text})
            conversation = r.completion.conversation
            view = view_with_context(
                policy, r.problem, shown, rationale, request, conversation=conversation
            )
            require_prompt_fits(view.prompt, r.problem, policy, setup.resolved)
            metrics = {**r.metrics, "rationale_tokens": len(completion.ids)}
            by_row[r.row] = replace(r, teacher_prompt=view, metrics=metrics)
        return list(by_row.values())
