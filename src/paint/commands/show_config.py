"""``paint config``."""

from pathlib import Path
from typing import Any

from paint.arguments import AnyRecipe, Data, Model, SectionArgument
from paint.config.recipe import read_recipe, to_table
from paint.config.schema import Config
from paint.configure import configure, open_recipe
from paint.core.errors import format_value

NAME = "config"


def show_config(
    recipe: AnyRecipe,
    *,
    model: Model = None,
    data: Data = None,
    machine: bool = False,
    **sections: SectionArgument,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Show the settings of a run, each with the source of its value.

    A source is default (the paper's setting, or ours), recipe, given (a flag or an argument), or
    machine: what "auto" becomes here.

    Example: paint config demo-paint --train.steps 2

    Args:
        machine: Also choose what is "auto" by this machine, as a run would; takes seconds.

    Returns:
        By section and setting: its ``value`` and its ``source``.
    """
    start = open_recipe(recipe)
    config = configure(start.config, Path(), model, data, sections)
    steps = [
        ("default", Config()),
        ("recipe", read_recipe(start.path)),
        ("given", config),
    ]
    if machine:
        from paint.inference.machine import find_machine
        from paint.training.check import check_training, resolve

        steps.append(
            ("machine", resolve(check_training(config), find_machine(config.rollout.server)).config)
        )
    return _sources(steps)


def _sources(steps: list[tuple[str, Config]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Each setting of the last config, with the last step that changed its value."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for source, config in steps:
        for section, settings in to_table(config).items():
            known = found.setdefault(section, {})
            for key, value in settings.items():
                if key not in known or known[key]["value"] != value:
                    known[key] = {"value": value, "source": source}
    return found


def report(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A line for each setting; the source is shown where it is not the default."""
    lines = []
    for section, settings in found.items():
        lines.append(f"[{section}]")
        for key, setting in settings.items():
            text = f"{key} = {_text_of(setting['value'])}"
            if setting["source"] != "default":
                text = f"{text:50}  # {setting['source']}"
            lines.append(text)
        lines.append("")
    return "\n".join(lines).rstrip()


def _text_of(value: Any) -> str:
    if isinstance(value, dict):  # options of an extension
        inner = ", ".join(f"{name} = {format_value(option)}" for name, option in value.items())
        if inner:
            return f"{{ {inner} }}"
        return "{}"
    return format_value(value)
