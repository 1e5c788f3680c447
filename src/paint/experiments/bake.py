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
from paint.core.storage import read_json, write_atomic
from paint.data.contexts import Contexts
from paint.data.problems import DataError, Problem, batch_indices, item_of, read_problems
from paint.evaluation.generate import deployment_prompts, load_eval_policy, with_date
from paint.evaluation.intervals import SHARE, Interval, bootstrap
from paint.evaluation.metrics import auc
from paint.evaluation.run import evaluate
from paint.evaluation.store import write_summary
from paint.evaluation.tables import Chart, Sheet, markdown, print_sheets, write_tables
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
"""The views of a model that are compared."""

REFERENCES = {"held_out": PROMPTED, "unrelated": PLAIN}
"""The view that the others are compared with, by group of questions."""

Answers = list[list[Completion]]  # the completions of each question


@dataclass(frozen=True)
class Figures:
    """Figures of a view, with 95 % intervals over questions; None where they are not defined."""

    follows: Interval | None
    kl: Interval | None
    auc: Interval | None
    tokens: Interval

    @property
    def is_told_apart(self) -> bool:
        """Whether answers of the view can be told from the reference's: the AUC is above 1/2."""
        return self.auc is not None and self.auc.low > 0.5

    @property
    def cells(self) -> list[str]:
        """The figures as text."""
        others = [x.text(".3g") if x else "" for x in (self.kl, self.auc, self.tokens)]
        return [self.follows.points() if self.follows else "", *others]

    @property
    def table(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {name: x.table() if x else None for name, x in vars(self).items()}

    def __str__(self) -> str:
        names = ("follows (%)", "KL a token", "AUC", "tokens an answer")
        return ", ".join(f"{n} {x}" for n, x in zip(names, self.cells, strict=True) if x)


@dataclass(frozen=True)
class Meter:
    """Samples and scores the views of one model. Base views are sampled with a new adapter."""

    config: Config
    policy: Policy
    teacher: Teacher
    engine: Engine
    context: str

    def answer(self, view: str, problems: Sequence[Problem], samples: int) -> Answers:
        """Sample ``samples`` answers to each question."""
        prompts = [self._prompt(view, p) for p in problems for _ in range(samples)]
        keys = [(view, i, p.id) for p in problems for i in range(samples)]
        seeds = [derive_seed(self.config.train.seed, *key) for key in keys]
        flat = self.engine.generate(prompts, sampling_from(self.config.rollout), seeds)
        return [flat[i : i + samples] for i in range(0, len(flat), samples)]

    def measure(
        self, group: str, problems: Sequence[Problem], view: str, own: Answers, others: Answers
    ) -> Figures:
        """Figures of the answers of a view, beside those of its group's reference."""
        reference, kls, areas = REFERENCES[group], [], []
        for problem, mine, theirs in zip(problems, own, others, strict=True):
            if view == reference:
                continue
            scores = [self._score(view, reference, problem, c) for c in mine]
            kls.append(sum(kl for kl, _ in scores) / sum(len(c.ids) for c in mine))
            ratios = [self._score(view, reference, problem, c)[1] for c in theirs]
            areas.append(auc(np.array(ratios), np.array([ratio for _, ratio in scores])))
        is_graded = group == "held_out" and not self.config.grading.is_off
        lengths = np.array([np.mean([len(c.ids) for c in row]) for row in own])
        return Figures(
            bootstrap([self._follow_rates(problems, own)], bounds=SHARE) if is_graded else None,
            bootstrap([np.array(kls)], bounds=(0, math.inf)) if kls else None,
            bootstrap([np.array(areas)], bounds=SHARE) if areas else None,
            bootstrap([lengths], bounds=(0, self.config.rollout.max_new_tokens)),
        )

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
    """Ends the training at each checkpoint, so that it can be measured; resuming goes on."""

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
) -> dict[str, dict[str, Figures]]:
    """Train until plain and prompted answers cannot be told apart; print, write, return figures.

    It trains ``train.checkpoint_every`` steps at a time, ``train.steps`` at most. The same call
    continues an interrupted one. The config has the rules as context.file; the other arguments are
    those of ``paint.bake``. Returns figures by group of questions (held_out, unrelated) and view.
    """
    require_paths(config)
    require_count("held_out", held_out)
    require_count("samples", samples)
    require_one_process("paint bake")
    if config.model.train_mode != "lora" or config.context.source != ("file",):
        raise ConfigError('`paint bake` needs model.train_mode "lora" and context.source "file"')
    rules, run, display = config.context.file, folder / "run", Display()
    config, groups = _prepare(config, folder, held_out)
    config = replace(config, model=with_date(config.model, folder))
    if unrelated:
        data = replace(config.data, path=unrelated, limit=held_out)
        groups["unrelated"] = read_problems(data, needs={}).problems

    with _open_meter(config, folder, groups, display) as meter:
        base = {
            (group, view): meter.answer(view, problems, samples)
            for group, problems in groups.items()
            for view in (PROMPTED, PLAIN)
        }
        figures: dict[str, dict[str, Figures]] = {group: {} for group in groups}
        for (group, view), own in base.items():
            others = base[group, REFERENCES[group]]
            figures[group][view] = meter.measure(group, groups[group], view, own, others)
    prompted, plain = (figures["held_out"][view] for view in (PROMPTED, PLAIN))
    display.note(f"prompted base: {prompted}\nplain base: {plain}")
    if not (force or plain.is_told_apart or _differ(prompted.follows, plain.follows)):
        raise ConfigError(
            f"{rules} changes nothing that is measured: neither likelihood nor grader tells plain "
            f"from prompted answers (plain: {plain}; prompted: {prompted}); take another text, "
            f"more questions (--held-out) or samples, or train all the same with --force"
        )

    summary = folder / "summary.json"
    steps = read_json(summary, "bake again")["steps"] if summary.exists() else []
    # Figures of other measurements are not comparable with those that follow.
    measured = {"samples": samples, "held_out": held_out, "grader": config.grading.grader}
    steps = [row for row in steps if row.get("measured") == measured]
    while True:
        is_begun = (run / "run.json").exists()
        checkpoint = latest_checkpoint(run) if is_begun else None
        done = step_of(checkpoint) if checkpoint else 0
        if checkpoint:
            with _open_meter(config, folder, groups, display, checkpoint) as meter:
                for group, problems in groups.items():
                    own = meter.answer(BAKED, problems, samples)
                    others = base[group, REFERENCES[group]]
                    figures[group][BAKED] = meter.measure(group, problems, BAKED, own, others)
            baked = figures["held_out"][BAKED]
            display.note(f"baked, step {done}: {baked}")
            steps = [row for row in steps if row["step"] < done]
            steps.append({"step": done, "measured": measured} | baked.table)
            sheets = _write(folder, figures, steps)
            if done >= config.train.steps or not baked.is_told_apart:
                break
        stop = StopAtCheckpoints(config.train.checkpoint_every)
        try:
            train(config, run, resume=is_begun, display=display, callbacks=[stop])
        except Interrupted as stopped:
            message = f"stopped in {run}, and saved; the same command resumes"
            raise Interrupted(message, stopped.signal_number) from None

    print_sheets(display.console, sheets)
    display.note(
        f"written to {folder}: summary.json, summary.md; `paint export {run} FOLDER` writes "
        f"the adapter"
    )
    if benchmark:
        rollout = replace(EvaluationConfig().rollout, **asdict(sampling_from(config.rollout)))
        evaluation = EvaluationConfig(
            benchmarks=(benchmark,),
            samples=samples,
            thinking=config.model.student_thinking,
            output_dir=str(folder / "benchmark"),
            rollout=rollout,
        )
        evaluate(evaluation, [str(checkpoint)])
    return figures


def _prepare(config: Config, folder: Path, count: int) -> tuple[Config, dict[str, list[Problem]]]:
    """Copy rules and training questions to the folder; the rest of the questions is held out."""
    questions = read_problems(config.data, needs=check_config(config).needed_fields).problems
    if len(questions) < 2:
        raise DataError(
            f"{config.data.path} has one question; add some, to train on and to hold out"
        )
    count = min(count, len(questions) // 2)
    chosen = set(batch_indices(len(questions), count, 0, config.train.seed))
    rows = [json.dumps(p.fields) for i, p in enumerate(questions) if i not in chosen]
    texts = {
        folder / "rules.md": Contexts(config.context, questions).shared,
        folder / "questions.jsonl": "\n".join([*rows, ""]),
    }
    with wrap_errors(folder, ConfigError, "choose another place (--output-dir)"):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            if path.exists() and path.read_text("utf-8") != text:
                raise ConfigError(
                    f"{path} is that of other rules or questions; choose another place "
                    f"(--output-dir)"
                )
            write_atomic(path, text)
    config = config.changed("data", path=str(folder / "questions.jsonl"), limit=None)
    config = config.changed("context", file=str(folder / "rules.md"))
    return config, {"held_out": [p for i, p in enumerate(questions) if i in chosen]}


@contextmanager
def _open_meter(
    config: Config,
    folder: Path,
    groups: dict[str, list[Problem]],
    display: Display,
    checkpoint: Path | None = None,
) -> Iterator[Meter]:
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
        yield Meter(config, policy, teacher, engine, context)


def _differ(a: Interval | None, b: Interval | None) -> bool:
    return a is not None and b is not None and (a.low > b.high or a.high < b.low)


def _write(
    folder: Path, figures: dict[str, dict[str, Figures]], steps: Sequence[dict[str, Any]]
) -> list[Sheet]:
    """Write summary.json, summary.md and what the page shows; return the tables."""
    sheets = [
        Sheet(
            f"{group.replace('_', ' ')} questions, with 95 % intervals",
            ["", "follows", f"KL a token to the {REFERENCES[group]}", "AUC", "tokens an answer"],
            [[view, *found.cells] for view, found in views.items()],
        )
        for group, views in figures.items()
    ]
    tables = {
        group: {view: found.table for view, found in views.items()}
        for group, views in figures.items()
    }
    charts = [
        Chart(f"AUC, {group.replace('_', ' ')}", found, note="1/2: cannot be told apart")
        for group, views in figures.items()
        if (found := {view: f.auc for view, f in views.items() if f.auc})
    ]
    follows = {view: f.follows for view, f in figures["held_out"].items() if f.follows}
    charts += [Chart("Follows", follows, "%", "answers that the grader accepts")] * bool(follows)
    write_summary(folder, {"steps": list(steps), **tables}, markdown(sheets))
    write_tables(folder, "bake", sheets, charts)
    return sheets
