"""Reading of run folders (docs/reference/run-folder.md).

Checkpoints and rollouts get their names when they are complete, so a kill leaves the last complete
ones. Run folders are written by paint.training (run_log, checkpoint).
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from paint.config.collapse import collapse_warnings
from paint.config.recipe import WRITTEN_HINT, differences, executables_of, from_table, to_table
from paint.config.schema import Config, as_paths
from paint.core.errors import PaintError
from paint.core.extensions import NO_OPTIONS, is_passed, option_fields
from paint.core.storage import (
    CorruptFileError,
    digest,
    is_locked,
    read_growing_jsonl,
    read_json,
    verify_checksums,
)
from paint.core.trust import Executable, is_remembered, read_names, tell_left_out, trusts_records

CHANGEABLE_ON_RESUME = {
    "train.steps",
    "rollout.urls",
    "rollout.server_gpus",
    "rollout.max_logprob_mismatch",
    "model.shard",
    "model.path",
    "data.path",
    "health.stop_on",
}
"""Settings that may change when a run is resumed; none of them changes a result: what is at the
paths must have the digests that run.json has."""

FACTS = {"id", "config", "problems", "context", "model", "versions"}  # required keys of run.json
ROWS = "data.jsonl"  # in a run's folder, the rows that were passed in Python
OWN_ROWS = "own_rows"  # key of run.json: data.path is ``ROWS`` in the folder, wherever that lies

INPUTS = {"context": "file", "validation": "path", "health": "drift_path"}
"""Settings that name files of which a run keeps copies, by section."""

# NAME=FILE:COLUMN,COLUMN. A colon without a comma after it belongs to the file.
_FILE = re.compile(r"(?:[\w-]+=)?(?P<file>.*?)(?::[^:/]*,[^:/]*)?", re.DOTALL)

START_ANEW = "put it back as it was, or start a new run"


class RunError(PaintError, RuntimeError):
    """A run folder cannot be written or resumed; the message has a hint."""


def read_run_json(folder: Path) -> dict[str, Any]:
    """Read run.json; raise RunError without one, CorruptFileError if it is broken."""
    path = folder / "run.json"
    if not path.exists():
        raise RunError(f"{folder} holds no run (no run.json)")
    run_info = read_json(path, START_ANEW)
    if not isinstance(run_info.get("config"), dict) or not run_info.keys() >= FACTS:
        raise CorruptFileError(
            f"{path} holds no run that this version of paint can read; {START_ANEW}"
        )
    return run_info


def run_of(path: Path) -> Path | None:
    """Return the run that a folder is, or is a checkpoint of; None if it is neither."""
    if (path / "run.json").exists():
        return path
    # A path such as "." has no parents before it is resolved.
    run = path.resolve().parent.parent
    if (path / "state.json").exists() and (run / "run.json").exists():
        return run
    return None


def read_run(folder: Path, *, is_compared: bool = False) -> Config:
    """Read the resolved config of a run; nothing that it names is imported.

    Code that it names is not taken later on, unless the run is the user's own or the user vouches
    for it (paint.core.trust). The options of such code are left out, unless the run is the user's
    own, the call trusts records, or the config is compared with another one only.

    Rows that were passed in Python, and copies of ``INPUTS``, are found in the run's folder.
    """
    run_info = read_run_json(folder)
    source = str(folder / "run.json")
    config = from_table(run_info["config"], source=source, hint=WRITTEN_HINT)
    # An object that was passed in this process is the user's own, whatever file names it.
    names = [code.name for code in executables_of(to_table(config)) if not is_passed(code.name)]
    if names:
        is_own = is_remembered(run_info["config"])
        read_names(names, folder / "run.json", is_own=is_own)
        if not (is_own or is_compared or trusts_records()):
            config = _without_options(config, names, folder / "run.json")
    if run_info.get(OWN_ROWS):
        config = config.changed("data", path=str(folder / ROWS))
    for section, key in INPUTS.items():
        value = getattr(getattr(config, section), key)
        found = [_found(folder, section, spec) for spec in as_paths(value)]
        if found != list(as_paths(value)):
            named = tuple(found) if isinstance(value, tuple) else found[0]
            config = config.changed(section, **{key: named})
    return config


def _without_options(config: Config, names: Sequence[str], record: Path) -> Config:
    for section in fields(Config):
        settings = getattr(config, section.name)
        for key, owner in option_fields(type(settings)).items():
            named = getattr(settings, owner)
            owners = named if isinstance(named, tuple) else (named,)
            if not set(names).isdisjoint(owners):
                tell_left_out(f"{section.name}.{key}", getattr(settings, key), record, owners)
                config = config.changed(section.name, **{key: NO_OPTIONS})
    return config


def _found(folder: Path, section: str, spec: str) -> str:
    path, copy = _input_file(folder, section, spec)
    if not copy.is_file() or path.exists():
        return spec
    before, after = _FILE.fullmatch(spec).span("file")  # type: ignore[union-attr]
    return f"{spec[:before]}{copy}{spec[after:]}"


def foreign_code(folder: Path) -> list[Executable]:
    """Return the code that a run names, unless this user has written its run.json here."""
    if is_remembered(read_run_json(folder)["config"]):
        return []
    return executables_of(to_table(read_run(folder)))


def copy_inputs(config: Config, folder: Path) -> None:
    """Copy the files of ``INPUTS`` into a run's folder, where they are found if it is moved."""
    for section, key in INPUTS.items():
        for spec in as_paths(getattr(getattr(config, section), key)):
            path, copy = _input_file(folder, section, spec)
            if path.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def _input_file(folder: Path, section: str, spec: str) -> tuple[Path, Path]:
    """Return the file of FILE, FILE:COLUMNS or NAME=FILE, and where its copy is."""
    path = Path(_FILE.fullmatch(spec)["file"])  # type: ignore[index]
    return path, folder / "inputs" / section / path.name


def fixed_differences(before: Config, after: Config) -> list[str]:
    changes = differences(before, after)
    return [line for line in changes if line.split(":")[0] not in CHANGEABLE_ON_RESUME]


def run_id(config: Mapping[str, Mapping[str, Any]], *digests: str) -> str:
    """Return the identity of a run: a digest of its config, its problems and its model."""
    fixed = {}
    # With other servers, paths or steps, a run that is resumed is the same run.
    for section, keys in config.items():
        fixed[section] = {
            key: value
            for key, value in keys.items()
            if f"{section}.{key}" not in CHANGEABLE_ON_RESUME
        }
    return digest(json.dumps(fixed, sort_keys=True), *digests)[:16]


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Read all complete lines of metrics.jsonl; raise CorruptFileError for one that is no JSON."""
    return list(read_growing_jsonl(folder / "metrics.jsonl", START_ANEW))


@dataclass(frozen=True)
class RunStatus:
    name: str  # its path below the folder
    state: str  # "running", "done", "stopped", or "damaged" where a file of it cannot be read
    step: int
    steps: int
    changed: float  # time of the last step, or of the start, in seconds since 1970
    metrics: dict[str, float]  # the last value of every metric
    warnings: tuple[str, ...]  # names of the collapse warnings of the last step
    config: Config | None  # None of a damaged run


def list_runs(folder: Path) -> list[RunStatus]:
    """List the runs in a folder and below it, the last to change first."""
    found = []
    for path in folder.rglob("run.json"):
        try:
            found.append(read_status(path.parent, folder))
        except PaintError:
            name = _shown_name(path.parent, folder)
            found.append(RunStatus(name, "damaged", 0, 0, path.stat().st_mtime, {}, (), None))
    return sorted(found, key=lambda status: -status.changed)


def read_status(folder: Path, above: Path) -> RunStatus:
    """Return a run at a glance, named by its path below a folder. Raises PaintError."""
    config, history = read_run(folder), folder / "metrics.jsonl"
    steps = config.train.steps
    rows = read_metrics(folder) if history.exists() else []
    step = int(rows[-1]["step"]) if rows else 0
    last = latest_checkpoint(folder)
    is_done = last is not None and step_of(last) >= steps
    state = "running" if is_locked(folder) else "done" if is_done else "stopped"
    changed = (history if rows else folder / "run.json").stat().st_mtime
    metrics = {name: value for row in rows for name, value in row.items()}
    name = _shown_name(folder, above)
    warnings = tuple(collapse_warnings(rows))
    return RunStatus(name, state, step, steps, changed, metrics, warnings, config)


def _shown_name(folder: Path, above: Path) -> str:
    # The run itself may be named in place of a folder above it.
    return folder.resolve().name if folder == above else str(folder.relative_to(above))


def read_history(folder: Path, steps: int) -> list[dict[str, float]]:
    """Read the lines of metrics.jsonl of the first ``steps`` steps; RunError if one is missing."""
    path = folder / "metrics.jsonl"
    # Rows after these are not read, as their steps are repeated.
    rows = list(islice(read_growing_jsonl(path, START_ANEW), steps))
    if [row.get("step") for row in rows] != list(range(1, steps + 1)):
        raise RunError(
            f"{path} lacks steps before a checkpoint of step {steps}; put it back as it was, or "
            f"delete later checkpoints: `paint resume {folder}` repeats their steps"
        )
    return rows


def checkpoints(folder: Path) -> list[Path]:
    return [path for path in step_paths(folder / "checkpoints") if path.is_dir()]


def latest_checkpoint(folder: Path) -> Path | None:
    return max(checkpoints(folder), key=step_of, default=None)


def checkpoint_of(target: Path) -> Path:
    """Return the checkpoint that a path names: itself, or the last one of a run."""
    run = run_of(target)
    if run is None:
        raise RunError(f"{target} is neither a run nor a checkpoint in one; name runs/NAME")
    checkpoint = latest_checkpoint(run) if run == target else target
    if checkpoint is None:
        raise RunError(f"{target} has no checkpoint yet; `paint resume {target}` continues it")
    return checkpoint


def require_checkpoint(checkpoint: Path, part: str = "") -> dict[str, str]:
    """Check the files, step and run of a checkpoint, or of a folder in it; return the SHA-256s."""
    hint = f"delete {checkpoint} to resume from the previous one"
    sums = verify_checksums(checkpoint, hint, part)
    state = read_json(checkpoint / "state.json", hint)
    # A checkpoint that was copied may have another name, and no run above it.
    if _STEP.fullmatch(checkpoint.name) and state["step"] != step_of(checkpoint):
        raise CorruptFileError(f"{checkpoint} belongs to step {state['step']}; {hint}")
    run = checkpoint.absolute().parent.parent
    if (run / "run.json").exists() and state["run"] != read_run_json(run)["id"]:
        raise CorruptFileError(f"{checkpoint} belongs to another run than {run / 'run.json'}")
    return sums


def step_folder(parent: Path, step: int) -> Path:
    """Return the path of a step: ``parent/step-000020``."""
    return parent / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """Return the step of such a path, with any suffix."""
    return int(path.name.removeprefix("step-").partition(".")[0])


def step_paths(parent: Path, ending: str = "") -> list[Path]:
    """List the paths of all steps in a folder, by step; other names are ignored."""
    places = parent.glob(f"step-*{ending}")
    return sorted(
        (path for path in places if _STEP.fullmatch(path.name.removesuffix(ending))), key=step_of
    )


_STEP = re.compile(r"step-\d{6,}", re.ASCII)
