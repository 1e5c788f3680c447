"""The page of a run: its metrics, and its rollouts token by token.

Values logged during training are those of the step itself (paint.training.token_log). The most
likely tokens, other contexts and rows without logged values come from rescoring the stored rollouts
(paint.lab.viewer.score). Every row has its origin.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paint.config.collapse import warning_history
from paint.config.metric_records import CHARTS, metrics_of_chart
from paint.config.recipe import executables_of, to_table
from paint.config.run_folder import (
    START_ANEW,
    RunError,
    latest_checkpoint,
    read_history,
    read_metrics,
    read_run,
    read_run_json,
    step_folder,
    step_of,
    step_paths,
)
from paint.config.schema import Config
from paint.core.display import Counter, Display
from paint.core.storage import read_jsonl
from paint.core.trust import require_trusted
from paint.data.problems import Problem
from paint.evaluation.change import describe_change, graded_validation
from paint.evaluation.grade import is_repetitive
from paint.evaluation.metrics import GradedSamples, compute_metrics
from paint.grading.graders import needs_answer
from paint.inference.rollouts import Rollout, read_rollout
from paint.lab.viewer.page import PAGE, packed, places_of, text_of, turns_of
from paint.lab.viewer.run_evaluations import evaluations_of
from paint.lab.viewer.score import Scorer
from paint.models.policy import load_tokenizer
from paint.objective.solution import anchors_of, hidden_part, written
from paint.resolve.check import read_resolved
from paint.training.token_log import ABOUT, read_tokens, token_bytes, tokens_path
from strictgrade.equality import boxed

MOST_TOKENS = 32 * 1024
"""Maximum tokens of a page without --steps: a file of some megabytes."""

FEW_ROWS = 4
"""Rows per step without logged values, on a page without --steps."""

ROLLOUT = (
    *("row", "problem_id", "problem", "answer", "correct", "truncated", "source", "rationale"),
    *("context", "overlap", "mask_ratio", "reward", "reason", "feedback", "advantage", "loss"),
)
"""Values of a complete rollout."""

CONTEXT_VALUES = ("loss", "kl", "teacher_log_prob", "teacher_entropy")
"""Values of a token that change with the teacher's context."""


@dataclass(frozen=True)
class PageSpec:
    steps: Sequence[int] = ()  # empty for all that fit
    row: int | None = None  # of each step; None for all
    contexts: Sequence[str] = ()  # of the teacher, scored in addition to the run's
    again: bool = True  # whether rollouts are rescored


EVERYTHING = PageSpec()


@dataclass(frozen=True)
class RenderContext:
    """State shared by the rows of a page."""

    config: Config
    contexts: Sequence[str]  # as of PageSpec
    scorer: Scorer | None  # None without rescoring
    tokenizer: Any
    problems: Mapping[str, Problem]  # training problems by id; empty without rescoring
    vocabulary: dict[int, int]  # index of each distinct token so far; every row adds its own


def run_data(
    run: Path, spec: PageSpec, display: Display, page: Path | None = None
) -> dict[str, Any]:
    """Return the data of the page, a file from which evaluations are linked.

    Raises RunError for a run, step or row that does not exist.
    """
    config, run_info = read_run(run), read_run_json(run)
    metrics = _metrics(run, display)
    chosen = choose(run, config, spec)
    scorer = None
    if spec.again and chosen:
        scorer = _open_scorer(run, config, run_info, display)
    problems: dict[str, Problem] = {}
    if scorer is None:
        tokenizer = load_tokenizer(config.model.path)
    else:
        tokenizer = scorer.policy.tokenizer
        problems = {problem.id: problem for problem in scorer.problems}
    shared = RenderContext(config, spec.contexts, scorer, tokenizer, problems, {})
    steps = []
    with display.counting("rollouts", sum(map(len, chosen.values()))) as count:
        for step, rollouts in chosen.items():
            steps.append(_step_data(run, shared, step, rollouts, count))

    course = course_of(run, metrics, page or run / PAGE, display)
    vocabulary = list(shared.vocabulary)
    return {
        "name": run.resolve().name,
        "method": config.train.method,
        **course,
        "run_info": {
            "model": config.model.path,
            "data": config.data.place,
            "steps": config.train.steps,
            "git": run_info.get("git"),
            **run_info["versions"],
        },
        "settings": settings_of(config),
        "objective": {
            "clip": config.objective.clip,
            "clip_mode": config.objective.clip_mode,
            "skip_tokens": config.objective.skip_tokens,
            "temperature": config.loss_temperature,
        },
        "charts": charts_of(course["metrics"]),
        "warnings": warning_history(metrics),
        "stored_steps": _stored_steps(run),
        "steps": steps,
        "vocabulary": list(map(text_of, token_bytes(tokenizer, vocabulary))),
        "special": [i in tokenizer.all_special_ids for i in vocabulary],
    }


def course_of(
    run: Path,
    metrics: Sequence[Mapping[str, float]],
    page: Path,
    display: Display,
    further: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return what the pages of one run and of several show of a run as a whole."""
    validation, evaluations = graded_validation(run, display), evaluations_of(run, page, further)
    return {
        "change": describe_change(validation, metrics, is_evaluated=bool(evaluations)),
        "evaluations": evaluations,
        "metrics": columns_of(metrics),
        "validation": [validation_data(*place, graded) for place, graded in validation.items()],
    }


def _open_scorer(
    run: Path, config: Config, run_info: Mapping[str, Any], display: Display
) -> Scorer | None:
    """Return what scores rollouts again; None for SFT and GRPO, which have no teacher.

    Raises UntrustedError for a divergence of others.
    """
    objective = {"objective": to_table(config)["objective"]}
    require_trusted(executables_of(objective), "leave the values out with --no-rescore")
    resolved = read_resolved(config, run_info.get("needs", {}))
    return Scorer(run, resolved, display) if resolved.algorithm.needs_context else None


def _metrics(run: Path, display: Display) -> list[dict[str, float]]:
    """Return the metrics of all steps; warn of steps whose rollouts are missing.

    Raises RunError, as `paint resume` does, for a run without those of its checkpoints' steps.
    """
    last = latest_checkpoint(run)
    if last is not None:
        read_history(run, step_of(last))
    metrics = read_metrics(run)
    lost = sorted({int(row["step"]) for row in metrics} - set(_stored_steps(run)))
    if lost:
        path = step_folder(run / "rollouts", lost[0]).with_suffix(".jsonl")
        display.warn(
            f"{path} is missing; of {len(metrics)} steps, {len(lost)} have no rollouts to show"
        )
    return metrics


def _stored_steps(run: Path) -> list[int]:
    return list(map(step_of, step_paths(run / "rollouts", ".jsonl")))


def _step_data(
    run: Path,
    shared: RenderContext,
    step: int,
    rollouts: Sequence[Mapping[str, Any]],
    count: Counter,
) -> dict[str, Any]:
    path = tokens_path(run, step)
    logged = read_tokens(path) if path.exists() else {}
    student = shared.scorer.become_student(step) if shared.scorer else None
    rows = []
    for rollout in rollouts:
        rows.append(row_data(shared, step, rollout, logged.get(rollout["row"])))
        count.add(len(rollout["completion_ids"]))
    return {"step": step, "student": student, "is_exact": student == step - 1, "rows": rows}


def choose(run: Path, config: Config, spec: PageSpec) -> dict[int, list[dict[str, Any]]]:
    """Return the rollouts of the page by step, each with its number as ``row``.

    Raises RunError for a step or a row that does not exist.
    """
    paths = {step_of(path): path for path in step_paths(run / "rollouts", ".jsonl")}
    for step in spec.steps:
        if step not in paths:
            there = "there are none"
            if paths:
                there = f"there are steps {min(paths)} to {max(paths)}"
            raise RunError(f"{run} holds no rollouts of step {step}; {there}")

    # Rows with logged values; without any, the first few. Of steps or a row that are named, all.
    logged = config.log.token_rows
    most: int | None = None
    if not spec.steps and spec.row is None and logged != "all":
        most = logged or FEW_ROWS
    kept: dict[int, list[dict[str, Any]]] = {}
    for step in sorted(set(spec.steps)) or paths:
        rows = enumerate(islice(read_jsonl(paths[step], START_ANEW), most))
        kept[step] = [{"row": n, **row} for n, row in rows if spec.row in (None, n)]
    if spec.row is not None and not all(kept.values()):
        raise RunError(f"a step of {run} has no row {spec.row}; rows count from 0")
    if spec.steps:
        return kept

    # All steps if they fit, else as many as fit, evenly spaced, with the first and the last. A page
    # of a long run would else be too large for a browser.
    sizes = {step: sum(len(row["completion_ids"]) for row in rows) for step, rows in kept.items()}
    return {step: kept[step] for step in spread(sorted(kept), sizes, MOST_TOKENS)}


def spread(steps: Sequence[int], sizes: Mapping[int, int], most: int) -> list[int]:
    """Return as many evenly spaced steps as fit into a size."""
    for count in range(len(steps), 1, -1):
        gap = (len(steps) - 1) / (count - 1)  # at least 1, so no step is chosen twice
        chosen = [steps[round(number * gap)] for number in range(count)]
        if sum(map(sizes.__getitem__, chosen)) <= most:
            return chosen
    return list(steps[-1:])


def row_data(
    shared: RenderContext, step: int, row: Mapping[str, Any], logged: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the data of one rollout, which is given as it is stored."""
    ids = row["completion_ids"]
    # The columns in ABOUT say which row and token a value belongs to.
    values = {name: array for name, array in (logged or {}).items() if name not in ABOUT}
    data: dict[str, Any] = {name: row[name] for name in ROLLOUT if name in row}
    if not any(map(needs_answer, shared.config.grading.grader)):
        data.pop("answer", None)  # nothing was compared with it
    if has_boxes(shared.config):
        data["boxed"] = boxed(row["text"])
    data |= {
        "looping": is_repetitive(row["text"]),
        "turns": turns_of(row.get("conversation", {}).get("messages", ())),
        "ids": packed(places_of(ids, shared.vocabulary)),
        "prompts": prompts_of(row, shared.tokenizer),
        "is_kept": logged is not None,
    }
    if shared.scorer is not None:
        problem = shared.problems.get(row["problem_id"])
        # If the problem is not found, the row has its text.
        shown = problem or Problem(row["problem"], "", row["answer"], row["problem_id"])
        rollout = read_rollout(row, shown, row["row"])
        data |= _scored(shared.scorer, row, rollout, values, shared.vocabulary)
        if problem is not None:
            data["contexts"] = _contexts_of(shared.contexts, shared.scorer, step, rollout, row)
            pieces = token_bytes(shared.tokenizer, ids)
            data["solution"] = solution_of(problem, row, shared.config, pieces)
    data["values"] = _packed_values(values)
    return data


def _scored(
    scorer: Scorer,
    row: Mapping[str, Any],
    rollout: Rollout,
    values: dict[str, Any],
    vocabulary: dict[int, int],
) -> dict[str, Any]:
    """Return the likeliest tokens of a rollout, and complete the logged values."""
    later = row.get("later_teacher_prompt_ids", [])
    detail = scorer.score(rollout, [row["teacher_prompt_ids"], *later])
    data: dict[str, Any] = {
        "entries": {
            "edges": packed(detail.edges),
            "ids": packed(places_of(detail.entries.tolist(), vocabulary)),
            "term": packed(detail.terms),
            **_packed_values(detail.log_probs),
        }
    }
    if values:
        # How far the rescoring student, of a checkpoint, is from the step's own. The gradient is
        # that of the former: it is not logged.
        moved = np.abs(detail.values["student_log_prob"] - values["student_log_prob"])
        data["moved"] = float(moved.max(initial=0))
        values["slope"] = detail.values["slope"]
        return data
    values |= detail.values
    # The engine's own log-probs: the page compares them with the trainer's.
    if row["engine_log_probs"]:  # none for tokens that no engine sampled
        values["engine_log_prob"] = np.array(row["engine_log_probs"], np.float32)
    return data


def _packed_values(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {name: packed(array) for name, array in values.items()}


def _contexts_of(
    sources: Sequence[str], scorer: Scorer, step: int, rollout: Rollout, row: Mapping[str, Any]
) -> dict[str, Any]:
    contexts = {}
    for source in sources:
        view = scorer.view(rollout, row["mask_ratio"], source, step)
        if view is None:
            continue
        values = scorer.score(rollout, [view.prompt, *view.later]).values
        changing = {name: values[name] for name in CONTEXT_VALUES}
        contexts[source] = {
            "context": view.context,
            "is_the_runs": view.prompt == row["teacher_prompt_ids"],
            "values": _packed_values(changing),
        }
    return contexts


def prompts_of(rollout: Mapping[str, Any], tokenizer: Any) -> dict[str, str]:
    """Return both prompts as text, special tokens included."""
    ids = {"student": rollout["prompt_ids"], "teacher": rollout.get("teacher_prompt_ids")}
    given = {name: list(prompt) for name, prompt in ids.items() if prompt}
    return {k: tokenizer.decode(prompt, skip_special_tokens=False) for k, prompt in given.items()}


def solution_of(
    problem: Problem, rollout: Mapping[str, Any], config: Config, pieces: Sequence[bytes]
) -> dict[str, Any]:
    """Return the solution, its masked part, and its anchors with their tokens.

    Anchors are left out where they neither masked it nor are mathematics.
    """
    text, owners = written(pieces)
    options, anchors = config.context, []
    is_masked = options.mask_ratio_wrong > 0 or options.mask_ratio_correct > 0
    has_anchors = has_boxes(config) or (is_masked and options.alignment == "anchors")
    for anchor in anchors_of(problem.solution, text) if has_anchors else ():
        shown = asdict(anchor)
        met = shown.pop("met")
        # The first and the last that write the anchor, if the completion has it.
        shown["tokens"] = met and [owners[met[0]], owners[min(met[1], len(text)) - 1]]
        anchors.append(shown)
    hidden = None
    # Where a masked solution lies in its text can be told for solutions alone.
    if config.context.source == ("solution",):
        hidden = hidden_part(problem.solution, rollout.get("context"))
    return {
        "text": problem.solution,
        "hidden": hidden,
        "anchors": anchors,
        "has_anchors": has_anchors,
        "is_masked": is_masked,
    }


def has_boxes(config: Config) -> bool:
    """Return whether answers are read from boxes, as by the grader of mathematics."""
    return "math" in config.grading.grader


def settings_of(config: Config) -> list[list[Any]]:
    """Return name and value of every setting, and whether it differs from the default."""
    defaults = to_table(Config())
    settings: list[list[Any]] = []
    for section, keys in to_table(config).items():
        for key, value in keys.items():
            text = json.dumps(value, ensure_ascii=False)
            settings.append([f"{section}.{key}", text, value != defaults[section][key]])
    return settings


def columns_of(metrics: Sequence[Mapping[str, float]]) -> dict[Any, list[float]]:
    """Return the metrics of all steps by name; NaN if a step has no value."""
    columns: dict[Any, list[float]] = pd.DataFrame(metrics).to_dict("list")
    return columns


def charts_of(metrics: Collection[str]) -> list[dict[str, Any]]:
    """Return the charts of a page, each with those of the metrics that it shows."""
    return [
        {**asdict(chart), "metrics": metrics_of_chart(chart_name, metrics)}
        for chart_name, chart in CHARTS.items()
    ]


def validation_data(step: int, benchmark: str, graded: GradedSamples) -> dict[str, Any]:
    """Return the score of a checkpoint that was evaluated during training."""
    metric = "avg_at_k" if graded.rewards is None else "reward"
    # None where the grader failed on every sample.
    interval = compute_metrics({benchmark: graded})[benchmark].get(metric)
    return {
        "step": step,
        "benchmark": benchmark,
        "k": graded.correct.shape[1],
        "problems": len(graded.problems),
        "ungraded": len(graded.ungraded),
        "metric": metric,
        "mean": interval and interval.mean,
        "low": interval and interval.low,
        "high": interval and interval.high,
    }
