"""The recipes of a comparison: read together, with the settings that they share."""

from collections.abc import Sequence
from dataclasses import replace

from paint.config.recipe import find_recipe, from_table, read_recipe
from paint.config.schema import Config
from paint.core.errors import ConfigError
from paint.data.contexts import with_source
from paint.training.check import check_config


def read_recipes(
    names: Sequence[str],  # shipped recipes or TOML files
    *,
    base: str = "",  # a recipe whose settings take the place of those that the others omit
    model: str = "",  # ``model.path`` of all; "" is each recipe's own
    data: str = "",  # ``data.path``, likewise
    stored: str = "",  # ``rollout.stored`` of those that can learn from another policy
    controls: Sequence[str] = (),
) -> list[tuple[str, Config]]:
    """Read the recipes of a comparison, and give them the settings that they share.

    With controls, the last recipe is repeated with each as its ``context.source``; the repetitions,
    called NAME-SOURCE, stand before it.
    """
    if not names:
        raise ConfigError("nothing to compare; name recipes, before the flags")
    start = read_recipe(find_recipe(base)) if base else None
    shared = {key: {"path": path} for key, path in (("model", model), ("data", data)) if path}
    rollouts = {"rollout": {"engine": "stored", "stored": stored}} if stored else {}

    runs = []
    for path in map(find_recipe, names):
        config = read_recipe(path, start)
        changes = dict(shared)
        if check_config(config).learns_off_policy:
            changes |= rollouts
        runs.append((path.stem, from_table(changes, source=str(path), base=config)))

    name, last = runs[-1]
    if controls and not check_config(last).algorithm.needs_context:
        raise ConfigError(f"{name} has no teacher that reads a context; name one that has last")
    for source in controls:
        control = replace(last, context=with_source(last.context, source))
        runs.insert(-1, (f"{name}-{source.replace('_', '-')}", control))
    for _, config in runs:
        check_config(config)
    return runs
