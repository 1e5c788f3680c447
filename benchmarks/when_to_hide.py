"""When to hide how much of a solution, under a teacher that is programmed to become unsure.

    python benchmarks/when_to_hide.py --folder runs/when-to-hide            # slopes only
    python benchmarks/when_to_hide.py --folder runs/when-to-hide --seeds 2  # train, too; resumes

The teacher is the demo's, with one change that no pretraining made. Where the reference states an
operation with another number than the completion has reached, the teacher's distribution p becomes
(1 - s) p + s u, with u uniform over the numbers 0 to 99. The strength s is a class's. The student
and everything else are the demo's.

``slopes.json`` has the slope of `paint advise` of every cell, from rollouts of the untrained
student. Trainings, ``results.jsonl`` and tables are those of `paint compare`. ``when-to-hide.svg``
shows the gain by hidden share, a line a strength.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_problems import visible_steps
from paint.algorithms.base import Distillation
from paint.algorithms.paint import add_contexts
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config
from paint.core.display import Display
from paint.data.contexts import Contexts
from paint.data.problems import read_problems
from paint.evaluation.generate import base_as_rank1_adapter, load_eval_policy
from paint.evaluation.intervals import compare_seeds
from paint.experiments.advise import mean, slope_of
from paint.experiments.eval_protocols import demo_protocol
from paint.experiments.probe import first_problems
from paint.experiments.report import BASE, COLOURS, SHAPES, Report, by_run, publish, shares
from paint.experiments.rollout_bank import collect
from paint.experiments.runner import ExperimentRun, run_experiment
from paint.models.policy import Policy
from paint.objective.detail import pull
from paint.objective.loss import loss_from_logits
from paint.training import train_step as ts
from paint.training.prompt_filter import filter_problems
from paint.training.rollouts import Rollout, TeacherPrompt

RATIOS = (0.0, 0.25, 0.35, 0.5, 0.75)
SLOPE_PROBLEMS, SLOPE_SAMPLES = 100, 8
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
        policy, config = setup.policy, setup.config
        prompts = [r.teacher_prompt.prompt for r in rollouts if r.teacher_prompt]
        completions = [r.completion.ids for r in rollouts]
        with torch.no_grad():
            hidden = setup.teacher.hidden_states(prompts, [r.prompt for r in rollouts], completions)
            teacher = unsure(policy, rollouts, hidden, self.strength)
        student = policy.lm_head(ts.student_hidden_states(setup, rollouts))
        loss = loss_from_logits(
            student,
            teacher,
            ts.completion_lengths(rollouts),
            config.objective.resolve(config.rollout.temperature),
            ts.completion_ids(rollouts, student.device),
        )
        return loss.value, {"loss": loss.per_token, **loss.stats}


class Unsure2(Unsure):
    strength = 0.02


class Unsure3(Unsure):
    strength = 0.03


class Unsure4(Unsure):
    strength = 0.04


class Unsure5(Unsure):
    strength = 0.05


TEACHERS = (Unsure, Unsure2, Unsure3, Unsure4, Unsure5)


def cell(teacher: type[Unsure], ratio: float, **objective: Any) -> tuple[str, Config]:
    """A run's name and config: a teacher, a masked share, and changes of the objective."""
    recipe = read_recipe(find_recipe("demo-opsd"))
    changes = "".join(f"-{value}" for value in objective.values())
    return f"unsure-{teacher.strength:.2f}-hidden-{ratio:.2f}{changes}", replace(
        recipe,
        train=replace(recipe.train, method=f"when_to_hide:{teacher.__name__}"),
        context=replace(recipe.context, mask_ratio_wrong=ratio, mask_ratio_correct=ratio),
        objective=replace(recipe.objective, **objective),
    )


GRID = [cell(teacher, ratio) for teacher in TEACHERS for ratio in RATIOS]
BESIDE = [
    cell(Unsure5, ratio, **objective)
    for objective in ({"clip_mode": "none"}, {"interpolation_weight": 0.5, "top_fraction": 0.3})
    for ratio in (0.0, 0.35)
]


@torch.no_grad()
def slopes(folder: Path, display: Display) -> dict[str, Float[np.ndarray, " p"]]:
    """The slope of `paint advise` of every cell of the grid, one value a problem."""
    config = read_recipe(find_recipe("demo-opsd"))
    sampling = replace(config.rollout, engine="local")
    config = replace(config, model=base_as_rank1_adapter(config.model), rollout=sampling)
    policy = load_eval_policy(config.model, config.rollout, prompts=config.prompts)
    rows = read_problems(config.data, needs=config.needed_fields)
    problems = filter_problems(policy, config, rows, display)
    chosen = first_problems(problems, SLOPE_PROBLEMS, config.train.seed)
    bank = collect(policy, config, chosen, SLOPE_SAMPLES, folder, display)
    temperature = config.objective.resolve(config.rollout.temperature).loss_temperature
    pulls: dict[str, list[float]] = {name: [] for name, _ in GRID}
    for rollout in bank.rollouts:
        ids = rollout.completion.ids
        tokens = torch.tensor(ids)
        hidden = policy.hidden_states([rollout.prompt], [ids])
        log_q = (policy.lm_head(hidden) / temperature).log_softmax(-1)
        for ratio in RATIOS:
            contexts = Contexts(cell(Unsure, ratio)[1].context, problems)
            references = contexts.references(rollout.problem, 0)
            shown = contexts.context(references, ratio, 0)
            prompt = policy.teacher_prompt(rollout.problem, shown.text, complete=shown.complete)
            view = replace(
                rollout, teacher_prompt=TeacherPrompt(shown.text, shown.complete, prompt)
            )
            hidden = policy.hidden_states([prompt], [ids])
            for teacher in TEACHERS:
                logits = unsure(policy, [view], hidden, teacher.strength)
                log_p = (logits / temperature).log_softmax(-1)
                pulls[cell(teacher, ratio)[0]].append(float(pull(log_q, log_p, tokens).sum()))
    return {name: slope_of(np.array(rows), bank.rewards) for name, rows in pulls.items()}


def plot(path: Path, gains: dict[str, tuple[float, float, float]]) -> None:
    """The gain in points by hidden share, a line a strength."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for number, teacher in enumerate(TEACHERS):
        x = [ratio for ratio in RATIOS if cell(teacher, ratio)[0] in gains]
        y, low, high = np.array([gains[cell(teacher, ratio)[0]] for ratio in x]).reshape(-1, 3).T
        colour = COLOURS[number]
        axis.errorbar(
            100 * np.array(x) + 0.4 * (number - 2),
            y,
            [y - low, high - y],
            marker=SHAPES[number],
            color=colour,
            capsize=2,
            label=f"{100 * teacher.strength:.0f} %",
        )
    axis.axhline(0, color="#8c8c8c", linewidth=0.8)
    axis.set_xlabel("hidden share of the solution, %")
    axis.set_ylabel("gain over the base, points of Avg@12")
    axis.set_title("A programmed teacher: how unsure after a departure", fontsize=10)
    axis.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


@dataclass(frozen=True)
class Options:
    """What is measured, and where."""

    folder: Path = Path("runs/when-to-hide")
    seeds: int = 0
    """Trainings of each cell; 0: slopes only."""
    beside: bool = False
    """Also without the clip, and with interpolation, at the largest strength."""


def main(options: Options) -> None:
    """Measure slopes, train, plot."""
    display = Display()
    path = options.folder / "slopes.json"
    if not path.exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        found = slopes(options.folder, display)
        path.write_text(json.dumps({name: mean(x).table() for name, x in found.items()}))
    if not options.seeds:
        return
    runs = [ExperimentRun(*one) for one in (*GRID, *(BESIDE if options.beside else ()))]
    protocol = demo_protocol(problems=100, samples=12)
    results = run_experiment(runs, range(options.seeds), options.folder, protocol, display)
    labels = {run.name: run.name for run in runs}
    pairs = {name: (name, f"{name[:19]}0.00") for name in labels if name[19:] != "0.00"}
    title = "A programmed teacher that becomes unsure"
    report = Report("when-to-hide-rows", title, labels, pairs, "less nothing hidden")
    publish(report, results, options.folder, display)
    last = by_run(results)
    gains = {}
    for name in labels:
        gain = compare_seeds(shares(last[BASE]), shares(last[name]))
        gains[name] = 100 * gain.mean, 100 * gain.low, 100 * gain.high
    plot(options.folder / "when-to-hide.svg", gains)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
