"""Writers of the run folder: run.json, metrics.jsonl and rollouts."""

import platform
import shutil
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from paint.config.recipe import executables_of, to_table
from paint.config.run_folder import (
    OWN_ROWS,
    ROWS,
    RunError,
    copy_inputs,
    fixed_differences,
    foreign_code,
    read_history,
    read_run,
    read_run_json,
    run_id,
    step_folder,
    step_of,
    step_paths,
)
from paint.config.schema import Config
from paint.core import storage
from paint.core.credentials import recorded_line
from paint.core.display import Display, format_duration
from paint.core.errors import wrap_errors
from paint.core.extensions import is_spec, source_digest
from paint.core.trust import remember
from paint.core.versions import versions
from paint.data.problems import SOURCE
from paint.evaluation.grade import is_repetitive
from paint.grading.contract import Grade
from paint.inference.machine import LIBRARIES
from paint.inference.rollouts import Rollout, rollout_row
from paint.objective.loss_options import Objective
from paint.training.log_probs import logprob_mismatches, off_policy_metrics

OF_SOURCES = ("reward", "accuracy", "kl", "loss")
"""Metrics of a step that are also computed of each source of a mixture."""

FRACTIONS = {"clipped": "clip_frac", "selected": "selected_frac"}
UNAVERAGED = {"student_log_prob", "teacher_log_prob", "tempered_log_prob", "entropy_ratio"}


@contextmanager
def entered(
    config: Config, folder: Path, facts: Mapping[str, Any], display: Display, *, resume: bool
) -> Iterator[None]:
    """Hold the lock of a run's folder, which is new, or has the run that is resumed."""
    with wrap_errors(folder, RunError, "choose another with --log.folder"):
        folder.mkdir(parents=True, exist_ok=True)
    with storage.lock_folder(folder):
        if resume:
            validate_resume(config, folder, facts, display)
        else:
            reason = new_run(config, folder, facts)
            if reason:
                display.warn(
                    f"{folder} names code and is not noted as yours ({reason}): commands that run "
                    f"it later need --trust"
                )
        yield


def new_run(config: Config, folder: Path, facts: Mapping[str, Any]) -> str:
    """Fill a new run's folder; return why it is not noted as the user's own, or ""."""
    table = to_table(config)
    if (folder / "run.json").exists():
        raise RunError(
            f"{folder} already holds a run; resume with `paint resume {folder}` or set --log.name"
        )
    for part in [*folder.glob("metrics.jsonl"), *folder.glob("*/step-*")]:
        raise RunError(
            f"{part} belongs to a run whose run.json is missing; restore it, or set --log.name"
        )

    parts = facts["problems"], facts["context"], *facts["model"].values()
    contents = {
        "id": run_id(table, *parts),
        "config": table,
        OWN_ROWS: Path(config.data.place).absolute() == (folder / ROWS).absolute(),
        **facts,
        "code": source_digests(config),
        "versions": _versions(),
        "git": _git_revision(),
        # A script of the user's own may have secrets among its arguments.
        "command": recorded_line(sys.argv),
    }
    reason = ""
    if executables_of(table):
        try:
            remember(table)
        except OSError as error:
            reason = str(error)
    with wrap_errors(folder, RunError, "choose another with --log.folder"):
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        copy_inputs(config, folder)
        # Last: after a kill before it, the same command can begin again in this folder.
        storage.write_json(folder / "run.json", contents)
    return reason


def validate_resume(
    config: Config, folder: Path, facts: Mapping[str, Any], display: Display
) -> None:
    """Check that a run resumes with the config, model, problems and context of its start."""
    before, run_info = read_run(folder, is_compared=True), read_run_json(folder)
    changes = fixed_differences(before, config)
    if changes:
        raise RunError(f"{folder} was started with another config:\n  " + "\n  ".join(changes))
    hints = {
        "problems": (config.data.place, "restore them, name them by --data.path"),
        "context": (config.context.file, "restore it"),
    }
    of_model = config.model.path, "restore it, name the model by --model.path"
    known = {**run_info, **run_info["model"]}
    for name, digest in {**facts, **facts["model"]}.items():
        # Conventions, a table, are only recorded.
        if isinstance(digest, str) and known[name] != digest:
            place, hint = hints.get(name, of_model)
            raise RunError(
                f"{folder} was started with other {name} than {place} holds now (digest "
                f"{known[name]}, now {digest}); {hint}, or start a new run"
            )
    if not (folder / "checkpoints").is_dir():
        raise RunError(
            f"{folder / 'checkpoints'} is missing; restore it, or create an empty folder of that "
            f"name to repeat all steps"
        )

    code = source_digests(config)
    for spec, digest in run_info.get("code", {}).items():
        if code.get(spec) != digest:
            display.warn(
                f"the file of {spec} has changed since {folder} began, which may change what the "
                f"steps from here on are graded by or learn"
            )
    now = _versions()
    recorded = run_info["versions"].items()
    changed = [f"{name} {old} -> {now.get(name)}" for name, old in recorded if now.get(name) != old]
    if changed:
        display.warn(
            f"versions have changed since {folder} began, which may change its last digits: "
            + ", ".join(changed)
        )


def source_digests(config: Config) -> dict[str, str]:
    """Return digests of the files that define what a config names as module:name, by name."""
    found: dict[str, str] = {}
    for settings in to_table(config).values():
        for value in settings.values():
            for spec in filter(is_spec, value if isinstance(value, list) else [value]):
                found[spec] = source_digest(spec)
    return {spec: digest for spec, digest in found.items() if digest}


def append_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    path = folder / "metrics.jsonl"
    with _or_run_error(path, folder):
        storage.append_jsonl(path, [metrics])


def step_metrics(
    scored: Sequence[Rollout],
    options: Objective,
    *,
    gives_answers: bool = False,
    unanswered: Sequence[str] = (),
) -> dict[str, float]:
    """Return the metrics of a step from all its rollouts (docs/reference/metrics.md).

    Metrics that a method does not have are left out: references have no grades, baselines no
    teacher, and a step that learns from no rollout no loss. ``gives_answers`` and ``unanswered``
    are the grader's.
    """
    kept = [s for s in scored if s.tokens]
    metrics = loss_metrics(kept, options) if kept else {}
    if len(kept) < len(scored):
        metrics["kept_completions"] = len(kept)
    metrics["completion_tokens"] = sum(len(s.completion.ids) for s in scored) / len(scored)
    sampled = [s.completion for s in scored if s.completion.source != "reference"]
    metrics["rollout_tokens"] = sum(len(completion.ids) for completion in sampled)
    if sampled:
        gaps = logprob_mismatches(scored)
        metrics["truncated_frac"] = sum(c.truncated for c in sampled) / len(sampled)
        repetitive = sum(is_repetitive(s.text) for s in scored)
        metrics["repetitive_frac"] = repetitive / len(sampled)
        grades = [s.grade for s in scored if s.grade]
        # An environment's reward is a number, whatever the grader gives.
        gives_answers = gives_answers and not any(c.conversation_grade for c in sampled)
        metrics |= grade_metrics(grades, gives_answers=gives_answers, unanswered=unanswered)
        if gaps:  # an algorithm need not score the sampled tokens
            metrics["logprob_mismatch_mean"] = sum(gaps) / len(gaps)
            metrics["logprob_mismatch_p99"] = gaps[int(0.99 * (len(gaps) - 1))]
        metrics |= off_policy_metrics(scored)
    return metrics | source_metrics(scored, options, gives_answers=gives_answers)


def source_metrics(
    scored: Sequence[Rollout], options: Objective, *, gives_answers: bool
) -> dict[str, float]:
    """Return the metrics of a mixture's step by source; {} where there is one source."""
    parts: dict[str, list[Rollout]] = {}
    for s in scored:
        if s.problem.source:
            parts.setdefault(s.problem.source, []).append(s)
    metrics: dict[str, float] = {}
    for source, part in parts.items():
        kept = [s for s in part if s.tokens]
        found = loss_metrics(kept, options) if kept else {}
        grades = [s.grade for s in part if s.grade]
        found |= grade_metrics(grades, gives_answers=gives_answers)
        metrics[f"sources/{source}/completions"] = len(part)
        for name in OF_SOURCES:
            if name in found:
                metrics[f"sources/{source}/{name}"] = found[name]
    return metrics


def grade_metrics(
    grades: Sequence[Grade], *, gives_answers: bool, unanswered: Sequence[str] = ()
) -> dict[str, float]:
    """Return means of the grades of a step, over the completions that have a reward.

    A grader that ``gives_answers`` has their accuracy as its mean reward. Of another, reasons that
    are ``unanswered`` say that there is no answer.
    """
    graded = [grade for grade in grades if grade.reward is not None]
    failures = sum(grade.failed for grade in grades)
    metrics: dict[str, float] = {}
    if gives_answers and graded:
        metrics["unboxed_frac"] = sum(grade.answer is None for grade in graded) / len(graded)
    elif unanswered and graded:
        metrics["unboxed_frac"] = sum(g.reason in unanswered for g in graded) / len(graded)
    if graded:
        metrics["accuracy"] = sum(grade.correct for grade in grades) / len(graded)
    if graded and not gives_answers:
        metrics["reward"] = sum(grade.reward or 0.0 for grade in graded) / len(graded)
    if failures or (graded and not gives_answers):
        metrics["grader_failures"] = failures
    metrics |= reward_metrics(grades)
    for name in dict.fromkeys(name for grade in graded for name in grade.metrics):
        values = [grade.metrics[name] for grade in graded if name in grade.metrics]
        metrics[name] = sum(values) / len(values)
    return metrics


def reward_metrics(grades: Sequence[Grade]) -> dict[str, float]:
    """Return mean and sample standard deviation of each grader's rewards, by TRL's names."""
    by_name: dict[str, list[float]] = {}
    for grade in grades:
        for name, part in grade.parts.items():
            if part.reward is not None:
                by_name.setdefault(name, []).append(part.reward)
    metrics = {}
    for name, rewards in by_name.items():
        metrics[f"rewards/{name}/mean"] = statistics.fmean(rewards)
        metrics[f"rewards/{name}/std"] = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    return metrics


def equal_rewards(scored: Sequence[Rollout], size: int) -> dict[str, float]:
    """Return the share of rewards whose group of ``size`` neighbours has no other reward."""
    groups: dict[int, list[float]] = {}
    for s in scored:
        if s.grade and s.grade.reward is not None:
            groups.setdefault(s.row // size, []).append(s.grade.reward)
    count = sum(map(len, groups.values()))
    if not count:
        return {}
    equal = sum(len(rewards) for rewards in groups.values() if len(set(rewards)) == 1)
    return {"frac_reward_zero_std": equal / count}


def loss_metrics(kept: Sequence[Rollout], options: Objective) -> dict[str, float]:
    """Return the metrics of the rollouts that are trained on, with the weights of the loss."""

    def mean(name: str) -> float:
        per_row = [s.tokens[name][options.skip_tokens :] for s in kept]
        if options.reduction == "token":
            return sum(map(sum, per_row)) / max(sum(map(len, per_row)), 1)
        return sum(sum(values) / len(values) for values in per_row if values) / len(kept)

    metrics = {}
    for name in kept[0].tokens:
        if name not in UNAVERAGED:
            metrics[FRACTIONS.get(name, name)] = mean(name)
    if "kl" in kept[0].tokens:
        # Computed even if objective.skip_tokens leaves the token out, to show its KL.
        first_kl = [s.tokens["kl"][0] for s in kept if s.tokens["kl"]]
        metrics["first_kl"] = sum(first_kl) / max(len(first_kl), 1)
    if "selected" in kept[0].tokens:
        pairs = [zip(s.tokens["kl"], s.tokens["selected"], strict=True) for s in kept]
        selected_kl = [kl for of_row in pairs for kl, is_selected in of_row if is_selected]
        metrics["selected_kl"] = sum(selected_kl) / max(len(selected_kl), 1)
    for name in kept[0].metrics:
        metrics[name] = sum(s.metrics[name] for s in kept) / len(kept)
    return metrics


def describe_phases(steps: Sequence[Mapping[str, float]], seconds: float) -> str:
    """Return a text on how the seconds of a run divide over the phases of its steps."""
    phases: defaultdict[str, float] = defaultdict(float)
    for row in steps:
        for name, value in row.items():
            if name.startswith("seconds_") and name != "seconds_left":
                phases[name.removeprefix("seconds_")] += value
    longest = sorted(phases, key=phases.__getitem__, reverse=True)
    parts = [f"{name} {format_duration(phases[name])}" for name in longest if round(phases[name])]
    rest = max(seconds - sum(phases.values()), 0.0)
    parts.append(f"set-up, validation and saving {format_duration(rest)}")
    return f"took {format_duration(seconds)}: {', '.join(parts)}"


def write_rollouts(folder: Path, step: int, records: Sequence[Mapping[str, object]]) -> None:
    path = step_folder(folder / "rollouts", step).with_suffix(".jsonl")
    with _or_run_error(path, folder):
        storage.write_jsonl(path, records)


def replace_config(folder: Path, config: Config) -> None:
    before, table = read_run_json(folder), to_table(config)
    if before["config"] == table:
        return
    # A run that was trusted for this call alone stays as it is.
    if executables_of(table) and not foreign_code(folder):
        with suppress(OSError):  # the start of the run has said so
            remember(table)
    with _or_run_error(folder, folder):
        storage.write_json(folder / "run.json", before | {"config": table})


def truncate_to_step(config: Config, folder: Path, step: int) -> None:
    """Delete what was written after a step, to be repeated; write the config to run.json."""
    rows = read_history(folder, step)
    replace_config(folder, config)
    with _or_run_error(folder, folder):
        storage.write_jsonl(folder / "metrics.jsonl", rows)
        for part, ending in (("rollouts", ".jsonl"), ("tokens", ".parquet")):
            for path in step_paths(folder / part, ending):
                if step_of(path) > step:
                    path.unlink()
        for path in step_paths(folder / "validation"):
            if step_of(path) > step:
                shutil.rmtree(path)


@contextmanager
def stop_signals(signals: list[int]) -> Iterator[None]:
    """Collect SIGINT and SIGTERM in place of their effect; a second one has its usual effect."""

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)
        signal.signal(number, handlers[signal.Signals(number)])

    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def record(rollout: Rollout) -> dict[str, object]:
    """Return a rollout as it is stored (docs/reference/run-folder.md)."""
    problem, completion, grade = rollout.problem, rollout.completion, rollout.grade
    row: dict[str, object] = {"problem": problem.problem, "answer": problem.answer}
    if problem.source:
        row[SOURCE] = problem.source
    row |= rollout_row(rollout)
    row["engine_log_probs"] = completion.log_probs
    row["kept"] = bool(rollout.tokens)
    row |= rollout.metrics
    if rollout.tokens:
        row["loss"] = sum(rollout.tokens["loss"]) / len(completion.ids)
    if grade and grade.reward is not None:
        row["correct"] = grade.correct
    if grade:
        row |= {"reward": grade.reward, "failed": grade.failed, **grade.columns}
    if grade and grade.answer is not None:  # "answer" is the gold one
        row["given_answer"] = grade.answer
    if view := rollout.teacher_prompt:
        row |= {"context": view.context, "rationale": view.rationale}
        row["teacher_prompt_ids"] = view.prompt
        if view.later:
            row["later_teacher_prompt_ids"] = view.later
    return row


def _or_run_error(path: Path, folder: Path) -> AbstractContextManager[None]:
    return wrap_errors(path, RunError, f"free some space, then `paint resume {folder}`")


def _versions() -> dict[str, str]:
    return versions(*LIBRARIES) | {"python": platform.python_version()}


def _git_revision() -> str | None:
    """Return the revision of the running source, with "-dirty" if it has uncommitted changes."""
    # The hash alone, without a tag's name.
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.decode().strip()
