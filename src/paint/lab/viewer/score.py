"""Rescoring of stored rollouts: most likely tokens, gradient of each token, other contexts.

A run logs values, not distributions, which would take a gigabyte per rollout of a real model. They
are recomputed from the stored token ids with the student before the step. If that step has no
checkpoint, the last earlier one is used, and ``Scorer.become_student`` returns its step.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from paint.config.context_sources import context_source
from paint.config.run_folder import (
    RunError,
    checkpoints,
    read_run_json,
    require_checkpoint,
    step_of,
)
from paint.config.schema import ConfigError
from paint.core.device import own_device
from paint.core.display import Display
from paint.core.trust import UntrustedError
from paint.data.contexts import Contexts, with_source
from paint.data.problems import DataError, Problem, problems_digest, read_problems
from paint.inference.adapter_sync_check import set_trained
from paint.inference.engine import row_seed
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models.policy import Policy, load_policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, model_digests, trained_in
from paint.objective.detail import Detail, detail
from paint.resolve.check import Resolved
from paint.training.prompt_filter import filter_problems
from paint.training.teacher_views import masked_context, view_with_context


class Scorer:
    """A run's model, loaded with the student of one step at a time."""

    def __init__(self, run: Path, resolved: Resolved, display: Display) -> None:
        """Load the model of a run. Raises PaintError if it cannot be loaded, or is another one."""
        config = resolved.config
        self.run, self.config, self.resolved = run, config, resolved
        # Gradients end at the logits (paint.objective.detail): layers save nothing.
        model = replace(config.model, gradient_checkpointing=False)
        with display.working("loading the model"):
            policy = load_policy(
                model, seed=config.train.seed, device=own_device(), prompts=config.prompts
            )
            self.policy = replace(policy, tools=tuple(read_run_json(run).get("tools", ())))
        if model_digests(self.policy) != read_run_json(run)["model"]:
            raise RunError(
                f"{config.model.path} holds another model than {run} was trained from, so its "
                f"rollouts cannot be rescored; put it back, or pass --no-rescore"
            )
        self.teacher: Teacher = open_teacher(self.policy, config.teacher)
        # To go back to the student before the first checkpoint.
        self._fresh = [parameter.detach().clone() for parameter in self.policy.trainable]
        self._at = 0
        self.problems = read_training_problems(run, resolved, self.policy, display)

    def become_student(self, step: int) -> int:
        """Load the student before a step, or that of the last earlier checkpoint.

        Return the steps of the loaded student: ``step - 1`` if it is exact.
        """
        # The student before step n is the one after n - 1 steps.
        before = [path for path in checkpoints(self.run) if step_of(path) < step]
        done = step_of(before[-1]) if before else 0
        if done == self._at:
            return done

        if before:
            require_checkpoint(before[-1])
            load_trained(self.policy, trained_in(before[-1], self.policy.tuning))
            # A moving average is of its step, too (fidelity C22).
            self.teacher.load(before[-1])
        else:
            set_trained(self.policy, self._fresh)
        self._at = done
        return done

    def score(self, rollout: Rollout, teacher: Sequence[Sequence[int]]) -> Detail:
        """Score a rollout under the loaded student and a teacher with these prompts.

        There is one, or one for each turn of a conversation.
        """
        options = self.resolved.objective
        prompts, parts = zip(*rollout.student_parts, strict=True)
        with torch.no_grad():
            student = self.policy.hidden_states(prompts, parts)
            states = self.teacher.hidden_states(teacher, parts)
            tokens = torch.tensor(rollout.completion.ids, device=student.device)
        heads = self.policy.lm_head, self.teacher.lm_head
        return detail(student, states, heads, tokens, options)

    def view(
        self, rollout: Rollout, mask_ratio: float, shown: str, step: int
    ) -> TeacherPrompt | None:
        """Return the teacher's prompt of a rollout with another context; None if there is none."""
        source, problem = context_source(shown), rollout.problem
        # A page scores one completion at a time: other completions of the step are not at hand.
        if source.origin in ("setting", "step"):
            raise ConfigError(f"--contexts {shown} is not of a row; leave it out")
        if source.shows_feedback and rollout.grade is None:
            raise ConfigError(
                f"--contexts {shown}: the run has no grader, so its rollouts hold no reason and no "
                f"feedback; leave it out"
            )
        contexts = Contexts(with_source(self.config.context, shown), self.problems)
        # Files count steps from 1, seeds from 0: so the choices are the run's.
        seed = row_seed(self.config.train.seed, step - 1, rollout.row)
        try:
            context, _ = masked_context(contexts, problem, seed, rollout.attempt, mask_ratio)
        except DataError:
            if source.reads_others:
                return None  # of a single problem there is no other one
            raise
        if contexts.reads_feedback and context.text is None:
            return None
        conversation = rollout.completion.conversation
        if conversation is not None:
            problem = conversation.problem
        return view_with_context(self.policy, problem, context, conversation=conversation)


def read_training_problems(
    run: Path, resolved: Resolved, policy: Policy, display: Display
) -> list[Problem]:
    """Read the run's training problems; [] with a note if the file is missing or changed, or if
    they were chosen by a context whose code nobody vouches for.
    """
    config = resolved.config
    try:
        quiet = Display(enabled=False)
        candidates = read_problems(config.data, needs=resolved.needed_fields)
        problems = filter_problems(policy, resolved, candidates, quiet)
    except (DataError, UntrustedError) as error:
        display.warn(f"solutions are not shown: {error}")
        return []
    if problems_digest(problems) != read_run_json(run)["problems"]:
        display.warn(
            f"solutions are not shown: {config.data.place} holds other problems than {run} was "
            f"trained on"
        )
        return []
    return problems
