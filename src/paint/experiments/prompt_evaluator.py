"""What a prompt changes in a model's answers, and how far an adapter reproduces it.

The base model with the prompt is the teacher, the model without it the student. Answers of two
views of a model to questions that are not trained on are compared by

    follows  share of the answers that the grader accepts
    KL       KL of a view to its reference a token, on answers of the view, exact over the
             vocabulary, at temperature 1
    AUC      probability that log p_reference − log p_view is larger for an answer of the reference
             than for one of the view to the same question: 1/2 where they are indistinguishable. No
             other test of one answer is more powerful (Neyman & Pearson 1933)
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paint.config.schema import Config
from paint.core.display import Display
from paint.data.contexts import Contexts
from paint.data.problems import Problem, item_of
from paint.evaluation.frame import (
    Measurement,
    to_measurement,
)
from paint.evaluation.generate import deployment_prompts, load_eval_policy
from paint.evaluation.intervals import SHARE, bootstrap
from paint.evaluation.metrics import auc
from paint.grading.graders import open_grader
from paint.inference.engine import Completion, Engine, derive_seed, sampling_from
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.machine import find_machine
from paint.models.policy import Policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, trained_in
from paint.training.check import resolve_evaluation

PROMPTED, PLAIN, BAKED = "prompted base", "plain base", "baked"
"""The views of a model that are compared: the policies of the rows."""

HELD_OUT, UNRELATED = "held_out", "unrelated"
REFERENCES = {HELD_OUT: PROMPTED, UNRELATED: PLAIN}
"""The view that the others are compared with, by group of questions: the rows' benchmark."""

Answers = list[list[Completion]]  # the completions of each question
Groups = dict[str, list[Problem]]
BaseAnswers = dict[tuple[str, str], Answers]  # by group of questions and view


@dataclass(frozen=True)
class PromptEvaluator:
    """Samples and scores the views of one model. Base views are sampled with a new adapter."""

    config: Config
    policy: Policy
    teacher: Teacher
    engine: Engine
    context: str

    def answer(self, view: str, problems: Sequence[Problem], samples: int) -> Answers:
        """Sample ``samples`` answers to each question."""
        prompts, seeds = [], []
        for problem in problems:
            for i in range(samples):
                prompts.append(self._prompt(view, problem))
                seeds.append(derive_seed(self.config.train.seed, view, i, problem.id))
        flat = self.engine.generate(prompts, sampling_from(self.config.rollout), seeds)
        return [flat[i : i + samples] for i in range(0, len(flat), samples)]

    def base_answers(self, groups: Groups, samples: int) -> BaseAnswers:
        """Sample answers of both base views to all questions."""
        base = {}
        for group, problems in groups.items():
            for view in (PROMPTED, PLAIN):
                base[group, view] = self.answer(view, problems, samples)
        return base

    def base_rows(self, groups: Groups, base: BaseAnswers) -> list[Measurement]:
        """The rows of both base views."""
        rows: list[Measurement] = []
        for (group, view), own in base.items():
            others = base[group, REFERENCES[group]]
            rows += self.measurements(group, groups[group], view, own, others)
        return rows

    def baked_rows(self, groups: Groups, base: BaseAnswers, samples: int) -> list[Measurement]:
        """Sample answers of the baked view to all questions, and return its rows."""
        rows: list[Measurement] = []
        for group, problems in groups.items():
            own = self.answer(BAKED, problems, samples)
            others = base[group, REFERENCES[group]]
            rows += self.measurements(group, problems, BAKED, own, others)
        return rows

    def measurements(
        self, group: str, problems: Sequence[Problem], view: str, own: Answers, others: Answers
    ) -> list[Measurement]:
        """The rows of a view's answers, compared with those of its group's reference."""
        reference, n = REFERENCES[group], len(problems)
        rows: list[Measurement] = []
        if group == HELD_OUT and not self.config.grading.is_off:
            follows = bootstrap([self._follow_rates(problems, own)], bounds=SHARE)
            rows += to_measurement(view, group, "follows", follows, n)
        if view != reference:
            kls, areas = [], []
            for problem, mine, theirs in zip(problems, own, others, strict=True):
                scores = [self._score(view, reference, problem, c) for c in mine]
                kls.append(sum(kl for kl, _ in scores) / sum(len(c.ids) for c in mine))
                ratios = [self._score(view, reference, problem, c)[1] for c in theirs]
                areas.append(auc(np.array(ratios), np.array([ratio for _, ratio in scores])))
            kl = bootstrap([np.array(kls)], bounds=(0, math.inf))
            rows += to_measurement(view, group, "kl", kl, n)
            rows += to_measurement(
                view, group, "auc", bootstrap([np.array(areas)], bounds=SHARE), n
            )
        lengths = np.array([np.mean([len(c.ids) for c in row]) for row in own])
        tokens = bootstrap([lengths], bounds=(0, self.config.rollout.max_new_tokens))
        return rows + to_measurement(view, group, "completion_tokens", tokens, n)

    def _score(
        self, view: str, reference: str, problem: Problem, completion: Completion
    ) -> tuple[float, float]:
        """Of a completion: the sum of KL(view ‖ reference), and log p_reference − log p_view."""
        own = self._log_probs(view, problem, completion)
        other = self._log_probs(reference, problem, completion)
        ids = torch.tensor(completion.ids, device=own.device)[:, None]
        kl = (own.exp() * (own - other)).sum()
        return float(kl), float((other - own).gather(1, ids).sum())

    def _log_probs(
        self, view: str, problem: Problem, completion: Completion
    ) -> Float[Tensor, "n v"]:
        with torch.no_grad(), nullcontext() if view == BAKED else self.teacher.view():
            hidden = self.policy.hidden_states([self._prompt(view, problem)], [completion.ids])
            logits: Tensor = self.policy.lm_head(hidden)
        return logits.float().log_softmax(-1)

    def _prompt(self, view: str, problem: Problem) -> list[int]:
        if view == PROMPTED:
            return self.policy.teacher_prompt(problem, self.context, complete=True)
        return self.policy.student_prompt(problem)

    def _follow_rates(
        self, problems: Sequence[Problem], answers: Answers
    ) -> Float[np.ndarray, " p"]:
        grading, transcript = self.config.grading, self.policy.transcript
        tags = self.policy.conventions.tags
        items = []
        for p, row in zip(problems, answers, strict=True):
            for c in row:
                items.append(
                    item_of(
                        p,
                        transcript(self._prompt(PLAIN, p), c.ids),
                        truncated=c.truncated,
                        tags=tags,
                    )
                )
        with open_grader(grading) as grader:
            correct = np.array([grade.correct for grade in grader.grade(items)])
        rates: Float[np.ndarray, " p"] = correct.reshape(len(problems), -1).mean(axis=1)
        return rates


@contextmanager
def open_evaluator(
    config: Config,
    folder: Path,
    groups: Groups,
    display: Display,
    checkpoint: Path | None = None,
) -> Iterator[PromptEvaluator]:
    """Load model and engine; both are freed before the training loads its own."""
    machine = find_machine(config.rollout.server)
    resolved = resolve_evaluation(config.rollout, machine, is_full=False)
    display.notes(resolved.notes)
    rollout = resolved.rollout
    policy = load_eval_policy(config.model, rollout, prompts=config.prompts)
    problems = []
    for group in groups.values():
        problems.extend(group)
    deployment_prompts(policy, problems, thinking=policy.student_thinking)  # refuses control text
    context = Contexts(config.context, problems).shared
    longest = max(len(policy.teacher_prompt(p, context, complete=True)) for p in problems)
    max_tokens = longest + rollout.max_new_tokens
    setup = EngineSetup(
        policy,
        config.model,
        rollout,
        folder,
        display,
        max_tokens,
        problems,
        falls_back=resolved.falls_back,
    )
    with open_engine(setup) as engine:
        teacher = open_teacher(policy, config.teacher)
        if checkpoint:
            load_trained(policy, trained_in(checkpoint, policy.tuning))
        engine.sync_weights()
        yield PromptEvaluator(config, policy, teacher, engine, context)
