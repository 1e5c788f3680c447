"""A run is a folder: what was asked for, what happened at each step, and where to go on.

    run.json                    resolved config, versions, git revision, command
    metrics.jsonl               one line a step
    rollouts/step-000001.jsonl  every rollout of the step: ids, text, overlap, mask ratio, the context shown
    checkpoints/step-000020/    adapter (peft format) or model, optimizer, an averaged teacher, state: enough to go on
                                bit by bit

Checkpoints and rollouts appear under their names only when complete, so a kill at any moment leaves the last good one.
"""

import json
import os
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

import torch

from paint import PaintError
from paint.config import Config
from paint.policy import Policy, load_trained, save_trained, trained_in
from paint.recipe import differences, from_table, to_table
from paint.rollout import Scored, engine_gaps
from paint.teacher import Teacher

MAY_CHANGE = {"train.steps", "rollout.urls"}
FIGURES = {"clipped": "clipped_share", "selected": "selected_share"}
UNAVERAGED = {"student_log_prob", "teacher_log_prob", "tempered_log_prob", "entropy_ratio"}
LIBRARIES = ("paint", "torch", "transformers", "peft", "accelerate", "tokenizers", "numpy")


class RunError(PaintError, RuntimeError):
    """A run folder cannot be written, or cannot be gone on with; the message says how to."""


def new_run(config: Config, folder: Path, problems: str) -> Path:
    """Make the run folder and write run.json.

    Args:
        problems: digest of what is trained on.

    Raises:
        RunError: the folder already holds a run, or cannot be written.
    """
    if (folder / "run.json").exists():
        raise RunError(f"{folder} already holds a run; go on with `paint resume {folder}` or set --log.name")
    try:
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").mkdir(exist_ok=True)
        facts = {
            "config": to_table(config),
            "problems": problems,
            "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
            "git": _git_revision(),
            "command": sys.argv,
        }
        _write(folder / "run.json", json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        raise RunError(f"cannot make the run folder {folder}: {error}; choose another with --log.folder") from error
    return folder


def read_run(folder: Path) -> Config:
    """The resolved config of an existing run.

    Raises:
        RunError: no run there, or its run.json is damaged.
    """
    try:
        table = json.loads((folder / "run.json").read_text())["config"]
    except FileNotFoundError as error:
        raise RunError(f"{folder} holds no run (no run.json)") from error
    except (json.JSONDecodeError, KeyError, UnicodeDecodeError) as error:
        raise RunError(f"{folder / 'run.json'} is damaged: {error}") from error
    return from_table(table, source=str(folder / "run.json"))


def trained_on(folder: Path) -> str:
    """What tells the problems of a run from others; empty for one that did not note it."""
    return str(json.loads((folder / "run.json").read_text()).get("problems", ""))


def continue_run(config: Config, folder: Path, problems: str) -> None:
    """Refuse to go on with another config or other problems, since the result would be neither run.

    What may change is noted: a larger number of steps, and where the engine runs.

    Raises:
        RunError: naming every value that differs, or a number of steps below the run's.
    """
    before = read_run(folder)
    facts = json.loads((folder / "run.json").read_text())
    if facts.get("problems", problems) != problems:
        raise RunError(
            f"{folder} was started with other problems than {config.data.path} holds now; put the file back as it was, "
            f"or start a new run"
        )
    lines = [line for line in differences(before, config) if line.split(":")[0] not in MAY_CHANGE]
    if lines:
        raise RunError(f"{folder} was started with another config:\n  " + "\n  ".join(lines))
    if config.train.steps < before.train.steps:
        raise RunError(f"{folder} has {before.train.steps} steps; they may grow, not shrink to {config.train.steps}")
    if config != before:
        facts |= {"config": to_table(config)}
        with _or_run_error(folder / "run.json"):
            _write(folder / "run.json", json.dumps(facts, indent=2) + "\n")


def append_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Add one line to metrics.jsonl. Raises RunError where that fails."""
    path = folder / "metrics.jsonl"
    with _or_run_error(path), path.open("a") as file:
        file.write(json.dumps(metrics) + "\n")


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """All complete lines of metrics.jsonl; a last line that a kill cut short is left out."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise RunError(f"{path} line {number} is damaged: {error}") from error
    return rows


def summarise(scored: Sequence[Scored], correct: Sequence[bool], reduction: str) -> dict[str, float]:
    """The figures of a step from all its rollouts, averaged with the loss's own weights (docs/notation.md).

    What a method does not have is left out: references have no verdicts, and baselines no teacher.
    """
    tokens = sum(len(s.rollout.completion.ids) for s in scored)

    def mean(name: str) -> float:
        if reduction == "token":
            return sum(sum(s.tokens[name]) for s in scored) / tokens
        return sum(sum(s.tokens[name]) / len(s.tokens[name]) for s in scored) / len(scored)

    figures = {FIGURES.get(name, name): mean(name) for name in scored[0].tokens if name not in UNAVERAGED}
    if "selected" in scored[0].tokens:
        chosen = [kl for s in scored for kl, it in zip(s.tokens["kl"], s.tokens["selected"], strict=True) if it]
        figures["selected_kl"] = sum(chosen) / max(len(chosen), 1)
    for name in scored[0].rollout.figures:
        figures[name] = sum(s.rollout.figures[name] for s in scored) / len(scored)
    figures["completion_tokens"] = tokens / len(scored)
    sampled = [s.rollout.completion for s in scored if s.rollout.completion.source != "reference"]
    figures["rollout_tokens"] = sum(len(completion.ids) for completion in sampled)
    if sampled:
        gaps = engine_gaps(scored)
        figures["truncated_share"] = sum(completion.truncated for completion in sampled) / len(sampled)
        figures["correct_share"] = sum(correct) / len(correct)
        figures["engine_gap_mean"] = sum(gaps) / len(gaps)
        figures["engine_gap_p99"] = gaps[int(0.99 * (len(gaps) - 1))]
    return figures


def write_rollouts(folder: Path, step: int, scored: Sequence[Scored], correct: Sequence[bool]) -> None:
    """Keep a step's rollouts, one JSON object a line. Raises RunError where that fails."""
    text = "".join(
        json.dumps(_record(item, right), ensure_ascii=False) + "\n" for item, right in zip(scored, correct, strict=True)
    )
    path = folder / "rollouts" / f"step-{step:06d}.jsonl"
    with _or_run_error(path):
        _write(path, text)


def save_checkpoint(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, step: int, teacher: Teacher
) -> Path:
    """Write what is trained, optimizer, teacher and step; the checkpoint gets its name when all of it is on disk.

    Raises:
        RunError: the disk is full or not writable; earlier checkpoints are as they were.
    """
    final = folder / "checkpoints" / f"step-{step:06d}"
    if final.exists():
        return final
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        save_trained(policy, trained_in(partial, policy.tuning))
        teacher.save(partial)
        torch.save(optimizer.state_dict(), partial / "optimizer.pt")
        _write(partial / "state.json", json.dumps({"step": step}) + "\n")
        for path in partial.rglob("*"):
            _sync(path)
        partial.rename(final)
        _sync(final.parent)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"checkpoint {final} could not be written: {error}\n"
            f"Free some space, then `paint resume {folder}`; earlier checkpoints are untouched."
        ) from error
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step, if there is one."""
    return max((folder / "checkpoints").glob("step-*"), default=None)


def restore(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, teacher: Teacher) -> int:
    """Load the latest checkpoint into policy, optimizer and teacher and return its step (0: there is none).

    Raises:
        RunError: the checkpoint is damaged.
    """
    checkpoint = latest_checkpoint(folder)
    if checkpoint is None:
        return 0
    try:
        step = int(json.loads((checkpoint / "state.json").read_text())["step"])
        load_trained(policy, trained_in(checkpoint, policy.tuning))
        teacher.load(checkpoint)
        optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", map_location=policy.device))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(f"{checkpoint} is damaged ({error}); delete it to go on from the one before") from error
    return step


def forget_after(folder: Path, step: int) -> None:
    """Drop metrics and rollouts of steps that will be done again; they come back the same."""
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    _write(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for path in (folder / "rollouts").glob("step-*.jsonl"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying from them; a second one has its usual effect."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _record(scored: Scored, correct: bool) -> dict[str, object]:
    """What is kept of a rollout."""
    rollout, completion, view = scored.rollout, scored.rollout.completion, scored.rollout.view
    record: dict[str, object] = {
        "problem_id": rollout.problem.id,
        "problem": rollout.problem.problem,
        "answer": rollout.problem.answer,
        "text": rollout.text,
        "correct": correct,
        "truncated": completion.truncated,
        "source": completion.source,
        **rollout.figures,
        "loss": sum(scored.tokens["loss"]) / len(completion.ids),
        "prompt_ids": rollout.prompt,
        "completion_ids": completion.ids,
        "engine_log_probs": completion.log_probs,
    }
    if view is not None:
        record |= {"context": view.context, "rationale": view.rationale, "teacher_prompt_ids": view.prompt}
    return record


@contextmanager
def _or_run_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} could not be written: {error}; free some space, then `paint resume`") from error


def _write(path: Path, text: str) -> None:
    """Write a file so that it is either the old one or the whole new one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    _sync(partial)
    partial.replace(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
