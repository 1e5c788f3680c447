"""When to hide how much of a solution, under a teacher that is programmed to become unsure.

    python benchmarks/when_to_hide.py              # figures of `paint advise`, without training
    python benchmarks/when_to_hide.py --seeds 2    # then trains and evaluates, too; resumes

The teacher is the demo's, with one change that no pretraining made. Where the reference states an
operation with another number than the completion has reached, its distribution p becomes
(1 - s) p + s u, with u uniform over the numbers 0 to 99; s is the strength. Everything else is the
demo's. ``advice.json`` has slope and confusion of every cell, from rollouts of the untrained
student; ``when-to-hide.svg`` the gain by hidden share, a line a strength; the other files are those
of `paint compare`.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_problems import visible_steps
from paint.algorithms.base import Distillation
from paint.algorithms.paint import add_contexts, add_teacher_prompts
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config
from paint.core.display import Display
from paint.core.plugins import spec_of
from paint.data.contexts import Contexts
from paint.data.problems import read_problems
from paint.evaluation.generate import base_as_rank1_adapter, load_eval_policy
from paint.evaluation.intervals import Interval, compare_seeds
from paint.experiments.advise import mean, slope_of
from paint.experiments.eval_protocols import protocol_for
from paint.experiments.report import BASE, COLOURS, FAINT, SHAPES, Report, by_run, publish, shares
from paint.experiments.rollout_bank import collect, first_problems, marks_of
from paint.experiments.runner import ExperimentRun, run_experiment
from paint.models.policy import Policy
from paint.objective.detail import pull
from paint.objective.loss import entropy, paint_loss
from paint.training import train_step as ts
from paint.training.check import check_config
from paint.training.prompt_filter import filter_problems
from paint.training.rollouts import Rollout

PERCENT = (0, 2, 3, 4, 5)
RATIOS = (0.0, 0.25, 0.35, 0.5, 0.75)
OPERATION = re.compile(r"^(\+|-|\\times )(\d+) \\equiv $")


def contradicted(policy: Policy, completion: Sequence[int], context: str | None) -> list[int]:
    """Places of results whose operation the context states with another number before it."""
    stated = {(sign, operand): value for value, sign, operand in visible_steps(context or "")}
    places, operation, value = [], ("", 0), None
    for place, token in enumerate(completion):
        text = policy.decode([token])
        if found := OPERATION.match(text):
            operation = "*" if "times" in found[1] else found[1], int(found[2])
        elif text.isdigit():
            if value is not None and stated.get(operation, value) != value:
                places.append(place)
            operation, value = ("", 0), int(text)
    return places


def unsure(policy: Policy, rollouts: Sequence[Rollout], hidden: Tensor, strength: float) -> Tensor:
    """The programmed teacher's logits (n v) on the rollouts' completions."""
    log_p: Tensor = policy.lm_head(hidden).log_softmax(-1)
    numbers = [policy.tokenizer.encode(str(n), add_special_tokens=False) for n in range(100)]
    start, places = 0, []
    for rollout in rollouts:
        ids, shown = rollout.completion.ids, rollout.teacher_prompt
        assert shown is not None
        places += [start + place for place in contradicted(policy, ids, shown.context)]
        start += len(ids)
    p = (1 - strength) * log_p[places].exp()
    p[:, [number for (number,) in numbers]] += strength / len(numbers)
    return log_p.index_put((torch.tensor(places, dtype=torch.long),), p.log())


class Unsure(Distillation):
    """PAINT's step with the programmed teacher in the place of the model's."""

    strength = 0.0

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        rollouts = add_contexts(setup, rollouts, step_index, clock)
        return ts.accumulate(setup, rollouts, partial(self.score, setup)), ts.update(
            setup, step_index
        )

    def score(
        self, setup: ts.Setup, rollouts: Sequence[Rollout]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of some completions, and values of their tokens."""
        policy = setup.policy
        prompts = [r.teacher_prompt.prompt for r in rollouts if r.teacher_prompt]
        completions = [r.completion.ids for r in rollouts]
        with torch.no_grad():
            hidden = setup.teacher.hidden_states(prompts, [r.prompt for r in rollouts], completions)
            teacher = unsure(policy, rollouts, hidden, self.strength)
        student = policy.lm_head(ts.student_hidden_states(setup, rollouts))
        loss = paint_loss(
            student,
            teacher,
            ts.completion_lengths(rollouts),
            setup.resolved.objective,
            tokens=ts.completion_ids(rollouts, student.device),
        )
        return loss.value, {"loss": loss.per_token, **loss.stats}


TEACHERS: list[type[Unsure]] = [
    type(f"Unsure{percent or ''}", (Unsure,), {"strength": percent / 100}) for percent in PERCENT
]


def cell(teacher: type[Unsure], ratio: float, **objective: Any) -> tuple[str, Config]:
    """A run's name and config: a teacher, a masked share, and changes of the objective."""
    recipe = read_recipe(find_recipe("demo-opsd"))
    changes = "".join(f"-{value}" for value in objective.values())
    return f"unsure-{teacher.strength:.2f}-hidden-{ratio:.2f}{changes}", replace(
        recipe,
        train=replace(recipe.train, method=spec_of(teacher, module="when_to_hide")),
        context=replace(recipe.context, mask_ratio_wrong=ratio, mask_ratio_correct=ratio),
        objective=replace(recipe.objective, **objective),
    )


GRID = [cell(teacher, ratio) for teacher in TEACHERS for ratio in RATIOS]
BESIDE = [
    cell(TEACHERS[-1], ratio, **objective)
    for objective in ({"clip_mode": "none"}, {"interpolation_weight": 0.5, "top_fraction": 0.3})
    for ratio in (0.0, 0.35)
]


@torch.no_grad()
def advice(folder: Path, display: Display) -> dict[str, dict[str, Any]]:
    """Slope and confusion, as of `paint advise`, of every cell of the grid."""
    config = read_recipe(find_recipe("demo-opsd"))
    sampling = replace(config.rollout, engine="local")
    config = replace(config, model=base_as_rank1_adapter(config.model), rollout=sampling)
    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    rows = read_problems(config.data, needs=check_config(config).needed_fields)
    problems = filter_problems(policy, config, rows, display)
    bank = collect(policy, config, first_problems(problems, 100, 0), 8, folder, display)
    temperature = config.loss_temperature
    found: dict[str, dict[str, Any]] = {}
    for ratio in RATIOS:
        contexts = Contexts(cell(Unsure, ratio)[1].context, problems)
        setup: Any = SimpleNamespace(policy=policy, config=config, contexts=contexts)
        pulls, gaps = np.zeros((2, len(TEACHERS), len(bank.rollouts)))
        for i, rollout in enumerate(add_teacher_prompts(setup, bank.rollouts, 0)):
            ids, view = rollout.completion.ids, rollout.teacher_prompt
            assert view is not None
            student, hidden = (
                policy.hidden_states([p], [ids]) for p in (rollout.prompt, view.prompt)
            )
            log_q = (policy.lm_head(student) / temperature).log_softmax(-1)
            departure = marks_of(policy, rollout).departure
            for t, teacher in enumerate(TEACHERS):
                logits = unsure(policy, [rollout], hidden, teacher.strength)
                log_p = (logits / temperature).log_softmax(-1)
                pulls[t, i] = pull(log_q, log_p, torch.tensor(ids)).sum()
                gaps[t, i] = (entropy(log_p) - entropy(log_q))[departure:].mean()  # NaN if none
        for t, teacher in enumerate(TEACHERS):
            found[cell(teacher, ratio)[0]] = {
                "slope": mean(slope_of(pulls[t], bank.rewards)).table(),
                "confusion": float(np.nanmean(gaps[t])),
            }
    return found


def plot(path: Path, gains: dict[str, Interval]) -> None:
    """The gain in points by hidden share, a line a strength that was trained."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for number, teacher in enumerate(TEACHERS):
        names = [cell(teacher, ratio)[0] for ratio in RATIOS]
        if not all(name in gains for name in names):
            continue
        found = [gains[name] for name in names]
        y, low, high = 100 * np.array([(x.mean, x.low, x.high) for x in found]).T
        axis.errorbar(
            100 * np.array(RATIOS) + 0.4 * (number - 2),  # side by side
            y,
            [y - low, high - y],
            fmt=f"{SHAPES[number]}-",
            color=COLOURS[number],
            capsize=2,
            label=f"{100 * teacher.strength:.0f} %",
        )
    axis.set_yscale("symlog", linthresh=30)  # some collapse by sixty points
    ticks = [-60, *range(-30, 31, 10)]
    axis.set_yticks(ticks, list(map(str, ticks)))
    axis.axhline(0, color=FAINT, linewidth=0.8)
    axis.set_xlabel("hidden share of the solution, %")
    axis.set_ylabel("gain over the base, points of Avg@12")
    axis.set_title(
        "A programmed teacher, unsure where a solution was left, by strength", fontsize=10
    )
    axis.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main(
    folder: Path = Path("runs/when-to-hide"),
    seeds: int = 0,
    percent: tuple[int, ...] = PERCENT,
    beside: bool = False,
) -> None:
    """Measure, train and plot.

    Args:
        folder: of rollouts, runs, tables and the plot.
        seeds: trainings of each cell.
        percent: strengths that are trained, in percent.
        beside: also without the clip, and with interpolation, at the largest strength.
    """
    display, path = Display(), folder / "advice.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(advice(folder, display), indent=1))
    if not seeds:
        return
    wanted = tuple(f"unsure-{number / 100:.2f}" for number in percent)
    grid = [one for one in GRID if one[0].startswith(wanted)]
    runs = [ExperimentRun(*one) for one in (*grid, *(BESIDE if beside else ()))]
    protocol = protocol_for(runs[0].config, None, problems=100, samples=12)
    results = run_experiment(runs, range(seeds), folder, protocol, display)
    labels = {run.name: run.name for run in runs}
    pairs = {name: (name, f"{name[:19]}0.00") for name in labels if name[19:] != "0.00"}
    title = "A programmed teacher that becomes unsure"
    publish(Report("cells", title, labels, pairs, "less nothing hidden"), results, folder, display)
    last = {name: shares(rows) for name, rows in by_run(results).items()}
    plot(folder / "when-to-hide.svg", {n: compare_seeds(last[BASE], last[n]) for n in labels})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
