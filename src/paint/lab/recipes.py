"""The recipes of a comparison: read together, with the settings that they share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config
from paint.core.errors import ConfigError
from paint.data.contexts import with_source
from paint.resolve.check import check_config


def read_recipes(
    names: Sequence[str],  # shipped recipes or TOML files
    *,
    base: str = "",  # a recipe whose settings take the place of those that the others omit
    stored: str = "",  # ``rollout.stored`` of those that can learn from another policy
    controls: Sequence[str] = (),
    change: Callable[[Config], Config] = lambda config: config,  # gives each its shared settings
) -> list[tuple[str, Config]]:
    """Read the recipes of a comparison, and give them the settings that they share.

    With controls, the last recipe is repeated with each as its ``context.source``; the repetitions,
    called NAME-SOURCE, stand before it.

    Raises:
        ConfigError: a recipe cannot have a setting, which it names.
    """
    if not names:
        raise ConfigError("nothing to compare; name recipes, before the flags")
    start = read_recipe(find_recipe(base)) if base else None
    runs = []
    for path in map(find_recipe, names):
        with _of_recipe(path.stem):
            config = change(read_recipe(path, start))
            # GRPO learns from its own completions, and SFT from none: they keep their engine.
            if stored and check_config(config).learns_off_policy:
                config = config.changed("rollout", engine="stored", stored=stored)
        runs.append((path.stem, config))

    name, last = runs[-1]
    if controls and not check_config(last).algorithm.needs_context:
        raise ConfigError(f"{name} has no teacher that reads a context; name one that has last")
    # The controls take the last recipe's place in all but what its teacher reads.
    for source in controls:
        control = replace(last, context=with_source(last.context, source))
        runs.insert(-1, (f"{name}-{source.replace('_', '-')}", control))
    # All of them, before the first is trained.
    for name, config in runs:
        with _of_recipe(name):
            check_config(config)
    return runs


@contextmanager
def _of_recipe(name: str) -> Iterator[None]:
    """Begin the message of an error with the recipe's name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
