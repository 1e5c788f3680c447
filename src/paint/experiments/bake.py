"""A prompt baked into an adapter: what the prompt changes, the training, and what became of it.

The base model with the prompt is the teacher, the model without it the student. Answers of two
views of a model to questions that are not trained on are compared by

    follows  share of the answers that the grader accepts
    KL       KL of a view to its reference a token, on answers of the view, exact over the
             vocabulary, at temperature 1
    AUC      probability that log p_reference − log p_view is larger for an answer of the reference
             than for one of the view to the same question: 1/2 where they cannot be told apart. No
             other test of one answer is more powerful (Neyman & Pearson 1933)
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paint.config.recipe import require_paths
from paint.config.run_folder import latest_checkpoint, step_of
from paint.config.schema import Config, ConfigError, EvaluationConfig
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import Interrupted, wrap_errors
from paint.core.settings import require_count
from paint.core.storage import digest, write_atomic
from paint.core.workspace import Workspace
from paint.data.contexts import Contexts
from paint.data.problems import DataError, Problem, batch_indices, item_of, read_problems
from paint.evaluation.evaluate import evaluate
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Unit,
    measure,
    select,
    table_of,
    to_terminal,
    write_report,
)
from paint.evaluation.generate import deployment_prompts, load_eval_policy, with_date
from paint.evaluation.intervals import SHARE, bootstrap
from paint.evaluation.metrics import auc
from paint.evaluation.summary import SUMMARY
from paint.grading.registry import open_grader
from paint.inference.engine import Completion, Engine, derive_seed, sampling_from
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.machine import find_machine
from paint.models.policy import Policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, trained_in
from paint.training.callbacks import Callback
from paint.training.check import check_config, resolve_evaluation
from paint.training.trainer import train

PROMPTED, PLAIN, BAKED = "prompted base", "plain base", "baked"
"""The views of a model that are compared: the policies of the rows."""

HELD_OUT, UNRELATED = "held_out", "unrelated"
REFERENCES = {HELD_OUT: PROMPTED, UNRELATED: PLAIN}
"""The view that the others are compared with, by group of questions: the rows' benchmark."""

COLUMNS: dict[str, tuple[str, Unit]] = {
    "follows": ("follows", "%"),
    "kl": ("KL a token", ""),
    "auc": ("AUC", ""),
    "completion_tokens": ("tokens an answer", ""),
}
"""Head and unit of each metric."""

Answers = list[list[Completion]]  # the completions of each question
Groups = dict[str, list[Problem]]


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

    def measurements(
        self, group: str, problems: Sequence[Problem], view: str, own: Answers, others: Answers
    ) -> list[Measurement]:
        """The rows of a view's answers, compared with those of its group's reference."""
        reference, n = REFERENCES[group], len(problems)
        rows: list[Measurement] = []
        if group == HELD_OUT and not self.config.grading.is_off:
            follows = bootstrap([self._follow_rates(problems, own)], bounds=SHARE)
            rows += measure(view, group, "follows", follows, n)
        if view != reference:
            kls, areas = [], []
            for problem, mine, theirs in zip(problems, own, others, strict=True):
                scores = [self._score(view, reference, problem, c) for c in mine]
                kls.append(sum(kl for kl, _ in scores) / sum(len(c.ids) for c in mine))
                ratios = [self._score(view, reference, problem, c)[1] for c in theirs]
                areas.append(auc(np.array(ratios), np.array([ratio for _, ratio in scores])))
            kl = bootstrap([np.array(kls)], bounds=(0, math.inf))
            rows += measure(view, group, "kl", kl, n)
            rows += measure(view, group, "auc", bootstrap([np.array(areas)], bounds=SHARE), n)
        lengths = np.array([np.mean([len(c.ids) for c in row]) for row in own])
        tokens = bootstrap([lengths], bounds=(0, self.config.rollout.max_new_tokens))
        return rows + measure(view, group, "completion_tokens", tokens, n)

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
        items = [
            item_of(p, transcript(self._prompt(PLAIN, p), c.ids), truncated=c.truncated, tags=tags)
            for p, row in zip(problems, answers, strict=True)
            for c in row
        ]
        with open_grader(grading) as grader:
            correct = np.array([grade.correct for grade in grader.grade(items)])
        rates: Float[np.ndarray, " p"] = correct.reshape(len(problems), -1).mean(axis=1)
        return rates


@dataclass(frozen=True)
class StopAtCheckpoints(Callback):
    """Ends the training at each checkpoint, so that it can be measured; resuming continues."""

    every: int

    def on_step(self, step: int, *_: Any) -> bool:
        return step % self.every == 0


def bake(
    config: Config,
    folder: Path,
    *,
    held_out: int,
    samples: int,
    unrelated: str = "",
    benchmark: str = "",
    force: bool = False,
) -> Report:
    """Train until plain and prompted answers cannot be told apart; print and write the report.

    It trains ``train.checkpoint_every`` steps at a time, ``train.steps`` at most. The same call
    continues an interrupted one. The config has the rules as context.file; the other arguments are
    those of ``paint.bake``.
    """
    require_paths(config)
    require_count("held_out", held_out)
    require_count("samples", samples)
    require_one_process("paint bake")
    if config.model.train_mode != "lora" or config.context.source != ("file",):
        raise ConfigError('`paint bake` needs model.train_mode "lora" and context.source "file"')
    rules, display = config.context.file, Display()
    workspace = Workspace(folder, "measurements.jsonl", "a bake", ConfigError, "bake again")
    config, groups = _prepare(config, workspace, held_out)
    config = replace(config, model=with_date(config.model, folder))
    if unrelated:
        data = replace(config.data, path=unrelated, limit=held_out)
        groups[UNRELATED] = read_problems(data, needs={}).problems

    base: dict[tuple[str, str], Answers] = {}
    with _open_evaluator(config, folder, groups, display) as evaluator:
        for group, problems in groups.items():
            for view in (PROMPTED, PLAIN):
                base[group, view] = evaluator.answer(view, problems, samples)
        rows: list[Measurement] = []
        for (group, view), own in base.items():
            others = base[group, REFERENCES[group]]
            rows += evaluator.measurements(group, groups[group], view, own, others)
    found = f"{describe(rows, PROMPTED)}\n{describe(rows, PLAIN)}"
    display.note(found)
    if not (force or is_told_apart(rows, PLAIN) or _follows_differ(rows)):
        raise ConfigError(
            f"{rules} changes nothing that is measured: neither likelihood nor grader tells plain "
            f"from prompted answers ({found}); take another text, more questions (--held-out) or "
            f"samples, or train all the same with --force"
        )

    # Measurements of other answers are not comparable with those that follow.
    key = {"samples": samples, "held_out": held_out, "grader": list(config.grading.grader)}
    workspace.append({"step": 0, "key": key})
    run = folder / "run"
    while True:
        checkpoint = latest_checkpoint(run) if (run / "run.json").exists() else None
        if checkpoint:
            step, baked = step_of(checkpoint), []
            with _open_evaluator(config, folder, groups, display, checkpoint) as evaluator:
                for group, problems in groups.items():
                    own = evaluator.answer(BAKED, problems, samples)
                    others = base[group, REFERENCES[group]]
                    baked += evaluator.measurements(group, problems, BAKED, own, others)
            display.note(f"step {step}: {describe(baked, BAKED)}")
            workspace.append({"step": step, "key": key, "rows": [asdict(row) for row in baked]})
            if step >= config.train.steps or not is_told_apart(baked, BAKED):
                break
        _train_to_next_checkpoint(config, run, display)

    report = _report([*rows, *baked, *_earlier_rows(workspace, key, step)], list(groups))
    write_report(folder, SUMMARY, report, ConfigError)
    to_terminal(report.tables, display.console)
    display.note(
        f"written to {folder}: {SUMMARY}.json, {SUMMARY}.md; `paint export {run} FOLDER` "
        f"writes the adapter"
    )
    if benchmark:
        _evaluate_adapter(config, folder, checkpoint, benchmark, samples)
    return report


def _evaluate_adapter(
    config: Config, folder: Path, checkpoint: Path, benchmark: str, samples: int
) -> None:
    """Compare base and baked model on a benchmark, as `paint eval` does."""
    rollout = replace(EvaluationConfig().rollout, **asdict(sampling_from(config.rollout)))
    evaluation = EvaluationConfig(
        benchmarks=(benchmark,),
        samples=samples,
        thinking=config.model.student_thinking,
        output_dir=str(folder / "benchmark"),
        rollout=rollout,
    )
    evaluate(evaluation, [str(checkpoint)])


def _train_to_next_checkpoint(config: Config, run: Path, display: Display) -> None:
    stop = StopAtCheckpoints(config.train.checkpoint_every)
    is_begun = (run / "run.json").exists()
    try:
        train(config, run, resume=is_begun, display=display, callbacks=[stop])
    except Interrupted as stopped:
        message = f"stopped in {run}, and saved; the same command resumes"
        raise Interrupted(message, stopped.signal_number) from None


def is_told_apart(rows: Sequence[Measurement], view: str) -> bool:
    """Whether held-out answers of the view can be told from the reference's: AUC above 1/2."""
    found = select(rows, policy=view, benchmark=HELD_OUT, metric="auc")
    return any(row.low is not None and row.low > 0.5 for row in found)


def _follows_differ(rows: Sequence[Measurement]) -> bool:
    """Whether the intervals of *follows* of the two base views do not overlap."""
    found = select(rows, benchmark=HELD_OUT, metric="follows")
    if not found:
        return False
    lows = [row.low for row in found if row.low is not None]
    highs = [row.high for row in found if row.high is not None]
    return max(lows) > min(highs)


def describe(rows: Sequence[Measurement], view: str) -> str:
    """A view's metrics of held-out questions in one line."""
    parts = []
    for row in select(rows, policy=view, benchmark=HELD_OUT):
        head, unit = COLUMNS[row.metric]
        parts.append(f"{head}{' (%)' if unit == '%' else ''} {row.text(unit)}")
    return f"{view}: {', '.join(parts)}"


def _earlier_rows(workspace: Workspace, key: dict[str, Any], step: int) -> list[Measurement]:
    """What was measured of earlier checkpoints, and of the last one, with their steps."""
    by_step: dict[int, list[Measurement]] = {}
    for row in workspace.rows():
        if row["key"] == key and 0 < row["step"] <= step:
            found = [Measurement(**values) for values in row["rows"]]
            by_step[row["step"]] = [replace(one, step=row["step"]) for one in found]
    rows: list[Measurement] = []
    for number in sorted(by_step):
        rows += by_step[number]
    return rows


def _report(rows: list[Measurement], groups: Sequence[str]) -> Report:
    """The tables and charts of all views; of earlier checkpoints, the held-out questions."""
    tables = []
    for group in groups:
        columns = {**COLUMNS, "kl": (f"KL a token to the {REFERENCES[group]}", COLUMNS["kl"][1])}
        title = f"{group.replace('_', ' ')} questions, with 95 % intervals (follows in %)"
        tables.append(table_of(select(rows, benchmark=group, step=None), title, columns))
    charts = []
    for group in groups:
        name = group.replace("_", " ")
        charts.append(Chart(f"AUC, {name}", "auc", "", "1/2: cannot be told apart", group))
    charts.append(Chart("Follows", "follows", "%", "answers that the grader accepts", HELD_OUT))
    return Report(rows, tables, charts)


def _prepare(config: Config, workspace: Workspace, count: int) -> tuple[Config, Groups]:
    """Copy rules and training questions to the folder; the rest of the questions is held out."""
    questions = read_problems(config.data, needs=check_config(config).needed_fields).problems
    if len(questions) < 2:
        raise DataError(
            f"{config.data.path} has one question; add some, to train on and to hold out"
        )
    count = min(count, len(questions) // 2)
    chosen = set(batch_indices(len(questions), count, 0, config.train.seed))
    rows = [json.dumps(p.fields) for i, p in enumerate(questions) if i not in chosen]
    rules = Contexts(config.context, questions).shared
    text = "\n".join([*rows, ""])
    settings = {"rules": digest(rules), "questions": digest(text)}
    workspace.require_same(settings)
    workspace.begin(settings)
    paths = workspace.folder / "rules.md", workspace.folder / "questions.jsonl"
    with wrap_errors(workspace.folder, ConfigError, "choose another place (--output-dir)"):
        write_atomic(paths[0], rules)
        write_atomic(paths[1], text)
    config = config.changed("data", path=str(paths[1]), limit=None)
    config = config.changed("context", file=str(paths[0]))
    return config, {HELD_OUT: [p for i, p in enumerate(questions) if i in chosen]}


@contextmanager
def _open_evaluator(
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
    problems = [p for group in groups.values() for p in group]
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
