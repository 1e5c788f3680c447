"""The student's rollouts, cached and graded, and scored under several contexts of the teacher.

Completions are stored as they come, so an interrupted collection continues. ``rollouts.jsonl`` is a
file that the engine "stored" reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from paint.config.schema import Config, ConfigError, DataConfig
from paint.core.display import Counter, Display
from paint.core.settings import require_count
from paint.core.workspace import Workspace
from paint.data.contexts import Attempt, Contexts, GradedCompletion, attempts_of
from paint.data.problems import (
    Problem,
    batch_indices,
    problems_digest,
    read_problems,
)
from paint.evaluation.defaults import grader_needs_answer
from paint.evaluation.generate import checkpoint_digest, load_eval_policy
from paint.grading.contract import describe_failures, require_some_grade
from paint.grading.graders import grade_items, open_grader
from paint.inference.engine import Completion, Engine, derive_seed, sampling_from
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.machine import find_machine
from paint.models.policy import Policy
from paint.models.teacher import open_teacher
from paint.models.weights import load_trained, model_digests, trained_in
from paint.objective.anchors import contains
from paint.objective.detail import detail
from paint.objective.divergences import FORWARD_KL, Divergence
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import token_log_probs
from paint.objective.solution import anchors_of, written
from paint.resolve.check import Resolved, check_config, resolve_evaluation
from paint.resolve.engines import LOCAL
from paint.training.drift import KL
from paint.training.rollouts import Rollout, items_of
from paint.training.teacher_views import teacher_view
from paint.training.token_log import token_bytes
from strictgrade.text import normalize

ANEW = "move the folder away and advise again"
BOX = "\\boxed{"
ROWS_AT_ONCE = 8  # completions whose hidden states are computed together

# Rows by context, problem and sample.
StoredRows = dict[tuple[str, str, int], dict[str, Any]]
# By context, the values of every rollout of the cache.
CacheScores = Mapping[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class RolloutCache:
    """Graded rollouts of the student, k of each problem, one problem after the other."""

    rollouts: list[Rollout]
    samples: int

    @property
    def rewards(self) -> Float[np.ndarray, "p k"]:
        """The reward of each rollout; NaN without one, as where the grader failed."""
        rewards = [r.grade.reward if r.grade else None for r in self.rollouts]
        return np.array(rewards, dtype=float).reshape(-1, self.samples)

    @property
    def is_graded(self) -> bool:
        """Whether any rollout has a reward."""
        return any(r.grade and r.grade.reward is not None for r in self.rollouts)

    @property
    def verdicts(self) -> Float[np.ndarray, "p k"]:
        """1 for a right rollout and 0 for another one; NaN without a reward."""
        is_right = [float(r.is_correct) for r in self.rollouts]
        return np.where(
            np.isnan(self.rewards), np.nan, np.array(is_right).reshape(-1, self.samples)
        )

    @property
    def has_verdicts(self) -> bool:
        """Whether every reward is the verdict, 1 or 0, not another number of a judge."""
        return bool((np.isnan(self.rewards) | (self.rewards == self.verdicts)).all())

    def share(self, of: Callable[[Rollout], bool]) -> Float[np.ndarray, " p"]:
        """The share of each problem's rollouts of which something is so."""
        is_so = np.array([of(r) for r in self.rollouts]).reshape(-1, self.samples)
        shares: np.ndarray = is_so.mean(axis=1)
        return shares

    @cached_property
    def attempts(self) -> dict[int, Attempt]:
        """By row, what the teacher may read of the rollouts."""
        return attempts_of(
            [GradedCompletion(r.row, r.problem.id, r.text, r.grade) for r in self.rollouts]
        )


@dataclass(frozen=True)
class CompletionRequest:
    """A completion that is wanted, of the student or, with the name of a context, the teacher."""

    problem: Problem
    sample: int
    prompt: list[int]
    context: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies it among the stored ones."""
        return self.context, self.problem.id, self.sample


def first_problems(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """The first ``count`` problems in training order; all if there are fewer."""
    indices = batch_indices(len(problems), min(count, len(problems)), 0, seed)
    return [problems[i] for i in indices]


def collect(
    policy: Policy,
    config: Config,
    problems: Sequence[Problem],
    samples: int,
    folder: Path,
    display: Display,
    trained: str = "",
    *,
    rows: Sequence[Problem] = (),
    falls_back: bool = False,
) -> RolloutCache:
    """Sample the student's missing rollouts, store each as it comes, and grade all.

    Args:
        trained: the digest of the student's trained weights; "" for the base model.
        rows: all rows that the problems are chosen from; the folder belongs to them.
        falls_back: generate here if servers do not start, and have stored no rollout before. The
            settings of the cache then have the engine that generated.
    """
    wanted: list[CompletionRequest] = []
    for problem in problems:
        prompt = policy.student_prompt(problem)
        wanted.extend(CompletionRequest(problem, sample, prompt) for sample in range(samples))
    rollouts = _sample(
        policy, config, wanted, folder, display, trained, rows=rows, falls_back=falls_back
    )
    return RolloutCache(rollouts, samples)


def teacher_answers(
    policy: Policy,
    config: Config,
    cache: RolloutCache,
    contexts: Mapping[str, Contexts],
    folder: Path,
    display: Display,
) -> dict[str, RolloutCache]:
    """Let the teacher answer under each context: once for each rollout, by its prompt and seed."""
    run, rollouts = check_config(config), cache.rollouts
    wanted = []
    for name in display.track("contexts with teacher prompts", list(contexts)):
        prompts, _ = _prompts(policy, run, contexts[name], cache, rollouts)
        for row, prompt in zip(rollouts, prompts, strict=True):
            wanted.append(CompletionRequest(row.problem, row.row % cache.samples, prompt, name))
    answers = _sample(policy, config, wanted, folder, display)
    found = {}
    for i, name in enumerate(contexts):
        of_context = answers[i * len(rollouts) : (i + 1) * len(rollouts)]
        found[name] = RolloutCache(of_context, cache.samples)
    return found


def _sample(
    policy: Policy,
    config: Config,
    wanted: Sequence[CompletionRequest],
    folder: Path,
    display: Display,
    trained: str = "",
    *,
    rows: Sequence[Problem] = (),
    falls_back: bool = False,
) -> list[Rollout]:
    """The completions that are wanted, graded; those that are not stored are sampled."""
    settings = {
        "model": model_digests(policy),
        "trained": trained,
        "student_thinking": policy.student_thinking,
        "date": policy.conventions.date,
        "seed": config.train.seed,
        "engine": config.rollout.engine,
        "stored": config.rollout.stored,
        **asdict(sampling_from(config.rollout)),
    }
    if rows:
        settings["problems_digest"] = problems_digest(rows)
    workspace = cache_workspace(folder)
    workspace.require_same(settings)
    workspace.begin(settings)
    prompts = {request.key: request.prompt for request in wanted}
    stored: StoredRows = {}
    for row in workspace.rows():
        key = row.get("context", ""), row["problem_id"], row["sample"]
        if prompts.get(key) == row["prompt_ids"]:  # a context may have changed since
            stored[key] = row
    missing = [request for request in wanted if request.key not in stored]
    if missing:
        longest = max(map(len, prompts.values())) + config.rollout.max_new_tokens
        setup = EngineSetup(
            policy,
            config.model,
            config.rollout,
            folder,
            display,
            longest,
            list({request.problem.id: request.problem for request in wanted}.values()),
            # Completions of two engines for one seed may differ, and are not mixed.
            falls_back=falls_back and not workspace.has_rows,
        )
        with (
            open_engine(setup) as engine,
            display.counting("rollouts", len(wanted), len(stored)) as counter,
        ):
            if setup.has_fallen_back(engine):
                workspace.begin(settings | {"engine": LOCAL})
            for row in _generate(engine, config, missing, workspace, counter):
                stored[row.get("context", ""), row["problem_id"], row["sample"]] = row
    workspace.finish()
    rollouts, asked = _graded_rollouts(policy, config, wanted, stored, folder)
    grades = [r.grade for r in rollouts if r.row in asked and r.grade]
    ids = [r.problem.id for r in rollouts if r.row in asked]
    if config.grading.stop_on_failure and not config.grading.is_off:
        require_some_grade(grades, ids, config.grading.grader, str(folder))
    failures = describe_failures(grades, ids)
    if failures:
        display.note(f"{folder.name}: {failures}")
    return rollouts


def _generate(
    engine: Engine,
    config: Config,
    missing: Sequence[CompletionRequest],
    workspace: Workspace,
    counter: Counter,
) -> list[dict[str, Any]]:
    """Generate completions, store each as it comes, and return their rows."""
    rows = []

    def add(index: int, completion: Completion) -> None:
        request = missing[index]
        row = {
            "problem_id": request.problem.id,
            "sample": request.sample,
            "prompt_ids": request.prompt,
            "completion_ids": list(completion.ids),
            "engine_log_probs": list(completion.log_probs),
            "truncated": completion.truncated,
            "source": completion.source,
        }
        if request.context:
            row["context"] = request.context
        workspace.append(row)
        rows.append(row)
        counter.add(len(completion.ids))

    engine.sync_weights()
    engine.stream(
        [request.prompt for request in missing],
        sampling_from(config.rollout),
        # Without the context: the teacher's answers have the random numbers of the student's.
        [derive_seed(config.train.seed, r.sample, r.problem.id) for r in missing],
        add,
    )
    return rows


def _graded_rollouts(
    policy: Policy,
    config: Config,
    wanted: Sequence[CompletionRequest],
    stored: StoredRows,
    folder: Path,
) -> tuple[list[Rollout], set[int]]:
    """The stored completions as rollouts, and which are graded: not those that lack an answer.

    Answers of a judge are kept in the folder.
    """
    rollouts: list[Rollout] = []
    for request in wanted:
        row = stored[request.key]
        completion = Completion(
            tuple(row["completion_ids"]),
            tuple(row["engine_log_probs"]),
            row["truncated"],
            row["source"],
        )
        text = policy.decode(completion.ids)
        rollouts.append(Rollout(len(rollouts), request.problem, request.prompt, completion, text))
    needs_answer = grader_needs_answer(config.grading)
    items = items_of(policy, rollouts)
    with open_grader(config.grading, folder) as grader:
        grades = grade_items(grader, items, needs_answer=needs_answer)
    asked = {
        r.row for r, item in zip(rollouts, items, strict=True) if item.gold or not needs_answer
    }
    return [replace(r, grade=grade) for r, grade in zip(rollouts, grades, strict=True)], asked


def recorded_engine(folder: Path) -> list[str]:
    """The engine that samples the rollouts of a folder; none where none were sampled."""
    engine = cache_workspace(folder).recorded_engine()
    return [engine] if engine else []


def cache_workspace(folder: Path) -> Workspace:
    """The settings and rollouts of a folder."""
    return Workspace(folder, "rollouts.jsonl", "rollouts", ConfigError, ANEW)


@dataclass(frozen=True)
class TokenAnnotations:
    """Places in a rollout of n tokens."""

    divergence_point: int  # first token after a formula or number that the solution lacks, or n
    forced: tuple[int, ...] = ()  # a wrong rollout up to its box's content, then the right answer
    answer_tokens: int = 0  # number of tokens of the right answer in ``forced``


def annotate(policy: Policy, rollout: Rollout) -> TokenAnnotations:
    """Find the divergence from the solution, and the answer's place."""
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
    if rollout.is_correct or not problem.answer or not has_box:
        return annotations
    # A token may hold the brace and the first digit: what it has before the content is kept.
    first = owners[content]
    lead = text[owners.index(first) : content]
    answer = policy.tokenizer.encode(f"{lead}{problem.answer}}}", add_special_tokens=False)
    return replace(annotations, forced=(*ids[:first], *answer), answer_tokens=len(answer))


def score(
    policy: Policy,
    config: Config,
    cache: RolloutCache,
    contexts: Mapping[str, Contexts],
    display: Display,
) -> CacheScores:
    """Score the rollouts with a teacher that reads each of the contexts, as training would."""
    run = check_config(config)
    options = run.objective
    heads = policy.lm_head, policy.lm_head
    scores: CacheScores = {name: [] for name in contexts}
    total = len(cache.rollouts) * len(contexts)
    with display.counting("rollouts scored under contexts", total) as counter:
        for start in range(0, len(cache.rollouts), ROWS_AT_ONCE):
            rows = cache.rollouts[start : start + ROWS_AT_ONCE]
            annotations = [annotate(policy, row) for row in rows]
            # Once for all contexts. The adapter is untrained: both views have the base's weights.
            student = _states(policy, [row.prompt for row in rows], rows)
            for name, of_problem in contexts.items():
                prompts, measured = _prompts(policy, run, of_problem, cache, rows)
                teacher = _states(policy, prompts, rows)
                leakage = _answer_leakage(policy, prompts, annotations)
                for i, row in enumerate(rows):
                    tokens = torch.tensor(row.completion.ids, device=policy.device)
                    terms = detail(student[i], teacher[i], heads, tokens, options).values
                    values = {**measured[i], **rollout_metrics(terms, annotations[i])}
                    scores[name].append({**values, "answer_leakage": leakage[i]})
                    counter.add(len(row.completion.ids))
    return scores


@torch.no_grad()
def divergence_sums(
    policy: Policy,
    config: Config,
    cache: RolloutCache,
    divergence: Divergence,
    display: Display | None = None,
) -> tuple[Float[np.ndarray, "p k"], Int[np.ndarray, "p k"]]:
    """The divergence of each cached rollout in nats, at temperature 1 without clip, and its tokens.

    The teacher reads ``config.context`` of each rollout's problem, masked as in training.
    """
    run, teacher = check_config(config), open_teacher(policy, config.teacher)
    problems = {row.problem.id: row.problem for row in cache.rollouts}  # each one once
    contexts = Contexts(config.context, list(problems.values()))
    options = replace(KL, divergence=divergence)
    sums: list[float] = []
    tokens: list[int] = []
    display = display or Display(enabled=False)
    starts = range(0, len(cache.rollouts), ROWS_AT_ONCE)
    for start in display.track("batches of rollouts scored", starts):
        rows = cache.rollouts[start : start + ROWS_AT_ONCE]
        prompts, _ = _prompts(policy, run, contexts, cache, rows)
        own, ids = [row.prompt for row in rows], [row.completion.ids for row in rows]
        student = policy.hidden_states(own, ids)
        hidden = teacher.hidden_states(prompts, ids)
        lengths = [len(row) for row in ids]
        loss = fused_paint_loss(
            student, hidden, policy.lm_head, lengths, options, teacher_lm_head=teacher.lm_head
        )
        sums.extend(float(part.sum()) for part in loss.per_token.split(lengths))
        tokens += lengths
    return np.array(sums).reshape(-1, cache.samples), np.array(tokens).reshape(-1, cache.samples)


def sample(
    config: Config,
    problems: Sequence[Problem],
    samples: int,
    folder: Path,
    display: Display,
    checkpoint: Path | None = None,
) -> tuple[Policy, Config, RolloutCache]:
    """Load the policy, of a checkpoint or the base, and collect its rollouts of these problems."""
    machine, earlier = find_machine(), recorded_engine(folder)
    is_full = config.model.train_mode == "full"
    resolved = resolve_evaluation(config.rollout, machine, is_full=is_full, earlier=earlier)
    display.notes(resolved.notes)
    config = replace(config, rollout=resolved.rollout)
    with display.working("loading the model"):
        policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    trained = ""
    if checkpoint:
        weights = trained_in(checkpoint, config.model.train_mode)
        trained = checkpoint_digest(weights)
        load_trained(policy, weights)
    falls_back = resolved.falls_back
    cache = collect(
        policy, config, problems, samples, folder, display, trained, falls_back=falls_back
    )
    return policy, config, cache


def kl_of_checkpoint(
    checkpoint: Path, config: Config, data: DataConfig, samples: int, folder: Path, display: Display
) -> float:
    """KL(teacher ‖ student) in nats a token, on rollouts that a checkpoint samples of the problems.

    Raises:
        ConfigError: the method has no teacher, or learned from stored completions.
    """
    require_count("samples", samples)
    run = check_config(config)
    if not run.algorithm.needs_context:
        raise ConfigError(f"train.method {config.train.method} has no teacher to compare with")
    problems = read_problems(data, needs=run.needed_fields).problems
    policy, config, cache = sample(config, problems, samples, folder, display, checkpoint)
    kl, tokens = divergence_sums(policy, config, cache, FORWARD_KL, display)
    # Over all tokens: a mean over rollouts would count those of short ones more.
    return float(kl.sum() / tokens.sum())


@torch.no_grad()
def _states(
    policy: Policy, prompts: Sequence[Sequence[int]], rows: Sequence[Rollout]
) -> Sequence[Tensor]:
    """Hidden states of the completions, after these prompts."""
    completions = [row.completion.ids for row in rows]
    states = policy.hidden_states(prompts, completions)
    return torch.split(states, [len(ids) for ids in completions])


def _prompts(
    policy: Policy, run: Resolved, contexts: Contexts, cache: RolloutCache, rows: Sequence[Rollout]
) -> tuple[list[list[int]], list[dict[str, float]]]:
    """The teacher's prompts of some rollouts, and their overlaps."""
    prompts, measured = [], []
    for row in rows:
        seed = derive_seed(run.config.train.seed, 0, row.row)  # as in the first step
        attempt = cache.attempts[row.row]
        view, metrics = teacher_view(policy, run, contexts, row.problem, seed, attempt)
        prompts.append(view.prompt)
        measured.append(metrics)
    return prompts, measured


@torch.no_grad()
def _answer_leakage(
    policy: Policy, prompts: Sequence[Sequence[int]], annotations: Sequence[TokenAnnotations]
) -> list[float | None]:
    """The probability of the right answer in the box of each wrong rollout; None for others."""
    chosen = [i for i, found in enumerate(annotations) if found.forced]
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
    """Values of a rollout from those of its tokens."""
    gap = terms["teacher_entropy"] - terms["student_entropy"]
    after = gap[annotations.divergence_point :]
    return {
        "tokens": len(gap),
        "kl": float(terms["kl"].sum()),
        "directional_derivative": float(terms["pull"].sum()),
        "unclipped_mass": float(terms["unclipped_mass"].sum()),
        "entropy_gap_after_divergence": float(after.mean()) if len(after) else None,
    }
