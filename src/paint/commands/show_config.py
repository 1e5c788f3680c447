from pathlib import Path
from typing import Any

from paint.commands.api import arguments
from paint.commands.api.configure import RUN, configure, open_recipe
from paint.commands.api.results import Run
from paint.config.recipe import read_recipe, to_table, toml_of
from paint.config.run_folder import read_run
from paint.config.schema import Config

NAME = "config"


def show_config(
    recipe: str | Path | Run | Config,
    *,
    machine: bool = False,
    **sections: arguments.Sections,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Show settings as a recipe, with the source of each value as a comment.

    A source is default (the paper's setting, or ours), recipe, run, given (a flag or an argument),
    or machine: what "auto" becomes here. A setting that is None stands in a comment, as TOML has no
    None. `paint config runs/first > again.toml` writes the settings of a run, by which
    `paint train again.toml` trains another one.

    Example: paint config demo-paint --train.steps 2

    Args:
        recipe: TOML file, the name of a recipe that comes with paint, or the folder of a run; in
            Python also a paint.Config or a paint.Run. On the command line it stands before the
            flags.
        machine: Also choose what is "auto" by this machine, as a run would; takes seconds.

    Returns:
        By section and setting: its ``value`` and its ``source``.
    """
    start = open_recipe(recipe.path if isinstance(recipe, Run) else recipe, takes_run=True)
    is_run = start.path.name == RUN
    config, run = configure(start.config, Path(), sections)
    steps = [
        ("default", Config()),
        ("run", read_run(start.path.parent)) if is_run else ("recipe", read_recipe(start.path)),
        ("given", config),
    ]
    if machine:
        from paint.inference.machine import find_machine
        from paint.resolve.check import require_trainable, resolve

        require_trainable(run)
        steps.append(("machine", resolve(run, find_machine()).config))
    # The source of a value is the last step that changed it: a flag with the recipe's own value
    # counts as the recipe's.
    shown: dict[str, dict[str, dict[str, Any]]] = {}
    for source, changed in steps:
        for section, settings in to_table(changed).items():
            values = shown.setdefault(section, {})
            for key, value in settings.items():
                if key not in values or values[key]["value"] != value:
                    values[key] = {"value": value, "source": source}
    if is_run:  # another run is called by the recipe and the time
        shown["log"]["name"] = {"value": None, "source": "default"}
    return shown


def report(shown: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = []
    for section, settings in shown.items():
        lines.append(f"[{section}]")
        for key, setting in settings.items():
            # A recipe has one of both.
            is_replaced = key == "steps" and settings["epochs"]["value"] is not None
            if is_replaced:
                text = f"# {key}: by epochs"
            elif setting["value"] is None:
                text = f"# {key} = None"
            else:
                text = f"{key} = {toml_of(setting['value'])}"
            lines.append(f"{text:50}  # {setting['source']}")
        lines.append("")
    return "\n".join(lines).rstrip()
