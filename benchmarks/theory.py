"""What interpolation does to real targets, beside what the paper's Gaussian model says it does.

    python benchmarks/theory.py
    python benchmarks/theory.py --recipe paint-qwen3-1.7b --rollout.engine vllm --data.path FILE

One rollout of the untrained student for each problem, scored by both views, as the first step of
training does. At every position the target is interpolated as if it were selected, and the entropy
that it loses, H(p_T) - H(p~_T), is measured: positive where interpolation sharpens the target, and
negative where it softens it. The paper's selector maximises the information gain Delta I, the
entropy that a Gaussian would lose (Prop. entropy_ratio_sparse_selection).

Shown: the entropy lost where the selector acts; what its choice captures of the most that as many
positions of the same completion could lose; how well the ratio ranks the loss (Spearman's rho,
within completions); and the exponent gamma with which Delta I fits the losses best.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
import tyro
from accelerate import Accelerator
from jaxtyping import Float
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paint.config import Config
from paint.data.problems import read_problems
from paint.display import Clock, Display
from paint.engines.local import LocalEngine
from paint.evaluation.intervals import bootstrap
from paint.grading.grader import Grader
from paint.model.policy import load_policy
from paint.model.teacher import open_teacher
from paint.objective import entropy, entropy_ratio, information_gain, interpolate, select_positions
from paint.recipe import find_recipe, read_recipe
from paint.step import add_teacher_view
from paint.training.prompts import problems_that_fit
from paint.training.rollouts import Rollout
from paint.training.update import Setup, generate_rollouts

PROBLEMS = 64
GAMMAS = [exponent / 20 for exponent in range(1, 81)]


def main() -> None:
    config = tyro.cli(Config, default=read_recipe(find_recipe("lab-paint")), args=sys.argv[1:])
    display = Display()
    policy = load_policy(config.model, seed=config.train.seed, device=Accelerator().device)
    problems = problems_that_fit(policy, config, read_problems(config.data), display)
    setup = Setup(
        config,
        policy,
        open_teacher(policy, config.teacher),
        problems,
        LocalEngine(policy, batch_size=config.rollout.batch_size),
        torch.optim.AdamW(policy.trainable),
        Accelerator(),
        Grader(),
    )
    batch = list(enumerate(problems[:PROBLEMS]))
    rollouts = generate_rollouts(setup, batch, 0, Clock(display))
    rollouts = [add_teacher_view(setup, rollout, 0) for rollout in rollouts]
    show(config, [measure(setup, rollout) for rollout in rollouts])


@torch.no_grad()
def measure(setup: Setup, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Of every position: the ratio R, and the entropy lost to interpolation there, in nats."""
    policy, options = setup.policy, setup.config.objective.resolve(setup.config.rollout.temperature)
    assert rollout.view is not None

    def log_probs(prompt: Sequence[int]) -> Float[Tensor, "n v"]:
        hidden = policy.hidden_states([prompt], [rollout.completion.ids])
        logits: Tensor = policy.lm_head(hidden).double() / options.loss_temperature
        return logits.log_softmax(-1)

    student = log_probs(rollout.prompt)
    with setup.teacher.view():
        teacher = log_probs(rollout.view.prompt)
    ratio = entropy_ratio(entropy(teacher), entropy(student))
    return ratio, entropy(teacher) - entropy(interpolate(teacher, student, options.mix))


def show(config: Config, measured: Sequence[tuple[Tensor, Tensor]]) -> None:
    options = config.objective
    selected = [select_positions(ratio, options.top_fraction) for ratio, _ in measured]
    at_selected = torch.cat([lost[s] for (_, lost), s in zip(measured, selected, strict=True)])
    at_all = torch.cat([lost for _, lost in measured])
    ratios = torch.cat([ratio for ratio, _ in measured])

    captured = sum(float(lost[s].sum()) for (_, lost), s in zip(measured, selected, strict=True))
    attainable = sum(
        float(lost.topk(int(s.sum())).values.sum())
        for (_, lost), s in zip(measured, selected, strict=True)
    )
    ranks = [spearman(ratio, lost) for ratio, lost in measured if len(ratio) > 2]
    fits = [
        float((information_gain(ratios, options.mix, gamma=gamma) - at_all).square().mean())
        for gamma in GAMMAS
    ]

    table = Table(box=None, show_header=False)
    for name, value in {
        "positions, and those selected": f"{len(at_all):,}, {len(at_selected):,}",
        "entropy lost where selected, mean, nats": f"{at_selected.mean():.5f}",
        "    share of these that lose some (the target is sharpened)": share(at_selected > 0),
        "entropy lost at all positions, mean, nats": f"{at_all.mean():.6f}",
        "    share of all that lose some": share(at_all > 0),
        "the selector's sum, of the most attainable, nats": f"{captured:.4f} of {attainable:.4f}",
        "Spearman's rho of ratio and loss, mean of completions": interval(ranks),
        "gamma of the best fit of Delta I, of 0.05 to 4": f"{GAMMAS[fits.index(min(fits))]:g}",
        "    R^2 of that fit": f"{1 - min(fits) / float(at_all.var(correction=0)):.3f}",
    }.items():
        table.add_row(name, value)
    Console(width=100).print(table)


def spearman(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def share(holds: Tensor) -> str:
    return f"{holds.double().mean():.1%}"


def interval(values: Sequence[float]) -> str:
    found = bootstrap([np.asarray(values)], bounds=(-1.0, 1.0))
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


if __name__ == "__main__":
    main()
