"""What would the paper's runs cost? Arithmetic on the shipped recipes; nothing was run or measured.

    python benchmarks/cost.py [--markdown]

For each Qwen3 model: the training of its recipes, the evaluation of their checkpoints and, for
1.7B, the paper's ablations. Tokens and FLOPs follow from the recipe, the model's shape and the
lengths below, which are assumptions. Hours follow from a roofline: passes over whole sequences are
bound by FLOPs, decoding by FLOPs or by the bytes that each token moves.

Lengths are means, and their spread is left out. Decoding reads a cache in proportion to the square
of a completion's length, so evaluation costs more the more lengths differ. Completions that are cut
at a limit are taken to be as long as the smaller of mean and limit, which their own mean never
exceeds.

Left out, so that every other time is a floor: scheduling, kernel launches and sampling, the longest
completion, for which all others wait (the figures at the limit bound it), padding, sums over ranks,
optimizer, grading, start-up, the trainer's share of the engine's memory. Also variants of the
teacher and full tuning, which no recipe here uses.
"""

import argparse
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from paint.config import Config, ConfigError, Evaluation
from paint.experiments.ablations import GRIDS
from paint.planning import work
from paint.planning.shapes import SHAPES
from paint.planning.work import HIGH, LIMIT, LOW, MACHINES, Generation, Lengths, Work, seconds
from paint.recipe import find_recipe, read_recipe

METHODS = ("paint", "opsd", "grpo", "sft")
PROBLEMS = 30  # AIME 2024, AIME 2025, HMMT February 2025: each


KNOWN = ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
"""The paper's models."""

GPUS = {name: MACHINES[name] for name in ("H100", "H200")}


def training(config: Config, lengths: Lengths) -> Work:
    """A recipe's run. Raises ConfigError for a setting that this arithmetic does not know."""
    model = config.model
    plain = not config.teacher.reason_first and config.teacher.weights == "frozen"
    if model.path not in KNOWN or model.tuning != "lora" or model.dtype != "bfloat16" or not plain:
        raise ConfigError(
            f"model.path {model.path}: this arithmetic knows only LoRA on {', '.join(KNOWN)} in "
            f"bfloat16, with a frozen teacher that does not reason first; leave the rest at that"
        )
    return work.training(config, SHAPES[model.path], lengths)


def evaluation(config: Config, lengths: Lengths, *, policies: int, sets: int, at_once: int) -> Work:
    """Checkpoints of a recipe on benchmarks, one after the other as `paint eval` asks them."""
    options, model = Evaluation(), config.model
    shape = SHAPES[model.path]
    length = min(lengths.contest, options.rollout.max_new_tokens)
    asked = Generation(
        policies * sets, PROBLEMS * options.samples, at_once, lengths.problem, length
    )
    return Work(shape, shape.adapters(model.lora_rank, model.lora_targets), (asked,))


def ablations(paint: Config) -> list[Config]:
    """The cells of the paper's tables (section 'Ablation Studies'), each once: 16 of 18."""
    papers = [grid for grid in GRIDS.values() if grid.is_papers]
    points = [point for grid in papers for point in grid.points.values()]
    return list(dict.fromkeys(point.of(paint) for point in points))


def plan(model: str, lengths: Lengths) -> dict[str, list[Work]]:
    """What is done with a model, by title.

    `paint train` and `paint eval` for each recipe, and `paint ablate` for 1.7B.
    """
    recipes = {method: read_recipe(find_recipe(f"{method}-{model}")) for method in METHODS}
    works = {
        f"{method}: {config.train.steps:,} steps": [training(config, lengths)]
        for method, config in recipes.items()
    }
    paint, at_once = recipes["paint"], Evaluation().rollout.batch_size
    left = sum(
        math.ceil(config.train.steps / config.train.checkpoint_every) for config in recipes.values()
    )
    for title, policies in (
        (f"their {left} checkpoints: three benchmarks", left),
        ("base: three benchmarks", 1),
    ):
        works[title] = [evaluation(paint, lengths, policies=policies, sets=3, at_once=at_once)]
    if model == "qwen3-1.7b":
        cells, at_once = ablations(paint), paint.rollout.batch_size
        works[f"ablations: {len(cells)} cells, one seed"] = [
            training(cell, lengths) for cell in cells
        ]
        works["their last checkpoints, base: AIME 2024"] = [
            evaluation(paint, lengths, policies=len(cells) + 1, sets=1, at_once=at_once)
        ]
    return works | {"all": [work for row in works.values() for work in row]}


def figures(cases: Sequence[Sequence[Work]]) -> list[str]:
    """A row's cells, from its work at low and high lengths and at the limit."""
    cells = [
        span([sum(work.generated for work in case) / 1e6 for case in cases]),
        span([sum(work.scored for work in case) / 1e6 for case in cases]),
        span([sum(work.flops for work in case) / 1e15 for case in cases]),
    ]
    for machine in GPUS.values():
        for gpus in (1, 8):
            cells.append(
                span([sum(seconds(work, machine, gpus) for work in case) / 3600 for case in cases])
            )
    return cells


def span(values: Sequence[float]) -> str:
    """Low, high and limit as "1.0 to 2.0 (3.0)", in two digits or whole numbers; a dash for 0."""
    low, high, limit = (
        "<0.01" if x < 0.01 else f"{x:#.2g}".rstrip(".") if x < 99.5 else f"{x:,.0f}"
        for x in values
    )
    return f"{low} to {high} ({limit})" if values[-1] else "-"


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(
        description="Tokens, FLOPs and hours of the paper's runs: arithmetic, not run."
    )
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/results.md")
    markdown = parser.parse_args().markdown
    console = Console(width=200)
    hours = [f"hours, {gpus} {name}" for name in GPUS for gpus in (1, 8)]
    headings = ["", "generated, M tokens", "scored, M tokens", "PFLOP", *hours]
    for path in KNOWN:
        plans = [plan(path.split("/")[1].lower(), lengths) for lengths in (LOW, HIGH, LIMIT)]
        rows = [[title, *figures([plan[title] for plan in plans])] for title in plans[0]]
        table = Table(
            *headings, title=f"{path}: low to high (at the limit). Not run: a floor, by arithmetic"
        )
        for row in rows:
            table.add_row(*row, end_section=row is rows[-2])
        if markdown:
            print(f"**{path}**\n\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
            print("\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n")
        else:
            console.print(table)


if __name__ == "__main__":
    main()
