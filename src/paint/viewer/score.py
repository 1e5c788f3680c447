"""Rescoring of stored rollouts: most likely tokens, gradient of each token, other contexts.

A run logs values, not distributions, which would take a gigabyte per rollout of a real model. They
are recomputed from the stored token ids with the student before the step. If that step has no
checkpoint, the last earlier one is used, and ``Scorer.become_student`` returns its step.

Values are those of paint.objective.loss, the reference, on the logits of a few tokens at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paint.config.run_folder import (
    RunError,
    checkpoints,
    read_run_json,
    require_checkpoint,
    step_of,
)
from paint.config.schema import CONTEXT_SOURCES, Config
from paint.core.device import own_device
from paint.core.display import Display
from paint.data.contexts import Contexts
from paint.data.problems import DataError, Problem, problems_digest, read_problems
from paint.inference.engine import derive_seed
from paint.models.policy import Policy, load_policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, model_digests, trained_in
from paint.objective.divergences import find_divergence
from paint.objective.loss import (
    divergence_terms,
    entropy,
    entropy_ratio,
    interpolate,
    loss_from_logits,
    select,
)
from paint.objective.options import ObjectiveConfig
from paint.training.prompt_filter import filter_problems
from paint.training.rollouts import TeacherPrompt

LIKELIEST = 5
"""Most likely tokens of each distribution per position, in addition to the sampled one."""

CHUNK_LOGITS = 2**25
"""Maximum number of logits of one view in a chunk."""


@dataclass(frozen=True)
class Detail:
    """Loss terms of one completion (n tokens, m entries).

    Attributes:
        values: per-token values by name (docs/reference/metrics.md), and ``slope``, dD/dz of the
            sampled token; if negative, an optimizer step makes that token more likely (n).
        edges: entries of token i are those from edges[i] to edges[i + 1] (n + 1).
        entries: token ids: the sampled one first, then the others by falling probability (m).
        log_probs: log-probs of the entries under student, teacher and target, at the loss's
            temperature (m).
        terms: contribution of each entry to the divergence, before clipping (m).
    """

    values: dict[str, np.ndarray]
    edges: np.ndarray
    entries: np.ndarray
    log_probs: dict[str, np.ndarray]
    terms: np.ndarray


class Scorer:
    """A run's model, loaded with the student of one step at a time."""

    def __init__(self, run: Path, config: Config, display: Display) -> None:
        """Load the model of a run.

        Raises:
            ConfigError, PolicyError, RunError: the model cannot be loaded, or is another one.
        """
        self.run, self.config = run, config
        model = replace(config.model, gradient_checkpointing=False)
        self.policy = load_policy(
            model, seed=config.train.seed, device=own_device(), prompts=config.prompts
        )
        if model_digests(self.policy) != read_run_json(run)["model"]:
            raise RunError(
                f"{config.model.path} holds another model than {run} was trained from, so its "
                f"rollouts cannot be rescored; put it back, or pass --no-rescore"
            )
        self.teacher: Teacher = open_teacher(self.policy, config.teacher)
        self._fresh = [parameter.detach().clone() for parameter in self.policy.trainable]
        self._at = 0
        self.problems = read_training_problems(run, config, self.policy, display)

    def become_student(self, step: int) -> int:
        """Load the student before a step, or that of the last earlier checkpoint.

        Returns the steps of the loaded student: ``step - 1`` if it is exact.
        """
        before = [path for path in checkpoints(self.run) if step_of(path) < step]
        done = step_of(before[-1]) if before else 0
        if done == self._at:
            return done

        if before:
            require_checkpoint(before[-1])
            load_trained(self.policy, trained_in(before[-1], self.policy.tuning))
            self.teacher.load(before[-1])
        else:
            with torch.no_grad():
                for parameter, value in zip(self.policy.trainable, self._fresh, strict=True):
                    parameter.copy_(value)
        self._at = done
        return done

    def score(self, rollout: Mapping[str, Any], teacher_prompt: Sequence[int]) -> Detail:
        """Score a stored rollout under the loaded student and a teacher with this prompt."""
        options = self.config.objective.resolve(self.config.rollout.temperature)
        prompt, completion = rollout["prompt_ids"], rollout["completion_ids"]
        with torch.no_grad():
            student = self.policy.hidden_states([prompt], [completion])
            teacher = self.teacher.hidden_states([teacher_prompt], [prompt], [completion])
            tokens = torch.tensor(completion, device=student.device)
        heads = self.policy.lm_head, self.teacher.lm_head
        return detail(student, teacher, heads, tokens, options)

    def view(
        self, problem: Problem, ratio: float, shown: str, step: int, row: int
    ) -> TeacherPrompt | None:
        """The teacher's prompt with another context; None if there is none."""
        contexts = Contexts(replace(self.config.context, source=(shown,)), self.problems)
        seed = derive_seed(self.config.train.seed, step - 1, row)
        try:
            context = contexts.context(contexts.references(problem, seed), ratio, seed)
        except DataError:
            if shown in CONTEXT_SOURCES:
                return None  # of a single problem there is no other one
            raise
        prompt = self.policy.teacher_prompt(problem, context.text, complete=context.complete)
        return TeacherPrompt(context.text, context.complete, prompt)


def read_training_problems(
    run: Path, config: Config, policy: Policy, display: Display
) -> list[Problem]:
    """Read the run's training problems; [] with a note if the file is missing or changed."""
    try:
        quiet = Display(enabled=False)
        problems = filter_problems(
            policy, config, read_problems(config.data, needs=config.needed_fields), quiet
        )
    except DataError as error:
        display.note(f"solutions are not shown: {error}")
        return []
    shared = Contexts(config.context, problems).shared
    if problems_digest(problems, shared) != read_run_json(run)["problems"]:
        display.note(
            f"solutions are not shown: {config.data.path} holds other problems than {run} was "
            f"trained on"
        )
        return []
    return problems


def detail(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    heads: tuple[nn.Linear, nn.Linear],
    tokens: Tensor,
    options: ObjectiveConfig,
) -> Detail:
    """Compute the loss terms of one completion from both views' hidden states."""
    n, vocabulary = len(tokens), heads[0].out_features
    rows = max(1, CHUNK_LOGITS // vocabulary)
    chunks = [slice(i, i + rows) for i in range(0, n, rows)]

    def logits(chunk: slice) -> tuple[Tensor, Tensor]:
        """Logits of the student and of the teacher."""
        dtype = torch.promote_types(student_hidden.dtype, torch.float32)
        with torch.no_grad():
            student, teacher = heads[0](student_hidden[chunk]), heads[1](teacher_hidden[chunk])
        return student.to(dtype), teacher.to(dtype)

    # Selection ranks the entropy ratios of the complete completion, so they are computed first.
    ratios = []
    for chunk in chunks:
        log_probs = [(x / options.loss_temperature).log_softmax(-1) for x in logits(chunk)]
        ratios.append(entropy_ratio(entropy(log_probs[1]), entropy(log_probs[0])))
    selected = select(torch.cat(ratios), [n], options)
    parts = [
        _detail_of_rows(*logits(chunk), tokens[chunk], selected[chunk], options) for chunk in chunks
    ]
    values, entries = (
        {name: torch.cat([part[kind][name] for part in parts]).cpu() for name in parts[0][kind]}
        for kind in (0, 1)
    )
    is_kept = entries["is_kept"]
    return Detail(
        values={name: column.float().numpy() for name, column in values.items()},
        edges=np.cumsum([0, *is_kept.sum(-1).tolist()]),
        entries=entries["ids"][is_kept].numpy(),
        log_probs={
            view: entries[view][is_kept].float().numpy()
            for view in ("student", "teacher", "target")
        },
        terms=entries["terms"][is_kept].float().numpy(),
    )


def _detail_of_rows(
    student_logits: Tensor,
    teacher_logits: Tensor,
    tokens: Tensor,
    selected: Tensor,
    options: ObjectiveConfig,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values of some tokens with a known selection (n), and their entries, of which some are kept.

    The entries (n c) are the sampled token, then the others by falling probability.
    """
    values: dict[str, Tensor] = {}
    for is_selected in (False, True):
        places = (selected == is_selected).nonzero()[:, 0]
        if not len(places):
            continue

        # All rows selected, or none, so that the reference loss has the values of the step.
        share = 1.0 if is_selected else 0.0
        of_rows = replace(
            options,
            top_fraction=share,
            skip_tokens=0,
            reduction="token",
            position_weights="uniform",
        )
        student, sampled = student_logits[places].requires_grad_(), tokens[places]
        loss = loss_from_logits(student, teacher_logits[places], [len(places)], of_rows, sampled)
        loss.value.backward()
        assert student.grad is not None
        slope = student.grad.gather(-1, sampled[:, None])[:, 0] * len(places)
        for name, found in {"loss": loss.per_token, **loss.stats, "slope": slope}.items():
            column = values.setdefault(name, student_logits.new_zeros(len(tokens)))
            column[places] = found.detach().to(column)

    with torch.no_grad():
        log_q, log_p = (
            (x / options.loss_temperature).log_softmax(-1) for x in (student_logits, teacher_logits)
        )
        mixed = interpolate(log_p, log_q, options.interpolation_weight)
        target = torch.where(selected[:, None], mixed, log_p)
        terms = divergence_terms(target, log_q, find_divergence(options.divergence), tokens)

        k = min(LIKELIEST, target.shape[-1])
        likeliest = [view.topk(k).indices for view in (log_q, log_p, target)]
        ids = torch.cat([tokens[:, None], *likeliest], dim=-1)
        is_new = ~(ids[:, :, None] == ids[:, None, :]).tril(-1).any(-1)
        rank = target.gather(-1, ids).masked_fill(~is_new, -torch.inf)
        rank[:, 0] = torch.inf
        order = rank.argsort(descending=True, stable=True)
        ids, is_kept = ids.gather(-1, order), is_new.gather(-1, order)
        views = {"student": log_q, "teacher": log_p, "target": target, "terms": terms}
        entries = {name: view.gather(-1, ids) for name, view in views.items()}
    return values, {"ids": ids, "is_kept": is_kept, **entries}
