"""What a run writes about itself: its settings, a line of figures a step, every rollout.

What lies where, and how it is read, is paint.runs.
"""

import json
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from paint import files
from paint.config import Config
from paint.recipe import differences, to_table
from paint.runs import RunError, read_facts, read_metrics, read_run, step_folder, step_of
from paint.training.rollouts import Scored, engine_gaps

MAY_CHANGE = {"train.steps", "rollout.urls"}
"""Settings with which a run may go on other than it began."""

SHARES = {"clipped": "clipped_share", "selected": "selected_share"}
UNAVERAGED = {"student_log_prob", "teacher_log_prob", "tempered_log_prob", "entropy_ratio"}
LIBRARIES = ("paint", "torch", "transformers", "peft", "accelerate", "tokenizers", "numpy")


def new_run(config: Config, folder: Path, problems: str) -> None:
    """Make the run folder and write run.json.

    Args:
        problems: digest of what is trained on.

    Raises:
        RunError: the folder already holds a run, or cannot be written.
    """
    if (folder / "run.json").exists():
        raise RunError(
            f"{folder} already holds a run; go on with `paint resume {folder}` or set --log.name"
        )

    facts = {
        "config": to_table(config),
        "problems": problems,
        "versions": {name: version(name) for name in LIBRARIES}
        | {"python": platform.python_version()},
        "git": _git_revision(),
        "command": sys.argv,
    }
    try:
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        files.write_json(folder / "run.json", facts)
    except OSError as error:
        raise RunError(
            f"cannot make the run folder {folder}: {error}; choose another with --log.folder"
        ) from error


def continue_run(config: Config, folder: Path, problems: str) -> None:
    """Refuse to go on with another config or other problems: the result would be neither run.

    What may change is noted: a larger number of steps, and where the engine runs.

    Raises:
        RunError: naming every value that differs, or a number of steps below the run's.
    """
    before, facts = read_run(folder), read_facts(folder)
    if facts.get("problems", problems) != problems:
        raise RunError(
            f"{folder} was started with other problems than {config.data.path} holds now; "
            f"put the file back as it was, or start a new run"
        )
    changes = [line for line in differences(before, config) if line.split(":")[0] not in MAY_CHANGE]
    if changes:
        raise RunError(f"{folder} was started with another config:\n  " + "\n  ".join(changes))
    if config.train.steps < before.train.steps:
        raise RunError(
            f"{folder} has {before.train.steps} steps; "
            f"they may grow, not shrink to {config.train.steps}"
        )

    if config != before:
        facts |= {"config": to_table(config)}
        with _or_run_error(folder / "run.json"):
            files.write_json(folder / "run.json", facts)


def append_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Add one line to metrics.jsonl. Raises RunError where that fails."""
    path = folder / "metrics.jsonl"
    with _or_run_error(path), path.open("a") as file:
        file.write(json.dumps(metrics) + "\n")


def step_metrics(
    scored: Sequence[Scored], is_correct: Sequence[bool], reduction: str
) -> dict[str, float]:
    """The figures of a step from all its rollouts, averaged with the loss's own weights.

    What a method does not have is left out: references have no verdicts, baselines no teacher.
    Source: docs/notation.md has every name.
    """
    tokens = sum(len(s.rollout.completion.ids) for s in scored)

    def mean(name: str) -> float:
        if reduction == "token":
            return sum(sum(s.tokens[name]) for s in scored) / tokens
        return sum(sum(s.tokens[name]) / len(s.tokens[name]) for s in scored) / len(scored)

    figures = {
        SHARES.get(name, name): mean(name) for name in scored[0].tokens if name not in UNAVERAGED
    }
    if "selected" in scored[0].tokens:
        selected_kl = [
            kl
            for s in scored
            for kl, is_selected in zip(s.tokens["kl"], s.tokens["selected"], strict=True)
            if is_selected
        ]
        figures["selected_kl"] = sum(selected_kl) / max(len(selected_kl), 1)
    for name in scored[0].rollout.figures:
        figures[name] = sum(s.rollout.figures[name] for s in scored) / len(scored)

    figures["completion_tokens"] = tokens / len(scored)
    completions = [s.rollout.completion for s in scored]
    sampled = [completion for completion in completions if completion.source != "reference"]
    figures["rollout_tokens"] = sum(len(completion.ids) for completion in sampled)
    if sampled:
        gaps = engine_gaps(scored)
        figures["truncated_share"] = sum(c.truncated for c in sampled) / len(sampled)
        figures["correct_share"] = sum(is_correct) / len(is_correct)
        figures["engine_gap_mean"] = sum(gaps) / len(gaps)
        figures["engine_gap_p99"] = gaps[int(0.99 * (len(gaps) - 1))]
    return figures


def write_rollouts(
    folder: Path, step: int, scored: Sequence[Scored], is_correct: Sequence[bool]
) -> None:
    """Keep a step's rollouts, one JSON object a line. Raises RunError where that fails."""
    path = step_folder(folder / "rollouts", step).with_suffix(".jsonl")
    records = [_record(*row) for row in zip(scored, is_correct, strict=True)]
    with _or_run_error(path):
        files.write(path, files.to_jsonl(records))


def forget_after(folder: Path, step: int) -> None:
    """Drop metrics and rollouts of steps that will be done again; they come back the same.

    Raises:
        RunError: the folder cannot be written.
    """
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    with _or_run_error(folder):
        files.write(folder / "metrics.jsonl", files.to_jsonl(rows))
        for path in (folder / "rollouts").glob("step-*.jsonl"):
            if step_of(path) > step:
                path.unlink()


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying from them; a second one has its usual effect."""
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)
        signal.signal(number, handlers[signal.Signals(number)])

    handlers = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _record(scored: Scored, is_correct: bool) -> dict[str, object]:
    """What is kept of a rollout."""
    rollout, completion, view = scored.rollout, scored.rollout.completion, scored.rollout.view
    record: dict[str, object] = {
        "problem_id": rollout.problem.id,
        "problem": rollout.problem.problem,
        "answer": rollout.problem.answer,
        "text": rollout.text,
        "correct": is_correct,
        "truncated": completion.truncated,
        "source": completion.source,
        **rollout.figures,
        "loss": sum(scored.tokens["loss"]) / len(completion.ids),
        "prompt_ids": rollout.prompt,
        "completion_ids": completion.ids,
        "engine_log_probs": completion.log_probs,
    }
    if view is not None:
        record |= {
            "context": view.context,
            "rationale": view.rationale,
            "teacher_prompt_ids": view.prompt,
        }
    return record


@contextmanager
def _or_run_error(path: Path) -> Iterator[None]:
    with files.explained(path, RunError, "free some space, then `paint resume`"):
        yield


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
