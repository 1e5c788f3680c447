"""A prompt baked into an adapter: trained as a run, measured before and after.

The base model with the prompt is the teacher, the model without it the student. Answers of two
views of a model to questions that are not trained on are compared by

    follows  share of the answers that the grader accepts
    KL       KL(view ‖ prompted base) a token, on answers of the view, exact over the vocabulary, at
             temperature 1
    AUC      P(r of a prompted answer > r of the view's, to the same question), r = log p_prompted −
             log p_view: 1/2 where they are indistinguishable. No other test of one answer is more
             powerful (Neyman & Pearson 1933)
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paint.config.run_folder import latest_checkpoint
from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import wrap_errors
from paint.core.settings import require_count
from paint.core.storage import write_atomic
from paint.data.contexts import Contexts
from paint.data.problems import Problem, batch_indices, item_of, read_problems
from paint.evaluation import frame
from paint.evaluation.frame import Chart, Measurement, Report, Unit
from paint.evaluation.generate import deployment_prompts, load_eval_policy, with_date
from paint.evaluation.intervals import SHARE, bootstrap
from paint.evaluation.metrics import auc
from paint.evaluation.summary import SUMMARY
from paint.experiments.runner import ExperimentRun, train_run
from paint.grading.graders import open_grader
from paint.inference.engine import Completion, Engine, derive_seed, sampling_from
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.machine import find_machine
from paint.models.policy import Policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, trained_in
from paint.training.check import check_config, require_paths, resolve_evaluation

PROMPTED, PLAIN, BAKED = "prompted base", "plain base", "baked"  # the views that are compared

COLUMNS: dict[str, tuple[str, Unit]] = {
    "follows": ("follows, %", "%"),
    "kl": ("KL a token to the prompted base", ""),
    "auc": ("AUC", ""),
    "completion_tokens": ("tokens an answer", ""),
}
CHARTS = [
    Chart("AUC", "auc", "", "1/2: cannot be distinguished"),
    Chart("Follows", "follows", "%", "answers that the grader accepts"),
]

Answers = list[list[Completion]]  # the completions of each question


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
        self, problems: Sequence[Problem], view: str, own: Answers, prompted: Answers
    ) -> list[Measurement]:
        """The rows of a view's answers, compared with those of the prompted base."""
        values = {}
        if not self.config.grading.is_off:
            values["follows"] = bootstrap([self._follow_rates(problems, own)], bounds=SHARE)
        if view != PROMPTED:
            kls, areas = [], []
            for problem, mine, theirs in zip(problems, own, prompted, strict=True):
                kl, ratios = self._scores(view, problem, mine)
                kls.append(kl)
                areas.append(auc(self._scores(view, problem, theirs)[1], ratios))
            values["kl"] = bootstrap([np.array(kls)], bounds=(0, math.inf))
            values["auc"] = bootstrap([np.array(areas)], bounds=SHARE)
        lengths = np.array([np.mean([len(c.ids) for c in row]) for row in own])
        longest = self.config.rollout.max_new_tokens
        values["completion_tokens"] = bootstrap([lengths], bounds=(0, longest))
        rows: list[Measurement] = []
        for metric, interval in values.items():
            rows += frame.to_measurement(view, "held_out", metric, interval, len(problems))
        return rows

    def _scores(
        self, view: str, problem: Problem, completions: Sequence[Completion]
    ) -> tuple[float, Float[np.ndarray, " k"]]:
        """KL(view ‖ prompted base) a token, and log p_prompted − log p_view of each completion."""
        kl, ratios = 0.0, []
        for completion in completions:
            own = self._log_probs(view, problem, completion)
            other = self._log_probs(PROMPTED, problem, completion)
            kl += float((own.exp() * (own - other)).sum())
            ids = torch.tensor(completion.ids, device=own.device)[:, None]
            ratios.append(float((other - own).gather(1, ids).sum()))
        return kl / sum(len(completion.ids) for completion in completions), np.array(ratios)

    @torch.no_grad()
    def _log_probs(
        self, view: str, problem: Problem, completion: Completion
    ) -> Float[Tensor, "n v"]:
        # The base views are the policy without its adapter.
        with nullcontext() if view == BAKED else self.teacher.view():
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
        items = []
        for problem, row in zip(problems, answers, strict=True):
            for c in row:
                text = self.policy.transcript(self._prompt(PLAIN, problem), c.ids)
                tags = self.policy.conventions.tags
                items.append(item_of(problem, text, truncated=c.truncated, tags=tags))
        with open_grader(self.config.grading) as grader:
            correct = np.array([grade.correct for grade in grader.grade(items)])
        rates: Float[np.ndarray, " p"] = correct.reshape(len(problems), -1).mean(axis=1)
        return rates


def bake(
    config: Config, folder: Path, *, held_out: int, samples: int, force: bool = False
) -> Report:
    """Train the plain model to answer as the prompted one; print and write the report.

    The config has the rules as context.file; the other arguments are those of ``paint.bake``.
    """
    require_paths(config)
    require_count("held_out", held_out)
    require_count("samples", samples)
    require_one_process("paint bake")
    if config.model.train_mode != "lora" or config.context.source != ("file",):
        raise ConfigError('`paint bake` needs model.train_mode "lora" and context.source "file"')
    rules, display = config.context.file, Display()
    config, problems = _prepare(config, folder, held_out)
    with _open_evaluator(config, folder, problems, display) as evaluator:
        prompted = evaluator.answer(PROMPTED, problems, samples)
        rows = evaluator.measurements(problems, PROMPTED, prompted, prompted)
        plain = evaluator.answer(PLAIN, problems, samples)
        rows += evaluator.measurements(problems, PLAIN, plain, prompted)
    [difference] = frame.select_rows(rows, policy=PLAIN, metric="auc")
    if not force and (difference.low is None or difference.low <= 0.5):
        raise ConfigError(
            f"{rules} changes nothing that is measured: the likelihood does not tell plain from "
            f"prompted answers, AUC {difference.text('')}; take another text, more questions "
            f"(--held-out) or samples, or train all the same with --force"
        )

    run = folder / "run"
    train_run(ExperimentRun("bake", config), run, display)
    with _open_evaluator(config, folder, problems, display, latest_checkpoint(run)) as evaluator:
        baked = evaluator.answer(BAKED, problems, samples)
        rows += evaluator.measurements(problems, BAKED, baked, prompted)
    table = frame.table_of(rows, "held-out questions, with 95 % intervals", COLUMNS)
    report = Report(rows, [table], CHARTS)
    frame.write_report(folder, SUMMARY, report, ConfigError)
    frame.to_terminal(report.tables, display.console)
    display.note(
        f"written to {folder}: {SUMMARY}.json, {SUMMARY}.md; `paint export {run} FOLDER` "
        f"writes the adapter"
    )
    return report


def _prepare(config: Config, folder: Path, count: int) -> tuple[Config, list[Problem]]:
    """Copy rules and training questions to the folder; the rest of the questions is held out."""
    questions = read_problems(config.data, needs=check_config(config).needed_fields).problems
    count = min(count, len(questions) // 2)
    if count == 0:
        raise ConfigError(f"{config.data.path} has one question; some are held out, so add some")
    chosen = set(batch_indices(len(questions), count, 0, config.train.seed))
    trained_on = [json.dumps(q.fields) for i, q in enumerate(questions) if i not in chosen]
    texts = {
        "rules.md": Contexts(config.context, questions).shared,
        "questions.jsonl": "\n".join([*trained_on, ""]),
    }
    with wrap_errors(folder, ConfigError, "choose another place (--output-dir)"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = folder / name
            # Answers and training of another bake are not comparable with this one's.
            if path.exists() and path.read_text("utf-8") != text:
                raise ValueError(f"{name} is that of a bake of another text or other questions")
            write_atomic(path, text)
    config = config.changed("data", path=str(folder / "questions.jsonl"), limit=None)
    config = config.changed("context", file=str(folder / "rules.md"))
    config = replace(config, model=with_date(config.model, folder))
    return config, [question for i, question in enumerate(questions) if i in chosen]


@contextmanager
def _open_evaluator(
    config: Config,
    folder: Path,
    problems: list[Problem],
    display: Display,
    checkpoint: Path | None = None,
) -> Iterator[PromptEvaluator]:
    """Load model and engine; both are freed before the training loads its own."""
    machine = find_machine()
    resolved = resolve_evaluation(config.rollout, machine, is_full=False)
    display.notes(resolved.notes)
    rollout, fallback = resolved.rollout, resolved.falls_back
    policy = load_eval_policy(config.model, rollout, prompts=config.prompts)
    deployment_prompts(policy, problems, thinking=policy.student_thinking)  # refuses control text
    context = Contexts(config.context, problems).shared
    longest = max(len(policy.teacher_prompt(p, context, complete=True)) for p in problems)
    tokens = longest + rollout.max_new_tokens
    setup = EngineSetup(
        policy, config.model, rollout, folder, display, tokens, problems, falls_back=fallback
    )
    with open_engine(setup) as engine:
        teacher = open_teacher(policy, config.teacher)
        if checkpoint:
            load_trained(policy, trained_in(checkpoint, policy.tuning))
        engine.sync_weights()
        yield PromptEvaluator(config, policy, teacher, engine, context)
