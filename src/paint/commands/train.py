import time
from pathlib import Path

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe, rows_of
from paint.commands.api.results import Run
from paint.config.recipe import differences, read_recipe
from paint.config.run_folder import RunError
from paint.config.schema import Config
from paint.core.errors import wrap_errors
from paint.core.storage import require_free
from paint.training.callbacks import load_callbacks, tell_callbacks
from paint.training.launcher import run_training

HAS_STEPS = True
SHOWN_CHANGES = 6


def train(
    recipe: arguments.AnyRecipe,
    *,
    output_dir: arguments.OutputDir = None,
    callbacks: arguments.Callbacks = (),
    gpus: arguments.Gpus = 0,
    **sections: arguments.Sections,
) -> Run:
    """Train by a recipe, and return the run.

    Each setting of the recipe can be given: ``--train.steps 4`` on the command line, or
    ``train={"steps": 4}`` in Python, where an algorithm, engine, grader or divergence may be an
    object instead of a name. Defaults are the recipe's; without a recipe, the paper's
    but for objective.clip_mode.

    Example: paint train demo-paint --train.steps 2 --log.name first

    Args:
        output_dir: Folder of the run. None: log.folder/log.name, where no name is
            RECIPE-DATE-TIME.

    Raises:
        PaintError: ConfigError, DataError, RunError and others, before the first step wherever that
            is possible; the message has a hint.
        Interrupted: after Ctrl-C, when the current step is finished and saved; ``resume`` continues
            the run.
    """
    callbacks = load_callbacks(callbacks)
    start = open_recipe(recipe)
    has_rows = rows_of(sections.get("data")) is not None
    of_rows = {"data": sections.pop("data")} if has_rows else {}
    config, checked = configure(start.config, Path(), sections)
    name = config.log.name or f"{start.path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(output_dir or Path(config.log.folder) / name)
    # With --gpus, the same command continues a run; rows would replace those that it has.
    with wrap_errors(folder, RunError, "choose another with --log.folder"):
        has_run = (folder / "run.json").exists()
    if has_run:
        require_free(folder)
    if has_run and (has_rows or not gpus):
        raise RunError(f"{folder} already holds a run; `paint resume {folder}` continues it")

    if has_rows:  # which are written into the folder
        config, checked = configure(config, folder, of_rows)
    log = {"folder": str(folder.parent), "name": folder.name}
    note = _changes(start.path, config.changed("log", **log))
    checked = checked.changed("log", **log)
    run_training(checked, folder, gpus, start.path, callbacks, note=note)
    run = Run(folder)
    tell_callbacks(callbacks, "on_end", run)
    return run


def _changes(recipe: Path, config: Config) -> str:
    """Return how the settings differ from the recipe's; "" if only the run's folder does."""
    changes = [
        change
        for change in differences(read_recipe(recipe), config)
        if not change.startswith(("log.folder:", "log.name:"))
    ]
    if not changes:
        return ""
    rest = len(changes) - SHOWN_CHANGES
    if rest > 0:
        changes = [*changes[:SHOWN_CHANGES], f"and {rest} more (run.json)"]
    return f"not as in {recipe.stem}: {'; '.join(changes)}"
