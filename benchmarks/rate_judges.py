"""Which choice of a learning rate is better: 256 validation problems, or KL on held-out rollouts?

    python benchmarks/rate_judges.py        # resumes; two calls at once share the work

On the demo, PAINT and OPSD are trained with five rates, for half of the recipe's steps with each
trial seed, and for all of them with each of the seeds that are evaluated. Judges of a trial:

    validation   Avg@2 on 256 problems, the higher the better; the first 64 for comparison
    KL, base     KL(teacher || student) a token, with the method's masks, on rollouts that the base
                 model samples on 128 of these problems, two each; the lower the better
    KL, own      the same on rollouts that the trained student samples

A judge's regret is what its choice loses in Avg@12 on the demo's problems, against the best rate.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import tyro

from slope_against_gain import spearman

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_problems import random_chains
from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import latest_checkpoint
from paint.core.display import Display
from paint.core.storage import lock_folder, write_jsonl
from paint.data.problems import Problem, read_problems
from paint.evaluation.generate import base_as_rank1_adapter, load_eval_policy
from paint.experiments.eval_protocols import demo_protocol
from paint.experiments.report import Result, by_run, shares
from paint.experiments.rollout_bank import Bank, collect, held_out_kl
from paint.experiments.runner import ExperimentRun, run_experiment
from paint.models.weights import load_trained

Runs = dict[str, list[Result]]
METHODS = "demo-paint", "demo-opsd"
FACTORS = (1 / 9, 1 / 3, 1.0, 3.0, 9.0)
TRIALS, SEEDS = (100, 101, 102), (0, 1, 2)
BANK_PROBLEMS, BANK_SAMPLES = 128, 2


def cell(method: str, factor: float, share: float = 1.0) -> ExperimentRun:
    """A method with a multiple of its rate, trained for a share of its steps."""
    config = read_recipe(find_recipe(method))
    train = config.train
    train = replace(
        train, learning_rate=factor * train.learning_rate, steps=round(share * train.steps)
    )
    return ExperimentRun(f"{method}-{train.learning_rate:.1e}", replace(config, train=train))


def judge_by_kl(
    run: ExperimentRun, seed: int, problems: list[Problem], base: Bank, folder: Path
) -> tuple[float, float]:
    """The KL of a trial on the base model's rollouts, and on its own."""
    checkpoint = latest_checkpoint(folder / "trials" / run.name / f"seed-{seed}")
    assert checkpoint is not None
    config, place = run.config, folder / "rollouts" / f"{run.name}-{seed}"
    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    load_trained(policy, checkpoint / "adapter")
    own = collect(policy, config, problems, BANK_SAMPLES, place, Display(enabled=False))
    return held_out_kl(policy, config, base), held_out_kl(policy, config, own)


def report(trials: Runs, final: Runs, path: Path, folder: Path, display: Display) -> None:
    """Print what each judge says of every trial, and what its choices lose."""
    tried = [cell(method, factor, 0.5) for method in METHODS for factor in FACTORS]
    config = tried[0].config
    config = replace(config, model=base_as_rank1_adapter(config.model))
    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    problems = read_problems(replace(config.data, path=str(path)), needs={}).problems
    problems = problems[:BANK_PROBLEMS]
    place = folder / "rollouts" / "base"
    bank = collect(policy, config, problems, BANK_SAMPLES, place, display)

    lost: dict[str, list[float]] = {}
    ranks: dict[str, list[float]] = {}
    for method in METHODS:
        mine = [run for run in tried if run.name.startswith(method)]
        score = 100 * np.array([shares(final[run.name]).mean() for run in mine])
        print(f"{method}: rates {[run.name.split('-', 2)[2] for run in mine]}")
        print(f"  Avg@12 {np.round(score, 1).tolist()}")
        for index, seed in enumerate(TRIALS):
            right = np.array([shares(trials[run.name])[index] for run in mine])
            kls = np.array([judge_by_kl(run, seed, problems, bank, folder) for run in mine])
            judges = {
                "256 problems": 100 * right.mean(axis=1),
                "64 problems": 100 * right[:, :64].mean(axis=1),
                "KL, base": -kls[:, 0],
                "KL, own": -kls[:, 1],
            }
            for name, values in judges.items():
                lost.setdefault(name, []).append(score.max() - score[values.argmax()])
                ranks.setdefault(name, []).append(spearman(values, score))
                print(f"  seed {seed}, {name}: {np.round(values, 4).tolist()}")
    for name in lost:
        print(
            f"{name}: regret {np.mean(lost[name]):.2f}, largest {np.max(lost[name]):.2f}, "
            f"rank correlation {np.mean(ranks[name]):+.2f}"
        )


def main(folder: Path = Path("runs/rate-judges")) -> None:
    """Train, evaluate, and print what each judge chooses and loses.

    Args:
        folder: of problems, rollouts, runs and results.
    """
    display, path = Display(), folder / "validation.jsonl"
    chains = random_chains(456, seed=2, held_out=True)[200:]  # the demo's evaluation has the first
    folder.mkdir(parents=True, exist_ok=True)
    names = ("problem", "solution", "answer")
    rows = [{"id": f"v-{i}"} | {n: getattr(c, n) for n in names} for i, c in enumerate(chains)]
    with lock_folder(folder, waiting=display.note):
        write_jsonl(path, rows)
    exam = demo_protocol(problems=None, samples=2, benchmark=str(path))
    tried = [cell(method, factor, 0.5) for method in METHODS for factor in FACTORS]
    trials = by_run(run_experiment(tried, TRIALS, folder / "trials", exam, display))
    runs = [cell(method, factor) for method in METHODS for factor in FACTORS]
    exam = demo_protocol(problems=100, samples=12)
    final = by_run(run_experiment(runs, SEEDS, folder / "final", exam, display))
    with lock_folder(folder, waiting=display.note):  # a second call waits for the rollouts
        report(trials, final, path, folder, display)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
