"""A run is a folder: what lies where in it, and how it is read.

    run.json                    resolved config, versions, git revision, command
    metrics.jsonl               one line a step
    rollouts/step-000001.jsonl  every rollout of the step: ids, text, overlap, mask ratio, context
    validation/step-000020/     an evaluation of that checkpoint (paint.evaluation.store)
    checkpoints/step-000020/    adapter (peft format) or model, optimizer, an averaged teacher,
                                state: enough to go on bit by bit

Checkpoints and rollouts appear under their names only when they are complete, so a kill at any
moment leaves the last good ones. What writes a run is paint.training (runlog, checkpoint).
"""

import json
from pathlib import Path
from typing import Any

from paint.config import Config
from paint.errors import PaintError
from paint.files import read_jsonl
from paint.recipe import from_table


class RunError(PaintError, RuntimeError):
    """A run folder cannot be written, or cannot be gone on with; the message says how to."""


def read_facts(folder: Path) -> dict[str, Any]:
    """What run.json says.

    Raises:
        RunError: there is no run, or its run.json is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads((folder / "run.json").read_text())
        facts["config"]
    except FileNotFoundError as error:
        raise RunError(f"{folder} holds no run (no run.json)") from error
    except (json.JSONDecodeError, KeyError, UnicodeDecodeError) as error:
        raise RunError(f"{folder / 'run.json'} is damaged: {error}") from error
    return facts


def read_run(folder: Path) -> Config:
    """The resolved config of an existing run.

    Raises:
        RunError: there is no run, or its run.json is damaged. ConfigError: of another version.
    """
    return from_table(read_facts(folder)["config"], source=str(folder / "run.json"))


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """All complete lines of metrics.jsonl; a last line that a kill cut short is left out.

    Raises:
        RunError: a line before the last one is damaged.
    """
    path = folder / "metrics.jsonl"
    try:
        return list(read_jsonl(path))
    except ValueError as error:
        raise RunError(str(error)) from error


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, by step."""
    return sorted((folder / "checkpoints").glob("step-*"))


def latest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step, if there is one."""
    return max(checkpoints(folder), default=None)


def step_folder(parent: Path, step: int) -> Path:
    """The place of a step: ``parent/step-000020``."""
    return parent / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step of such a place, whatever its ending."""
    return int(path.name.removeprefix("step-").partition(".")[0])
