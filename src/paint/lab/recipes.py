"""The recipes of a comparison: read together, with the settings that they share."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from operator import attrgetter
from typing import Any

from paint.config.recipe import (
    apply_settings,
    find_recipe,
    find_recipes,
    read_recipe,
    settings_by_name,
)
from paint.config.schema import Config, LogConfig
from paint.core.errors import ConfigError, naming
from paint.data.contexts import with_source
from paint.lab.sweep import distinct_names, names_of, row_name, sweep_combinations
from paint.resolve.check import Resolved, check_config

SHARED = (
    *("model.path", "model.dtype", "model.date"),
    *("data.path", "data.weights", "data.problem_field", "data.solution_field"),
    *("data.answer_field", "data.id_field", "data.limit"),
    *("grading.grader", "grading.weights", "grading.options"),
    "conversation",  # its environment may reward, and tools help
)
"""Settings that all rows of a comparison share: their scores could not be compared otherwise."""


def read_recipes(
    recipes: Sequence[str | Config],  # shipped recipes, TOML files, folders of them, or configs
    base: str = "",  # a recipe whose settings take the place of those that the others omit
    stored: str = "",  # ``rollout.stored`` of those that can learn from another policy
    controls: Sequence[str] = (),
    sweep: Any = None,  # a dict of values of settings, by their full names
    change: Callable[[Config], Config] = lambda config: config,  # gives each its shared settings
) -> list[tuple[str, Resolved]]:
    """Read and check the recipes of a comparison, and give them the settings that they share.

    With a sweep, each recipe is repeated with every combination of the values. With controls, the
    last row is repeated with each as its ``context.source``; the repetitions, called NAME-SOURCE,
    stand before it. A row has the name of its recipe and of what it varies, such as
    learning_rate=2e-4.

    Raises:
        ConfigError: a recipe cannot have a setting, which it names, or two rows are equal.
    """
    if not recipes:
        raise ConfigError("nothing to compare; name recipes, before the flags")
    named = _read_all(recipes, base, change)
    # All are checked before the first is trained.
    runs = [(name, _checked(name, config, stored)) for name, config in _swept(named, sweep)]

    name, last = runs[-1]
    if controls and not last.algorithm.needs_context:
        raise ConfigError(f"{name} has no teacher that reads a context; name one that has last")
    # The controls take the last recipe's place in all but what its teacher reads.
    for source in controls:
        control = replace(last.config, context=with_source(last.config.context, source))
        label = f"{name}-{source.replace('_', '-')}"
        runs.insert(-1, (label, _checked(label, control)))
    require_shared([(name, run.config) for name, run in runs])
    for (name, run), (other_name, other) in combinations(runs, 2):
        if run.config == other.config:
            raise ConfigError(
                f"{name} and {other_name} have the same settings, so their rows would be equal; "
                f"leave one out"
            )
    return runs


def require_shared(runs: Sequence[tuple[str, Config]]) -> None:
    """Raise ConfigError for a row whose model, problems or grader are not those of the first."""
    first_name, first = runs[0]
    for name, config in runs:
        for setting in SHARED:
            mine, others = (attrgetter(setting)(one) for one in (config, first))
            if mine != others:
                raise ConfigError(
                    f"{setting} of {name} is {mine!r}, and that of {first_name} {others!r}; runs "
                    f"of an experiment have the same model, date, problems, grader and environment"
                )


def _read_all(
    recipes: Sequence[str | Config], base: str, change: Callable[[Config], Config]
) -> list[tuple[str, Config]]:
    """Return the recipes with their shared settings, by name; configs are named by settings."""
    start = read_recipe(find_recipe(base)) if base else None
    read, unnamed = [], []
    for recipe in recipes:
        if isinstance(recipe, Config):
            # The comparison has folders and seeds of its own.
            config = change(replace(recipe, log=LogConfig())).changed("train", seed=0)
            unnamed.append(config)
            read.append(("", config))
        else:
            for path in find_recipes(recipe):
                # A setting of the recipe may not go with one that the base alone has.
                with naming(f"{path.stem} on {base}" if base else path.stem):
                    read.append((path.stem, change(read_recipe(path, start))))
    names = iter(names_of(unnamed))
    return [(name or next(names), config) for name, config in read]


def _swept(named: Sequence[tuple[str, Config]], sweep: Any) -> list[tuple[str, Config]]:
    if not sweep:
        return list(named)
    swept_values = sweep_combinations(sweep)
    rows: list[tuple[str, Config]] = []
    for recipe, config in named:
        with naming(recipe):
            configs = [apply_settings(config, values) for values in swept_values]
        names = []
        for swept in configs:
            table = settings_by_name(swept)
            # Values as the config has them: 2e-4, whether it was written so or as 0.0002.
            name = row_name({setting: table[setting] for setting in swept_values[0]})
            names.append(name if len(named) == 1 else f"{recipe},{name}")
        rows += zip(distinct_names(names), configs, strict=True)
    return rows


def _checked(name: str, config: Config, stored: str = "") -> Resolved:
    """Resolve a recipe, with completions to train on where its method can learn from them."""
    with naming(name):
        run = check_config(config)
    # GRPO learns from its own completions, and SFT from none: they keep their engine.
    if stored and run.learns_off_policy:
        return _checked(name, config.changed("rollout", engine="stored", stored=stored))
    return run
