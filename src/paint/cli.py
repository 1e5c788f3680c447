"""``paint``: every verb calls one function."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

from paint import PaintError, Stopped
from paint.config import Config, ConfigError, find_recipe, read_recipe, shipped_recipes

USAGE = """\
paint: on-policy self-distillation with a partly masked solution

  paint train RECIPE [--section.field VALUE ...]   train; `paint train RECIPE --help` explains every option
  paint resume RUN [--steps N]                     go on with a run from its last checkpoint
  paint lab [RECIPE ...]                           train and evaluate on the embedded model, on any laptop

RECIPE is a TOML file, or the name of one that comes with paint:
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. What the user can mend is one clear message and exit status 2."""
    verb, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    verbs = {"train": train, "resume": resume, "lab": lab}
    if verb in ("-h", "--help"):
        print(USAGE + "".join(f"  {name}\n" for name in shipped_recipes()), end="")
        return 0
    if verb not in verbs:
        print(f"paint: unknown verb {verb!r}; there are {', '.join(verbs)} (see paint --help)", file=sys.stderr)
        return 2
    try:
        return verbs[verb](rest)
    except PaintError as error:
        print(f"paint {verb}: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        print(f"paint {verb}: interrupted", file=sys.stderr)
        return 130


def train(arguments: list[str]) -> int:
    """Train by a recipe; flags override its values."""
    recipe = find_recipe(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else None
    config = tyro.cli(
        Config,
        prog=f"paint train {recipe or 'RECIPE'}",
        description="Train by a recipe. Defaults shown are the recipe's; without a recipe, the paper's.",
        default=read_recipe(recipe) if recipe else Config(),
        args=arguments,
    )
    if recipe is None:
        raise ConfigError("no recipe given; start from one, e.g. `paint train lab-paint`")
    name = config.log.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = dataclasses.replace(config, log=dataclasses.replace(config.log, name=name))
    return _run(config, Path(config.log.folder) / name, resume=False)


def resume(arguments: list[str]) -> int:
    """Go on with a run."""
    parser = argparse.ArgumentParser(prog="paint resume", description="Go on with a run, bit by bit as it was.")
    parser.add_argument("run", type=Path, help="the run's folder (it holds run.json)")
    parser.add_argument("--steps", type=int, help="optimizer steps in all, if more than the run was started with")
    parser.add_argument("--urls", nargs="+", help="addresses of the vLLM servers, where they have changed")
    options = parser.parse_args(arguments)
    from paint.runlog import read_run  # torch takes seconds to import: not for --help

    config = read_run(options.run)
    if options.urls is not None:
        config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, urls=tuple(options.urls)))
    if options.steps is not None:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=options.steps))
    return _run(config, options.run, resume=True)


def lab(arguments: list[str]) -> int:
    """Train and evaluate recipes on the embedded model, and print one table."""
    parser = argparse.ArgumentParser(
        prog="paint lab",
        description="Train and evaluate on the embedded model: each recipe from the same base, on the same problems.",
    )
    parser.add_argument("recipes", nargs="*", default=["lab-paint"], help="recipes to compare (default: lab-paint)")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the runs go (default: runs)")
    parser.add_argument("--seed", type=int, default=0, help="of data order, rollouts and evaluation (default: 0)")
    parser.add_argument(
        "--problems", type=int, default=100, help="held-out problems evaluated, at most 200 (default: 100)"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=12,
        help="answers per problem: the k of Avg@k (default: 12, the paper's)",
    )
    options = parser.parse_args(arguments)
    from paint.lab import run_lab

    folder = options.folder / f"lab-{time.strftime('%Y%m%d-%H%M%S')}"
    recipes = [find_recipe(name) for name in options.recipes]
    run_lab(recipes, folder, seed=options.seed, problems=options.problems, samples=options.samples)
    return 0


def _run(config: Config, folder: Path, *, resume: bool) -> int:
    from paint.train import train as run

    run(config, folder, resume=resume)
    return 0


if __name__ == "__main__":
    sys.exit(main())
