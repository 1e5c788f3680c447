"""A run is a folder: what lies where in it, and how it is read.

    run.json                    resolved config, identity, versions, git revision, command
    metrics.jsonl               one line a step
    rollouts/step-000001.jsonl  every rollout of the step: ids, text, overlap, mask ratio, context
    tokens/step-000001.parquet  some of these token by token (paint.training.token_log)
    validation/step-000020/     an evaluation of that checkpoint (paint.evaluation.store)
    checkpoints/step-000020/    adapter (peft format) or model, optimizer, an averaged teacher,
                                state: enough to go on bit by bit; SHA256SUMS of all of these

Checkpoints and rollouts appear under their names only when they are complete, so a kill at any
moment leaves the last good ones. Checkpoints carry the run's identity: those of another run are
refused. JSON files are plain. What writes a run is paint.training (runlog, checkpoint).
"""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

from paint.config.recipe import from_table
from paint.config.schema import Config
from paint.core.errors import PaintError
from paint.core.storage import (
    CorruptFileError,
    digest,
    read_growing_jsonl,
    read_json,
    verify_checksums,
)

CHANGEABLE_ON_RESUME = {
    "train.steps",
    "rollout.urls",
    "rollout.server_gpus",
    "rollout.max_logprob_mismatch",
    "model.shard",
}
"""Settings with which a run may go on other than it began: none of them changes a value."""

FACTS = {"id", "config", "problems", "model", "versions"}
"""What run.json must hold."""

START_ANEW = "put it back as it was, or start a new run"


class RunError(PaintError, RuntimeError):
    """A run folder cannot be written, or cannot be gone on with; the message says how to."""


def read_run_json(folder: Path) -> dict[str, Any]:
    """What run.json says.

    Raises:
        RunError: there is no run. CorruptFileError: run.json cannot be read, or lacks a part.
    """
    path = folder / "run.json"
    if not path.exists():
        raise RunError(f"{folder} holds no run (no run.json)")
    facts = read_json(path, START_ANEW)
    if not isinstance(facts.get("config"), dict) or not facts.keys() >= FACTS:
        raise CorruptFileError(
            f"{path} holds no run that this version of paint can read; {START_ANEW}"
        )
    return facts


def read_run(folder: Path) -> Config:
    """The resolved config of an existing run.

    Raises:
        RunError, CorruptFileError: as ``read_facts``. ConfigError: of another version.
    """
    return from_table(read_run_json(folder)["config"], source=str(folder / "run.json"))


def run_id(config: dict[str, Any], *digests: str) -> str:
    """What tells a run from others: its config, and digests of its problems and its model."""
    fixed = {
        section: {
            key: value
            for key, value in keys.items()
            if f"{section}.{key}" not in CHANGEABLE_ON_RESUME
        }
        for section, keys in config.items()
    }
    return digest(json.dumps(fixed, sort_keys=True), *digests)[:16]


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """All complete lines of metrics.jsonl; a last line that a kill cut short is left out.

    Raises:
        CorruptFileError: a line cannot be read.
    """
    return list(read_growing_jsonl(folder / "metrics.jsonl", START_ANEW))


def read_history(folder: Path, steps: int) -> list[dict[str, float]]:
    """The lines of metrics.jsonl of the first ``steps`` steps, one each.

    Raises:
        RunError: a line is missing, or of another step. CorruptFileError: a line cannot be read.
    """
    advice = (
        f"put it back as it was, or delete the checkpoints of that step and of later ones "
        f"in {folder / 'checkpoints'}: `paint resume {folder}` does these steps again"
    )
    path = folder / "metrics.jsonl"
    rows = list(islice(read_growing_jsonl(path, advice), steps))
    for number, row in enumerate(rows, start=1):
        if row.get("step") != number:
            raise RunError(f"{path} line {number} is not that of step {number}; {advice}")
    if len(rows) < steps:
        raise RunError(
            f"{path} ends before step {len(rows) + 1}, and there is a "
            f"checkpoint of step {steps}; {advice}"
        )
    return rows


def require_rollouts(folder: Path, steps: int) -> None:
    """Refuse a run that lacks the rollouts of one of its first ``steps`` steps. Raises RunError."""
    for number in range(1, steps + 1):
        path = step_folder(folder / "rollouts", number).with_suffix(".jsonl")
        if not path.exists():
            raise RunError(
                f"{path} is gone; put it back, or delete the checkpoints of that step and of later "
                f"ones: `paint resume {folder}` does these steps again"
            )


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, by step."""
    return [path for path in step_paths(folder / "checkpoints") if path.is_dir()]


def latest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step, if there is one."""
    return max(checkpoints(folder), key=step_of, default=None)


def require_checkpoint(checkpoint: Path, part: str = "") -> dict[str, str]:
    """Refuse a checkpoint that is not what was written, of its step, by its run.

    Args:
        part: a folder in it, where nothing else will be read.

    Returns:
        The SHA-256 of every file that will be read, by name.

    Raises:
        CorruptFileError: naming what was changed. RunError: the run's own run.json is gone.
    """
    advice = f"delete {checkpoint} to go on from the one before"
    sums = verify_checksums(checkpoint, advice, part)
    state = read_json(checkpoint / "state.json", advice)
    for key in ("step", "run"):
        if key not in state:
            raise CorruptFileError(f"{checkpoint / 'state.json'} has no {key}; {advice}")
    if _STEP.fullmatch(checkpoint.name) and state["step"] != step_of(checkpoint):
        raise CorruptFileError(f"{checkpoint} is that of step {state['step']}; {advice}")

    run = checkpoint.absolute().parent.parent
    if (run / "run.json").exists() and state["run"] != read_run_json(run)["id"]:
        raise CorruptFileError(
            f"{checkpoint} is that of another run than {run / 'run.json'}; put back the one that "
            f"was changed"
        )
    return sums


def step_folder(parent: Path, step: int) -> Path:
    """The place of a step: ``parent/step-000020``."""
    return parent / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step of such a place, whatever its ending."""
    return int(path.name.removeprefix("step-").partition(".")[0])


def step_paths(parent: Path, ending: str = "") -> list[Path]:
    """The places of all steps in a folder, by step; copies by other names are not ours."""
    places = parent.glob(f"step-*{ending}")
    return sorted(
        (path for path in places if _STEP.fullmatch(path.name.removesuffix(ending))), key=step_of
    )


_STEP = re.compile(r"step-\d{6,}", re.ASCII)
