"""SFT on the prompted teacher's own answers, all of them or those that the grader accepts.

    y ~ p_T(· | x, y*),     L = −mean of log p_S(y_n | x, y_<n)

The teacher answers anew in each step, in this process. ``teacher_gap`` is what its own answer costs
the student: the mean of log p_T(y_n | x, y*, y_<n) − log p_S(y_n | x, y_<n), in nats a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from paint.algorithms.variant import Variant
from paint.config.context_sources import context_source
from paint.config.schema import Config
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.core.errors import ConfigError
from paint.inference.engine import Completion
from paint.inference.local import LocalEngine
from paint.inference.rollouts import Rollout, rollout_of
from paint.objective.loss import weighted_sum
from paint.resolve.engines import engine_of
from paint.training import train_step as ts
from paint.training.teacher_views import with_teacher_prompt
from paint.training.weighting import Weights, factors, learn_from


@dataclass(frozen=True)
class Options:
    keep: Literal["all", "correct"] = "all"
    """All answers, or those that the grader accepts."""


class SftTeacher(Variant):
    options: Options

    @property
    def needs_grades(self) -> bool:  # type: ignore[override]
        return self.options.keep == "correct"

    def generates(self, config: Config) -> bool:
        # The teacher writes in this process: an engine samples for the validation alone.
        return bool(config.validation.path)

    def check(self, config: Config) -> None:
        engine = engine_of(config.rollout)
        faults = {
            "a rollout.engine in this process": engine.is_remote or engine.is_stored,
            "rollout.off_policy_steps 0": config.rollout.off_policy_steps > 0,
            "a context.source that is the row's": any(
                not context_source(name).of_row for name in config.context.source
            ),
            "no [conversation]": config.conversation.is_on,
        }
        if needed := [name for name, is_fault in faults.items() if is_fault]:
            raise ConfigError(
                f"train.method {config.train.method} learns from what the teacher writes in this "
                f"process, and the student writes nothing: it takes {' and '.join(needed)}"
            )

    def rollouts(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> list[Rollout]:
        """Return the teacher's answer to every row, graded, as if it were the student's."""
        policy, config = setup.policy, setup.config
        rows = ts.prompted_rows(setup, batch, step_index)
        asked = []
        for one in rows:
            nothing = Completion((), (), truncated=False)
            unanswered = rollout_of(policy.decode, one.row, one.problem, one.prompt, nothing)
            attempt = unanswered.attempt
            asked.append(
                with_teacher_prompt(
                    policy, setup.resolved, setup.contexts, unanswered, attempt, step_index
                )
            )
        _, sampling, seeds = ts.generation_request(setup, rows)
        prompts = [prompt for r in asked for prompt, _ in r.teacher_parts]
        engine = LocalEngine(policy, batch_size=config.rollout.batch_size)
        with clock("rollout", len(rows) * sampling.max_new_tokens), setup.teacher.view():
            written = engine.generate(prompts, sampling, seeds)
        answered = []
        for r, completion in zip(asked, written, strict=True):
            # There was no completion to compare with the reference: no overlap is told.
            text = policy.decode(completion.ids)
            answered.append(replace(r, completion=completion, text=text, metrics={}))
        if config.grading.is_off:
            return answered
        with clock("reward"):
            answered = ts.add_grades(setup, answered, step_index)
        return ts.set_ungraded_aside(setup, answered) if self.needs_grades else answered

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        kept = [r.row for r in rollouts if r.is_correct or self.options.keep == "all"]

        def score(micro: Sequence[Rollout], weights: Weights) -> ts.Scores:
            found = ts.student_log_probs(setup, micro, 1.0)
            surprise = -found.log_prob * factors(weights, micro, found.log_prob.device)
            lengths = ts.completion_lengths(micro)
            teacher = torch.cat([torch.tensor(r.completion.log_probs) for r in micro])
            gap = teacher.to(found.log_prob.device) - found.log_prob.detach()
            values = {"loss": surprise.detach(), "student_entropy": found.entropy}
            loss = weighted_sum(surprise, lengths, setup.resolved.objective)
            return loss, values | {"teacher_gap": gap}

        return learn_from(setup, rollouts, set(all_gather_objects(kept)), score, step_index, clock)
