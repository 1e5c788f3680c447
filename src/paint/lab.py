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

from paint.config import Config, read_recipe
from paint.data import lab_file, read_problems
from paint.evaluate import PAPER_SAMPLING, Evaluation, avg_at_k, evaluate, paired_difference
from paint.policy import Policy, load_adapter, load_policy
from paint.rollout import LocalEngine
from paint.train import train


def run_lab(recipes: Sequence[Path], folder: Path, *, seed: int, problems: int, samples: int) -> dict[str, Evaluation]:
    """Train each recipe from the same base, evaluate base and all on the same held-out problems, print a table.

    The last checkpoint is what counts: none is picked by its result.
    """
    console = Console(highlight=False, soft_wrap=True)
    evaluations: dict[str, Evaluation] = {}
    for recipe in recipes:
        config = read_recipe(recipe)
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
        policy = load_policy(config.model, seed=seed)
        if not evaluations:
            console.print(f"evaluating the base on {problems} held-out problems, {samples} samples each")
            evaluations["base"] = held_out_evaluation(policy, config, problems, samples, seed)
        console.print(f"training {recipe.stem}: {config.train.steps} steps of {config.train.batch_size} rollouts")
        began = time.monotonic()
        checkpoint = train(config, folder / recipe.stem)
        console.print(f"trained in {time.monotonic() - began:.0f} s, with start-up")
        load_adapter(policy, checkpoint / "adapter")
        console.print(f"evaluating {recipe.stem}")
        evaluations[recipe.stem] = held_out_evaluation(policy, config, problems, samples, seed)
    print_table(console, evaluations, samples)
    console.print(f"run directories: {folder}")
    return evaluations


def held_out_evaluation(policy: Policy, config: Config, problems: int, samples: int, seed: int) -> Evaluation:
    """The lab's evaluation: the paper's sampling, in the lab's mode (without thinking), on held-out problems."""
    held_out = dataclasses.replace(config.data, path=str(lab_file("held_out.jsonl")), limit=problems)
    return evaluate(
        policy,
        LocalEngine(policy, batch_size=400),
        read_problems(held_out).problems,
        samples=samples,
        sampling=dataclasses.replace(PAPER_SAMPLING, max_new_tokens=config.rollout.max_new_tokens),
        thinking=False,
        seed=seed,
    )


def print_table(console: Console, evaluations: dict[str, Evaluation], samples: int) -> None:
    """One row a policy: Avg@k, the paired gain over the base, tokens an answer. The same seed prints the same."""
    table = Table(title=f"Avg@{samples} on held-out problems, in % with 95 % interval")
    for column in ("", f"Avg@{samples}", "gain over base", "tokens an answer"):
        table.add_column(column, justify="right" if column else "left")
    for name, evaluation in evaluations.items():
        gain = paired_difference(evaluations["base"].correct, evaluation.correct)
        table.add_row(
            name,
            avg_at_k(evaluation.correct).points(),
            gain.points(sign=True) if name != "base" else "",
            f"{evaluation.completion_tokens:.0f}",
        )
    console.print(table)
