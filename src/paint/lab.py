"""The embedded lab: a tiny model, a tiny family of problems, every method, one table.

The problems are chains of operations modulo 100. The model (made by ``paint.pretrain``, shipped with the package)
works them line by line and slips now and then; the references merge two operations into one formula. So the model is
right about half of the time alone, clearly more often with a reference in view, and has a style of its own: what
self-distillation needs, on a scale where a whole experiment takes a minute.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paint.benchmarks import load_benchmark
from paint.config import Config
from paint.display import Display
from paint.evaluate import PAPER_SAMPLING, Protocol, generate, grade, open_evaluation
from paint.figures import Answers, avg_at_k, compare
from paint.grading import Grader
from paint.policy import Policy, load_adapter, load_policy
from paint.recipe import read_recipe
from paint.rollout import LocalEngine
from paint.train import train


def run_lab(recipes: Sequence[Path], folder: Path, *, seed: int, problems: int, samples: int) -> dict[str, Answers]:
    """Train each recipe from the same base, evaluate base and all on the same held-out problems, print a table.

    The last checkpoint is what counts: none is picked by its result.
    """
    display = Display()
    answers, evaluations = folder / "evaluation", dict[str, Answers]()
    for recipe in recipes:
        config = read_recipe(recipe)
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
        policy = load_policy(config.model, seed=seed)
        if not evaluations:
            evaluations["base"] = held_out(policy, config, answers / "base", None, problems, samples, display)
        display.note(f"training {recipe.stem}: {config.train.steps} steps of {config.train.batch_size} rollouts")
        began = time.monotonic()
        checkpoint = train(config, folder / recipe.stem)
        display.note(f"trained in {time.monotonic() - began:.0f} s, with start-up")
        adapter = checkpoint / "adapter"
        load_adapter(policy, adapter)
        evaluations[recipe.stem] = held_out(policy, config, answers / recipe.stem, adapter, problems, samples, display)
    print_table(display.console, evaluations, samples)
    display.note(f"runs and answers: {folder}")
    return evaluations


def held_out(
    policy: Policy, config: Config, folder: Path, adapter: Path | None, problems: int, samples: int, display: Display
) -> Answers:
    """The lab's evaluation: the paper's sampling, in the lab's mode (without thinking), on held-out problems."""
    benchmark = load_benchmark("lab", limit=problems)
    sampling = dataclasses.replace(PAPER_SAMPLING, max_new_tokens=config.rollout.max_new_tokens)
    protocol = Protocol(samples, thinking=False, sampling=sampling, seed=config.train.seed)
    place = folder / benchmark.name
    opened = open_evaluation(policy, place, config.model.path, adapter, benchmark.problems, protocol, "local")
    with opened as store, Grader() as grader:
        generate(policy, LocalEngine(policy, batch_size=400), store, protocol, display, f"answers of {folder.name}")
        return grade(store, grader, display)


def print_table(console: Console, evaluations: dict[str, Answers], samples: int) -> None:
    """One row a policy: Avg@k, the paired gain over the base, tokens an answer. The same seed prints the same."""
    table = Table(title=f"Avg@{samples} on held-out problems, in % with 95 % interval")
    for column in ("", f"Avg@{samples}", "gain over base", "tokens an answer"):
        table.add_column(column, justify="right" if column else "left")
    for name, evaluation in evaluations.items():
        gain = compare([evaluations["base"].correct], [evaluation.correct]).difference
        table.add_row(
            name,
            avg_at_k(evaluation.correct).points(),
            gain.points(sign=True) if name != "base" else "",
            f"{evaluation.tokens.mean():.0f}",
        )
    console.print(table)
