"""What a run writes about itself: its settings, a line of figures a step, every rollout.

What lies where, and how it is read, is paint.config.run_folder.
"""

import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from paint.config.recipe import differences, to_table
from paint.config.run_folder import (
    CHANGEABLE_ON_RESUME,
    RunError,
    read_history,
    read_run,
    read_run_json,
    require_rollouts,
    run_id,
    step_folder,
    step_of,
    step_paths,
)
from paint.config.schema import Config
from paint.core import storage
from paint.core.errors import wrap_errors
from paint.grading.base import Grade
from paint.grading.math.grader import MathGrade
from paint.training.rollouts import ScoredRollout, logprob_mismatches, off_policy_metrics

FRACTIONS = {"clipped": "clip_frac", "selected": "selected_frac"}
UNAVERAGED = {"student_log_prob", "teacher_log_prob", "tempered_log_prob", "entropy_ratio"}

LIBRARIES = ("paint", "torch", "transformers", "peft", "accelerate", "tokenizers", "numpy")


def new_run(config: Config, folder: Path, problems: str, model: Mapping[str, str]) -> None:
    """Make the run folder and write run.json.

    Args:
        problems: digest of what is trained on.
        model: digests of the model that is trained (``paint.models.weights.model_digests``).

    Raises:
        RunError: the folder already holds a run or a part of one, or cannot be written.
    """
    if (folder / "run.json").exists():
        raise RunError(
            f"{folder} already holds a run; resume with `paint resume {folder}` or set --log.name"
        )
    for part in [*folder.glob("metrics.jsonl"), *folder.glob("*/step-*")]:
        raise RunError(
            f"{part} is of a run, and its run.json is gone; put that back, or set --log.name"
        )

    table = to_table(config)
    facts = {
        "id": run_id(table, problems, *model.values()),
        "config": table,
        "problems": problems,
        "model": dict(model),
        "versions": _versions(),
        "git": _git_revision(),
        "command": sys.argv,
    }
    with wrap_errors(folder, RunError, "choose another with --log.folder"):
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        storage.write_json(folder / "run.json", facts)


def validate_resume(
    config: Config, folder: Path, problems: str, model: Mapping[str, str]
) -> list[str]:
    """Refuse to go on with another config, model or problems: the result would be neither run.

    Nothing is written.

    Returns:
        What differs and is not refused, in words: versions of libraries.

    Raises:
        RunError: naming every value that differs, a number of steps below the run's, or a folder
            of the run that is gone. CorruptFileError: run.json cannot be read.
    """
    before, facts = read_run(folder), read_run_json(folder)
    if facts["problems"] != problems:
        raise RunError(
            f"{folder} was started with other problems than {config.data.path} holds now; "
            f"put the file back as it was, or start a new run"
        )
    changes = [
        line
        for line in differences(before, config)
        if line.split(":")[0] not in CHANGEABLE_ON_RESUME
    ]
    if changes:
        raise RunError(f"{folder} was started with another config:\n  " + "\n  ".join(changes))
    for name, digest in model.items():
        if facts["model"][name] != digest:
            raise RunError(
                f"{folder} was started with another model: the {name} of {config.model.path} "
                f"were others; put them back as they were, or start a new run"
            )
    if config.train.steps < before.train.steps:
        raise RunError(
            f"{folder} has {before.train.steps} steps; "
            f"they may grow, not shrink to {config.train.steps}"
        )
    if not (folder / "checkpoints").is_dir():
        raise RunError(
            f"{folder / 'checkpoints'} is gone; put it back, or make an empty folder of that name "
            f"to do all steps again"
        )

    now = _versions()
    return [
        f"{name} {version} -> {now.get(name)}"
        for name, version in facts["versions"].items()
        if now.get(name) != version
    ]


def append_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Add the line of a step to metrics.jsonl. Raises RunError where that fails."""
    path = folder / "metrics.jsonl"
    with _or_run_error(path, folder):
        storage.append_jsonl(path, [metrics])


def step_metrics(
    scored: Sequence[ScoredRollout], grades: Sequence[Grade], reduction: str, skip_tokens: int = 0
) -> dict[str, float]:
    """The figures of a step from all its rollouts, averaged with the loss's own weights.

    What a method does not have is left out: references have no grades, baselines no teacher. Where
    the grader is not that of mathematics, the mean reward is a figure, too.
    Source: docs/reference/metrics.md has every name.
    """
    tokens = sum(len(s.rollout.completion.ids) for s in scored)

    def mean(name: str) -> float:
        weighed = [s.tokens[name][skip_tokens:] for s in scored]
        if reduction == "token":
            return sum(map(sum, weighed)) / max(sum(map(len, weighed)), 1)
        return sum(sum(values) / len(values) for values in weighed if values) / len(scored)

    figures = {
        FRACTIONS.get(name, name): mean(name) for name in scored[0].tokens if name not in UNAVERAGED
    }
    if "kl" in scored[0].tokens:
        # Also where objective.skip_tokens leaves that token out: it shows what is left out.
        first_kl = [s.tokens["kl"][0] for s in scored if s.tokens["kl"]]
        figures["first_kl"] = sum(first_kl) / max(len(first_kl), 1)
    if "selected" in scored[0].tokens:
        selected_kl = [
            kl
            for s in scored
            for kl, is_selected in zip(s.tokens["kl"], s.tokens["selected"], strict=True)
            if is_selected
        ]
        figures["selected_kl"] = sum(selected_kl) / max(len(selected_kl), 1)
    for name in scored[0].rollout.metrics:
        figures[name] = sum(s.rollout.metrics[name] for s in scored) / len(scored)

    figures["completion_tokens"] = tokens / len(scored)
    completions = [s.rollout.completion for s in scored]
    sampled = [completion for completion in completions if completion.source != "reference"]
    figures["rollout_tokens"] = sum(len(completion.ids) for completion in sampled)
    if sampled:
        gaps = logprob_mismatches(scored)
        figures["truncated_frac"] = sum(c.truncated for c in sampled) / len(sampled)
        rewards = [grade.reward for grade in grades if grade.reward is not None]
        if rewards:
            figures["accuracy"] = sum(grade.correct for grade in grades) / len(grades)
        if rewards and not isinstance(grades[0], MathGrade):
            figures["reward"] = sum(rewards) / len(rewards)
            figures["grader_failures"] = sum(grade.failed for grade in grades)
        if gaps:  # an algorithm need not score the sampled tokens
            figures["logprob_mismatch_mean"] = sum(gaps) / len(gaps)
            figures["logprob_mismatch_p99"] = gaps[int(0.99 * (len(gaps) - 1))]
        figures |= off_policy_metrics(scored)
    return figures


def write_rollouts(
    folder: Path, step: int, scored: Sequence[ScoredRollout], grades: Sequence[Grade]
) -> None:
    """Keep a step's rollouts, one JSON object a line. Raises RunError where that fails."""
    path = step_folder(folder / "rollouts", step).with_suffix(".jsonl")
    records = [_record(*row) for row in zip(scored, grades, strict=True)]
    with _or_run_error(path, folder):
        storage.write_jsonl(path, records)


def truncate_to_step(config: Config, folder: Path, step: int) -> None:
    """Drop what is kept of steps that will be done again, validation included; note the config.

    They come back the same. What may change is noted in run.json: a larger number of steps, and
    where the engine runs.

    Args:
        step: of the last checkpoint.

    Raises:
        RunError: what was written before that step is not there, or the folder cannot be written.
        CorruptFileError: a line of metrics.jsonl cannot be read.
    """
    rows = read_history(folder, step)
    if config.log.keep_rollouts:
        require_rollouts(folder, step)

    facts, table = read_run_json(folder), to_table(config)
    with _or_run_error(folder, folder):
        if facts["config"] != table:
            storage.write_json(folder / "run.json", facts | {"config": table})
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
    """Collect SIGINT and SIGTERM instead of dying from them; a second one has its usual effect.

    Args:
        signals: the list that they are appended to.
    """

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)
        signal.signal(number, handlers[signal.Signals(number)])

    handlers = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _record(scored: ScoredRollout, grade: Grade) -> dict[str, object]:
    """What is kept of a rollout."""
    rollout, completion, view = (
        scored.rollout,
        scored.rollout.completion,
        scored.rollout.teacher_prompt,
    )
    record: dict[str, object] = {
        "problem_id": rollout.problem.id,
        "problem": rollout.problem.problem,
        "answer": rollout.problem.answer,
        "text": rollout.text,
        **({} if grade.reward is None else {"correct": grade.correct}),
        "truncated": completion.truncated,
        "source": completion.source,
        **rollout.metrics,
        "loss": sum(scored.tokens["loss"]) / len(completion.ids),
        "prompt_ids": rollout.prompt,
        "completion_ids": completion.ids,
        "engine_log_probs": completion.log_probs,
    }
    if completion.source != "reference" and not isinstance(grade, MathGrade):
        record |= {"reward": grade.reward, "reason": grade.reason}
    if view is not None:
        record |= {
            "context": view.context,
            "rationale": view.rationale,
            "teacher_prompt_ids": view.prompt,
        }
    return record


@contextmanager
def _or_run_error(path: Path, folder: Path) -> Iterator[None]:
    with wrap_errors(path, RunError, f"free some space, then `paint resume {folder}`"):
        yield


def _versions() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()}


def _git_revision() -> str | None:
    """Revision of the source that runs, with a mark when it has uncommitted changes."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
