"""Rollouts of the student and answers of its teacher, graded, and their scores under contexts.

They are stored as an evaluation's samples (``paint.evaluation.store``): an interrupted collection
continues, and the engine "stored" reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paint.config.schema import ONE_TURN
from paint.core.display import Display
from paint.data.contexts import Attempt, Contexts, with_others
from paint.data.problems import Problem
from paint.evaluation.generate import (
    EvalTask,
    SamplingProtocol,
    collect_samples,
    deployment_prompts,
    load_eval_policy,
)
from paint.evaluation.grade import grade, grade_of
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import PURPOSE, Store, recorded_engines
from paint.grading.graders import open_grader
from paint.inference.engine import TurnPart, sampling_from
from paint.inference.machine import find_machine
from paint.inference.rollouts import Rollout, rollout_of
from paint.models.caches import shared_length
from paint.models.policy import Policy
from paint.models.teacher import open_teacher
from paint.models.weights import load_trained, trained_in
from paint.objective.anchors import contains
from paint.objective.detail import detail
from paint.objective.divergences import FORWARD_KL, Divergence
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import token_log_probs
from paint.objective.solution import anchors_of, written
from paint.resolve.check import Resolved, resolve_evaluation
from paint.training.drift import KL
from paint.training.teacher_views import with_teacher_prompt
from paint.training.token_log import token_bytes
from strictgrade.text import normalize

STUDENT = "student"  # the folder of the student's rollouts
BOX = "\\boxed{"
ROWS_AT_ONCE = 8  # completions whose hidden states are computed together

# By context, the values of every rollout.
ContextScores = Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class GradedRollouts:
    """Rollouts, k of each problem, one problem after the other, and their grades as arrays."""

    policy: Policy  # with the weights that sampled
    run: Resolved  # with the engine that sampled
    rollouts: list[Rollout]
    graded: GradedSamples

    @cached_property
    def attempts(self) -> dict[int, Attempt]:
        """What the teacher may read of the rollouts, by row."""
        return with_others([r.attempt for r in self.rollouts])

    def taught(self, contexts: Contexts, rows: Sequence[Rollout]) -> list[Rollout]:
        """Return some of the rollouts with the teacher's prompts and overlaps of a first step."""
        write = partial(with_teacher_prompt, self.policy, self.run, contexts)
        return [write(row, self.attempts[row.row], 0) for row in rows]


def load_student(run: Resolved, folder: Path, display: Display) -> tuple[Policy, Resolved]:
    """Load the base policy that samples for a folder.

    Returns also the run with the engine of the folder's rollouts, or else of new ones.
    """
    if not run.engine.is_stored:
        earlier = recorded_engines([folder / STUDENT])
        model = run.config.model
        rollout, notes = resolve_evaluation(run.rollout, find_machine(), model, earlier=earlier)
        display.notes(notes)
        run = run.changed("rollout", engine=rollout.engine)
    with display.working("loading the model"):
        return load_eval_policy(run.config), run


def student_task(
    policy: Policy,
    run: Resolved,
    problems: Sequence[Problem],
    samples: int,
    folder: Path,
    **settings: Any,
) -> EvalTask:
    """Return the task of the student's rollouts, as training samples them.

    ``settings`` are further ones that the rollouts depend on.
    """
    thinking = policy.student_thinking
    return EvalTask(
        folder / STUDENT,
        problems,
        deployment_prompts(policy, problems, thinking=thinking),
        SamplingProtocol(samples, thinking, sampling_from(run.rollout), run.config.train.seed),
        settings={PURPOSE: "rollouts", **settings},
    )


def collect(
    policy: Policy, run: Resolved, tasks: Sequence[EvalTask], folder: Path, display: Display
) -> list[GradedRollouts]:
    """Generate the missing rollouts of some tasks, grade all, and return those of each task.

    The arguments are those of ``collect_samples``.
    """
    config, grading = run.config, run.config.grading
    if run.engine.is_stored:  # stored conversations are answered already
        config = replace(config, conversation=ONE_TURN)
    collected = []
    with collect_samples(policy, config, tasks, folder, display) as stores:
        with open_grader(grading) as grader:
            graded = [grade(store, grader, grading, display) for store in stores]
        for task, store, grades in zip(tasks, stores, graded, strict=True):
            collected.append(GradedRollouts(policy, run, _rollouts(policy, task, store), grades))
    return collected


def _rollouts(policy: Policy, task: EvalTask, store: Store) -> list[Rollout]:
    problems = {problem.id: problem for problem in task.problems}
    rollouts = []
    for row, (sample, grades) in enumerate(store.graded()):
        problem = problems[sample.problem.id]
        # Its text is as in training, without a tag that the prompt opened.
        rollout = rollout_of(policy.decode, row, problem, sample.prompt, sample.completion)
        if sample.completion.conversation:
            # Its environment may have begun it otherwise. JSON has not all values of the fields.
            rollout = replace(rollout, problem=replace(rollout.problem, fields=problem.fields))
        rollouts.append(replace(rollout, grade=grade_of(grades)))
    return rollouts


def teacher_answers(
    student: GradedRollouts, contexts: Mapping[str, Contexts], folder: Path, display: Display
) -> dict[str, GradedSamples]:
    """Let the teacher answer under each context: once for each rollout, by its prompt and seed."""
    if not contexts:
        return {}
    policy, run = student.policy, student.run
    problems = list({row.problem.id: row.problem for row in student.rollouts}.values())
    samples = len(student.rollouts) // len(problems)
    task, tasks = student_task(policy, run, problems, samples, folder), []
    for name in display.track("contexts with teacher prompts", list(contexts)):
        taught = student.taught(contexts[name], student.rollouts)
        prompts = [list(row.teacher_parts[0][0]) for row in taught]
        by_sample = dict(zip(task.asked, prompts, strict=True))
        # A source may be named "module:function", which not every file system takes.
        place = folder / quote(name, safe="@ ")
        tasks.append(replace(task, folder=place, own_prompts=by_sample))
    answers = collect(policy, run, tasks, folder, display)
    return {name: of.graded for name, of in zip(contexts, answers, strict=True)}


def sample_student(
    run: Resolved,
    problems: Sequence[Problem],
    samples: int,
    folder: Path,
    display: Display,
    checkpoint: Path | None = None,
) -> GradedRollouts:
    """Load the policy, of a checkpoint or the base, and collect its rollouts of these problems."""
    policy, run = load_student(run, folder, display)
    task = student_task(policy, run, problems, samples, folder)
    if checkpoint:
        task = replace(task, trained=trained_in(checkpoint, run.config.model.train_mode))
    [student] = collect(policy, run, [task], folder, display)
    if task.trained:  # also where no rollout was missing
        load_trained(policy, task.trained)
    return student


@dataclass(frozen=True)
class TokenAnnotations:
    """Positions in a rollout of n tokens."""

    divergence_point: int  # first token after a formula or number that the solution lacks, or n
    forced: tuple[int, ...] = ()  # a wrong rollout up to its box's content, then the right answer
    answer_tokens: int = 0  # number of tokens of the right answer in ``forced``


def annotate(policy: Policy, rollout: Rollout) -> TokenAnnotations:
    """Find the divergence from the solution, and the position of the answer."""
    ids, problem = rollout.completion.ids, rollout.problem
    text, owners = written(token_bytes(policy.tokenizer, ids))
    solution = normalize(problem.solution)
    # last characters of what the solution lacks
    foreign = [
        anchor.met[1]
        for anchor in anchors_of(text, text)
        if anchor.met and not contains(solution, anchor.text)
    ]
    divergence_point = len(ids)
    if foreign and problem.solution:
        # Behind the token that completes the statement: there the prefix contains it.
        divergence_point = owners[min(foreign) - 1] + 1
    annotations = TokenAnnotations(divergence_point)

    content = text.rfind(BOX) + len(BOX)
    # Without a box rfind gives -1, and content is below len(BOX).
    has_box = len(BOX) <= content < len(text)
    # In a conversation an answer follows what was said before it, not the first prompt.
    is_one_turn = rollout.completion.conversation is None
    if rollout.is_correct or not problem.answer or not (has_box and is_one_turn):
        return annotations
    # A token may hold the brace and the first digit: what it has before the content is kept.
    first = owners[content]
    lead = text[owners.index(first) : content]
    answer = policy.tokenizer.encode(f"{lead}{problem.answer}}}", add_special_tokens=False)
    return replace(annotations, forced=(*ids[:first], *answer), answer_tokens=len(answer))


def score(
    student: GradedRollouts, contexts: Mapping[str, Contexts], display: Display
) -> ContextScores:
    """Score the rollouts with a teacher that reads each of the contexts, as training would."""
    policy = student.policy
    heads = policy.lm_head, policy.lm_head
    scores: ContextScores = {name: [] for name in contexts}
    total = len(student.rollouts) * len(contexts)
    with display.counting("rollouts scored under contexts", total) as counter:
        for start in range(0, len(student.rollouts), ROWS_AT_ONCE):
            rows = student.rollouts[start : start + ROWS_AT_ONCE]
            annotations = [annotate(policy, row) for row in rows]
            # Once for all contexts. The adapter is untrained: both views have the base's weights.
            states = _states(policy, [row.student_parts for row in rows])
            for name, of_problem in contexts.items():
                taught = student.taught(of_problem, rows)
                teacher = _states(policy, [row.teacher_parts for row in taught])
                prompts = [row.teacher_parts[0][0] for row in taught]
                leakage = _answer_leakage(policy, prompts, annotations)
                for i, row in enumerate(rows):
                    tokens = torch.tensor(row.completion.ids, device=policy.device)
                    objective = student.run.objective
                    terms = detail(states[i], teacher[i], heads, tokens, objective).values
                    values = {**taught[i].metrics, **rollout_metrics(terms, annotations[i])}
                    scores[name].append({**values, "answer_leakage": leakage[i]})
                    counter.add(len(row.completion.ids))
    return scores


@torch.no_grad()
def divergence_sums(
    student: GradedRollouts, divergence: Divergence, display: Display
) -> tuple[Float[np.ndarray, "p k"], Int[np.ndarray, "p k"]]:
    """Return the divergence of each rollout in nats, at temperature 1 without clip, and its tokens.

    The teacher reads the run's context of each rollout's problem, masked as in training.
    """
    policy, config = student.policy, student.run.config
    teacher = open_teacher(policy, config.teacher)
    problems = {row.problem.id: row.problem for row in student.rollouts}  # each one once
    contexts = Contexts(config.context, list(problems.values()))
    options = replace(KL, divergence=divergence)
    sums: list[float] = []
    tokens: list[int] = []
    taught = student.taught(contexts, student.rollouts)
    shared = shared_length([prompt for row in taught for prompt, _ in row.teacher_parts])
    starts = range(0, len(taught), ROWS_AT_ONCE)
    for start in display.track("batches of rollouts scored", starts):
        rows = taught[start : start + ROWS_AT_ONCE]
        states = policy.hidden_states(*_split([row.student_parts for row in rows]))
        hidden = teacher.hidden_states(*_split([row.teacher_parts for row in rows]), shared)
        lengths = [len(row.completion.ids) for row in rows]
        loss = fused_paint_loss(
            states, hidden, policy.lm_head, lengths, options, teacher_lm_head=teacher.lm_head
        )
        sums.extend(float(part.sum()) for part in loss.per_token.split(lengths))
        tokens += lengths
    shape = student.graded.tokens.shape
    return np.array(sums).reshape(shape), np.array(tokens).reshape(shape)


def kl_by_problem(student: GradedRollouts, display: Display) -> Float[np.ndarray, " p"]:
    """Return KL(teacher ‖ student) in nats a token, whose mean is that of all tokens."""
    kl, tokens = divergence_sums(student, FORWARD_KL, display)
    sums, counts = kl.sum(axis=1), tokens.sum(axis=1)
    # A mean over problems would count the tokens of short rollouts more. Each problem has what it
    # adds to the quotient of both sums, by the delta method.
    ratio = sums.sum() / counts.sum()
    by_problem: np.ndarray = ratio + (sums - ratio * counts) / counts.mean()
    return by_problem


@torch.no_grad()
def _states(policy: Policy, rows: Sequence[Sequence[TurnPart]]) -> Sequence[Tensor]:
    states = policy.hidden_states(*_split(rows))
    return torch.split(states, [sum(len(ids) for _, ids in row) for row in rows])


def _split(rows: Sequence[Sequence[TurnPart]]) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    parts = [part for row in rows for part in row]
    return [prompt for prompt, _ in parts], [ids for _, ids in parts]


@torch.no_grad()
def _answer_leakage(
    policy: Policy, prompts: Sequence[Sequence[int]], annotations: Sequence[TokenAnnotations]
) -> list[float | None]:
    """Return the probability of the right answer in each wrong rollout's box; None for others."""
    chosen = [i for i, annotation in enumerate(annotations) if annotation.forced]
    leakage: list[float | None] = [None] * len(annotations)
    if not chosen:
        return leakage
    # The probability of several tokens is that of each after the ones before: one pass has all.
    forced = [annotations[i].forced for i in chosen]
    states = policy.hidden_states([prompts[i] for i in chosen], forced)
    for i, part in zip(chosen, states.split([len(ids) for ids in forced]), strict=True):
        count = annotations[i].answer_tokens
        tokens = torch.tensor(annotations[i].forced[-count:], device=policy.device)
        leakage[i] = float(token_log_probs(policy.lm_head(part[-count:]), tokens).sum().exp())
    return leakage


def rollout_metrics(
    terms: Mapping[str, np.ndarray], annotations: TokenAnnotations
) -> dict[str, Any]:
    """Return the values of a rollout from those of its tokens."""
    gap = terms["teacher_entropy"] - terms["student_entropy"]
    after = gap[annotations.divergence_point :]
    return {
        "tokens": len(gap),
        "kl": float(terms["kl"].sum()),
        "directional_derivative": float(terms["pull"].sum()),
        "unclipped_mass": float(terms["unclipped_mass"].sum()),
        "entropy_gap_after_divergence": float(after.mean()) if len(after) else None,
    }
