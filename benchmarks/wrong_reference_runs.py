"""SFT, GRPO, OPSD and PAINT on the demo with references that go wrong: one command, resumable.

    python benchmarks/wrong_reference_runs.py --seeds 0 1 2
    python benchmarks/wrong_reference_runs.py --seeds 0 --groups shares hidden
    python benchmarks/wrong_reference_runs.py --teacher       # the teacher's accuracy, untrained

Each set of training rows (benchmarks/wrong_references.py) has a file and a folder, which is an
experiment of `paint compare`. After every experiment ``cells.md`` has all cells that have results,
and ``gain-by-wrong-share.svg`` the gain by the wrong share, a line a method. ``teacher.md`` has the
probability that the teacher gives to the right results before, at and behind the step from which
its reference is wrong.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure

from paint.algorithms.paint import add_teacher_prompts
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config
from paint.core.demo_files import NAME, TRAINING_PROBLEMS
from paint.core.display import Display, shown_on_terminal
from paint.core.storage import read_jsonl, write_atomic, write_jsonl
from paint.data.contexts import Contexts
from paint.data.problems import Problem, batch_indices, read_problems
from paint.evaluation.generate import base_as_rank1_adapter, load_eval_policy
from paint.evaluation.intervals import compare_seeds, over_seeds, p_value_over_seeds
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout
from paint.lab.checkpoint_results import (
    BASE,
    CheckpointResult,
    Results,
    append_results,
    by_run,
    read_results,
    shares,
)
from paint.lab.eval_protocols import protocol_for
from paint.lab.runner import ExperimentRun, run_experiment
from paint.models.policy import Policy
from paint.resolve.check import check_config
from paint.training.prompt_filter import filter_problems
from wrong_references import Corruption, corrupt_rows, right_solution

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe & Ito 2008
SHAPES, FAINT = "osD^", "#8c8c8c"

METHODS = ("sft", "grpo", "opsd", "paint")
WRONG_SHARES = (0.0, 0.2, 0.4, 0.6)
HIDDEN_SHARES = (0.2, 0.4, 0.6, 0.8)
TITLES = {
    "sft": "SFT",
    "grpo": "GRPO, wrong answers rewarded",
    "opsd": "OPSD, nothing hidden",
    "paint": "PAINT, 30 to 40 % hidden",
}


def paint_variant(config: Config, name: str) -> Config:
    """PAINT with the setting that the cell's name states."""
    if name.startswith("paint-prefix"):
        config = config.changed("context", placement="prefix")
    if name == "paint-without-interpolation":
        return config.changed("objective", interpolation_weight=0.0, top_fraction=0.0)
    if "hidden" in name:
        ratio = float(name.rpartition("-")[2])
        return config.changed("context", mask_ratio_wrong=ratio, mask_ratio_correct=ratio)
    return config


@dataclass(frozen=True)
class RowSet:
    """A set of training rows and the cells that are trained on it.

    Attributes:
        name: of its file and folder.
        corruption: how the references go wrong; None leaves the demo's rows.
        cells: methods, or PAINT with another setting.
    """

    name: str
    corruption: Corruption | None
    cells: tuple[str, ...]

    def data_path(self, folder: Path) -> str:
        """Write the rows if they are missing, and return their `data.path`."""
        if self.corruption is None:
            return NAME
        path = folder / f"{self.name}.jsonl"
        rows = corrupt_rows(list(read_jsonl(TRAINING_PROBLEMS, "")), self.corruption)
        content = "".join(json.dumps(row) + "\n" for row in rows)
        if path.exists() and path.read_text(encoding="utf-8") != content:
            raise SystemExit(f"{path} has other rows; choose another --folder")
        if not path.exists():
            write_jsonl(path, rows)
        return str(path)

    def runs(self, folder: Path) -> list[ExperimentRun]:
        """The runs of the cells."""
        data_path = self.data_path(folder)
        runs = []
        for cell in self.cells:
            method = cell.split("-")[0]
            config = read_recipe(find_recipe(f"demo-{method}")).changed("data", path=data_path)
            runs.append(ExperimentRun(cell, paint_variant(config, cell)))
        return runs


def end_wrong(share: float, cells: tuple[str, ...], rows: float = 1.0) -> RowSet:
    """References of which the last share is wrong."""
    if share == 0:
        return RowSet("right", None, cells)
    name = f"end-{100 * share:.0f}"
    if rows < 1:
        name += f"-of-{100 * rows:.0f}-percent"
    return RowSet(name, Corruption("end", share, rows), cells)


HIDDEN = tuple(f"paint-hidden-{share:.2f}" for share in HIDDEN_SHARES)
PREFIX = "paint-prefix-hidden-0.40"

GROUPS: dict[str, list[RowSet]] = {
    "shares": [end_wrong(share, METHODS) for share in (0.4, 0.2, 0.6, 0.0)],
    "hidden": [
        end_wrong(0.4, (*HIDDEN, "paint-without-interpolation", "paint-prefix")),
        end_wrong(0.2, HIDDEN),
        end_wrong(0.6, HIDDEN),
    ],
    "mirrors": [
        RowSet("recovered-40", Corruption("recovered"), ("opsd", "paint", PREFIX)),
        RowSet("beginning-40", Corruption("beginning"), ("opsd", "paint", PREFIX)),
    ],
    "rows": [
        end_wrong(0.4, ("opsd", "paint", "sft", "grpo"), rows=0.5),
        end_wrong(0.4, ("opsd", "paint"), rows=0.25),
    ],
    "others": [
        RowSet("cut-40", Corruption("cut"), ("opsd", "paint", "sft")),
        RowSet("other-end-40", Corruption("other-end"), ("opsd", "paint")),
        RowSet("answer", Corruption("answer"), ("opsd", "paint", "sft", "grpo")),
        RowSet("slip-40", Corruption("slip"), ("opsd", "paint")),
        RowSet("rule-40", Corruption("rule"), ("opsd", "paint", "sft")),
    ],
}


def copy_base(folder: Path, base: Results) -> None:
    """Add the base model's results, which do not depend on the training rows."""
    known = read_results(folder)
    seeds = {result.seed for result in known if result.run == BASE}
    missing = [result for result in base if result.seed not in seeds]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        append_results(folder, missing)


def train(row_set: RowSet, seed: int, folder: Path, display: Display) -> None:
    """Train and evaluate the cells with a seed; results that exist are kept."""
    runs = row_set.runs(folder)
    protocol = protocol_for(runs[0].config, None, problems=100, samples=12)
    run_experiment(runs, [seed], folder / row_set.name, protocol, display)


def complete_seeds(results: Results, cells: Sequence[str]) -> dict[str, list[CheckpointResult]]:
    """The results of the base model and the cells with the seeds that all of them have."""
    groups = by_run([result for result in results if result.run in (BASE, *cells)])
    seeds = [{result.seed for result in groups.get(cell, [])} for cell in (BASE, *cells)]
    common = set.intersection(*seeds)
    return {
        cell: [result for result in group if result.seed in common]
        for cell, group in groups.items()
    }


def row_sets() -> dict[str, tuple[str, ...]]:
    """All cells of each set of rows, over all groups."""
    cells: dict[str, tuple[str, ...]] = {}
    for group in GROUPS.values():
        for row_set in group:
            cells[row_set.name] = (*cells.get(row_set.name, ()), *row_set.cells)
    return cells


def cell_table(folder: Path) -> str:
    """A Markdown table of all cells that have results, each with its own number of seeds."""
    lines = [
        "| rows | cell | Avg@12 | gain over base | less OPSD | p | single seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cells in row_sets().items():
        results = read_results(folder / name)
        for cell in (BASE, *cells):
            found = complete_seeds(results, (cell,) if cell != BASE else ())
            if not found.get(cell):
                continue
            score = shares(found[cell])
            gain = less_opsd = p = ""
            if cell != BASE:
                gain = compare_seeds(shares(found[BASE]), score).points(sign=True)
            paired = complete_seeds(results, (cell, "opsd")) if "opsd" in cells else {}
            if cell not in (BASE, "opsd") and paired.get("opsd"):
                both = shares(paired["opsd"]), shares(paired[cell])
                less_opsd = compare_seeds(*both).points(sign=True)
                p = f"{p_value_over_seeds(*both):.4f}"
            seeds = ", ".join(f"{100 * mean:.1f}" for mean in score.mean(axis=1))
            columns = [name, cell, over_seeds(score).points(), gain, less_opsd, p, seeds]
            lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def plot(path: Path, folder: Path) -> None:
    """The gain in points by the wrong share, a line a method, with 95 % intervals."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for number, method in enumerate(METHODS):
        places, gains = [], []
        for share in WRONG_SHARES:
            results = read_results(folder / end_wrong(share, ()).name)
            found = complete_seeds(results, (method,))
            if found.get(method):
                places.append(100 * share + 0.6 * (number - 1.5))  # side by side
                gains.append(compare_seeds(shares(found[BASE]), shares(found[method])))
        if not gains:
            continue
        y, low, high = 100 * np.array([(x.mean, x.low, x.high) for x in gains]).T
        axis.errorbar(
            places,
            y,
            [y - low, high - y],
            fmt=f"{SHAPES[number]}-",
            color=COLOURS[number],
            capsize=2,
            label=TITLES[method],
        )
    axis.set_ylim(-60, 60)
    axis.set_xticks([100 * share for share in WRONG_SHARES])
    axis.axhline(0, color=FAINT, linewidth=0.8)
    axis.set_xlabel("wrong share of every reference, from its end, %")
    axis.set_ylabel("gain over the base, points of Avg@12")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def right_rollout(policy: Policy, problem: Problem) -> Rollout:
    """A completion that states the problem's rules and results rightly, in the model's style."""
    text = right_solution(problem.problem)
    ids = tuple(policy.tokenizer.encode(text, add_special_tokens=False))
    completion = Completion(ids, (0.0,) * len(ids), truncated=False)
    return Rollout(0, problem, policy.student_prompt(problem), completion, text)


@torch.no_grad()
def probability_of_results(policy: Policy, rollout: Rollout, prompt: list[int]) -> list[float]:
    """The probability of each step's result in the rollout, after this prompt."""
    ids = rollout.completion.ids
    log_p = policy.lm_head(policy.hidden_states([prompt], [ids])).log_softmax(-1)
    return [
        float(log_p[place, ids[place]].exp())
        for place in range(1, len(ids))
        if policy.decode([ids[place - 1]]).endswith("\\equiv ")
    ]


def teacher_table(folder: Path, row_set: RowSet, count: int = 100) -> str:
    """A Markdown table of the teacher's probability of the right results, by hidden share."""
    assert row_set.corruption is not None
    share = row_set.corruption.share
    recipe = row_set.runs(folder)[0].config
    policy = load_eval_policy(replace(recipe, model=base_as_rank1_adapter(recipe.model)))
    run = check_config(recipe)
    rows = read_problems(recipe.data, needs=run.needed_fields)
    kept = filter_problems(policy, run, rows, Display())
    problems = [kept[i] for i in batch_indices(len(kept), min(count, len(kept)), 0, seed=0)]
    rollouts = [right_rollout(policy, problem) for problem in problems]
    lines = ["| hidden | before | at the step | behind |", "|---|---|---|---|"]
    for hidden in (None, 0.0, *HIDDEN_SHARES):
        ratio = hidden or 0.0
        config = recipe.changed("context", mask_ratio_wrong=ratio, mask_ratio_correct=ratio)
        setup: Any = SimpleNamespace(
            policy=policy, config=config, contexts=Contexts(config.context, problems)
        )
        parts: tuple[list[float], list[float], list[float]] = ([], [], [])
        for rollout in add_teacher_prompts(setup, rollouts, 0):
            assert rollout.teacher_prompt is not None
            prompt = rollout.prompt if hidden is None else rollout.teacher_prompt.prompt
            values = probability_of_results(policy, rollout, prompt)
            first = round(len(values) * (1 - share))
            parts[0].extend(values[:first])
            parts[1].append(values[first])
            parts[2].extend(values[first + 1 :])
        name = "no reference" if hidden is None else f"{100 * hidden:.0f} %"
        means = [f"{100 * np.mean(part):.1f}" for part in parts]
        lines.append(f"| {' | '.join([name, *means])} |")
    return "\n".join(lines) + "\n"


def main(
    folder: Path = Path("runs/wrong-references"),
    seeds: tuple[int, ...] = (),
    groups: tuple[str, ...] = tuple(GROUPS),
    teacher: bool = False,
) -> None:
    """Train, evaluate, and write the table and the plot.

    Args:
        folder: of rows, experiments, table and plot.
        seeds: seeds of the trainings; without one, the table and the plot are made again.
        groups: groups of cells, in the order in which they are trained.
        teacher: measure the untrained teacher with the last 40 % of the references wrong, and train
            nothing.
    """
    if teacher:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "teacher.md", teacher_table(folder, end_wrong(0.4, ("paint",))))
        return
    display, base = Display(), folder / "right"
    for group in groups:
        for seed in seeds:
            for row_set in GROUPS[group]:
                known = [result for result in read_results(base) if result.run == BASE]
                copy_base(folder / row_set.name, known)
                train(row_set, seed, folder, display)
                found = [r for r in read_results(folder / row_set.name) if r.run == BASE]
                copy_base(base, found)
                write_atomic(folder / "cells.md", cell_table(folder))
    write_atomic(folder / "cells.md", cell_table(folder))
    plot(folder / "gain-by-wrong-share.svg", folder)


if __name__ == "__main__":
    with shown_on_terminal():
        tyro.cli(main, description=__doc__)
