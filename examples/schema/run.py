"""Teach a small model what its prompt says: bake, its controls, SFT, PAINT and OPSD.

    python examples/schema/run.py --model MODEL --data FOLDER
    python examples/schema/run.py --model MODEL --data FOLDER --split test

FOLDER has guide.txt, database.sqlite and rows.jsonl (id, split, problem, answer: the gold query);
geoquery.py makes it of the public GeoQuery. MODEL is a folder or hub name. Another task than a
schema has its own instruction and grader (README.md).

    runs/schema/
      train.jsonl, dev.jsonl, ...      the questions, without and with the guide in the prompt
      answers/                         what the prompted model answers to the training questions
      ARM/seed-N/                      a run of each arm
      DEV or TEST/                     the answers, and table.md

The student reads one sentence and the question. The teacher of bake reads the guide besides; that
of PAINT and OPSD the gold query, too. Everything is chosen on the split dev, and test is answered
once at the end. An interrupted call continues when it is repeated.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import tyro

import paint
from paint.config.recipe import read_recipe
from paint.config.run_folder import latest_checkpoint
from paint.config.schema import Config
from paint.core.display import Display
from paint.evaluation.intervals import Interval, compare_seeds, over_seeds
from paint.lab.runner import ExperimentRun, refuse_other_settings, train_run

HERE = Path(__file__).parent
INSTRUCTION = "You answer questions with one SQLite query and nothing else."
# A guide may have braces of its own, which are no template.
SYSTEM = "{{{{ system }}}}\n{{% raw %}}{guide}{{% endraw %}}"
WITH_QUERY = "{{ student }}\n\nThe correct query: {{ context }}\n\nWrite the query."
WEATHER = "It rained in the morning, and in the afternoon the sun came out over the hills. "
BASE, PROMPTED = "base", "prompted"

Arm = Literal[
    "bake", "placebo", "other-guide", "bake-none", "sft", "sft-own", "sft-own-runs", "paint", "opsd"
]
ARMS: tuple[Arm, ...] = ("bake", "placebo", "sft", "sft-own-runs", "paint", "opsd")


@dataclass(frozen=True)
class Options:
    """The experiment.

    Attributes:
        model: folder or hub name of the model.
        data: folder of guide.txt, database.sqlite and rows.jsonl.
        arms: the arms that are trained and reported, by importance.
        split: the questions that are reported.
        steps: training steps, of eight questions each.
        learning_rate: of all arms.
        seeds: training seeds.
        folder: folder of everything that is written.
        instruction: the student's system turn.
        grader: grades the answers against the rows' answer.
        rollout_tokens: most tokens of an answer in training.
        answer_tokens: most tokens of an answer that is reported.
        teacher: the teacher's user turn in PAINT and OPSD, a template of student and context.
    """

    model: str
    data: Path
    arms: tuple[Arm, ...] = ARMS
    split: Literal["dev", "test"] = "dev"
    steps: int = 48
    learning_rate: float = 3e-4
    seeds: tuple[int, ...] = (0,)
    folder: Path = Path("runs/schema")
    instruction: str = INSTRUCTION
    grader: str = "sql_grader:grade"
    rollout_tokens: int = 40
    answer_tokens: int = 60
    teacher: str = WITH_QUERY


def main(options: Options) -> str:
    """Train and evaluate the arms, and return the table."""
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["SQL_DATABASE"] = str((options.data / "database.sqlite").resolve())
    guide = prepare(options)
    runs = {}
    for seed in options.seeds:
        for arm in options.arms:
            runs[arm, seed] = train(options, arm, seed, guide)
    answers = evaluate(options, runs)
    table = report(options, answers)
    (options.folder / options.split / "table.md").write_text(table)
    return table


def prepare(options: Options) -> str:
    """Write questions and guides to the folder, and return the guide."""
    options.folder.mkdir(parents=True, exist_ok=True)
    guide = (options.data / "guide.txt").read_text("utf-8")
    other = (HERE / "other-guide.txt").read_text("utf-8")
    placebo = (WEATHER * len(guide))[: len(guide)]
    for name, text in (("guide", guide), ("other-guide", other), ("placebo", placebo)):
        (options.folder / f"{name}.txt").write_text(text)
    rows = [json.loads(line) for line in (options.data / "rows.jsonl").read_text().splitlines()]
    for split in ("train", "dev", "test"):
        chosen = [row for row in rows if row["split"] == split]
        prompted = f"{options.instruction}\n{guide}"
        for name, system in (("", options.instruction), ("-prompted", prompted)):
            write(options.folder / f"{split}{name}.jsonl", map(partial(as_row, system), chosen))
    return guide


def as_row(system: str, row: dict[str, str]) -> dict[str, Any]:
    """A row with a system turn, and the gold query as its solution."""
    turns = [{"role": "system", "content": system}, {"role": "user", "content": row["problem"]}]
    return {"id": row["id"], "problem": turns, "answer": row["answer"], "solution": row["answer"]}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def train(options: Options, arm: Arm, seed: int, guide: str) -> paint.Run:
    """Train one arm, or continue its run. Raises ConfigError for a run of other settings."""
    folder = options.folder / arm / f"seed-{seed}"
    recipe = {"paint": "paint", "opsd": "opsd"}.get(arm, "sft" if arm.startswith("sft") else "bake")
    shared = read_recipe(str(HERE / "recipes" / "schema.toml"))
    config = read_recipe(str(HERE / "recipes" / f"{recipe}.toml"), shared)
    config = config.changed("model", path=options.model)
    config = config.changed("data", path=str(options.folder / "train.jsonl"))
    config = config.changed("grading", grader=(options.grader,))
    config = config.changed("rollout", max_new_tokens=options.rollout_tokens)
    config = config.changed(
        "train",
        steps=options.steps,
        learning_rate=options.learning_rate,
        seed=seed,
        checkpoint_every=max(options.steps // 4, 1),
    )
    config = of_arm(options, arm, config, guide)
    refuse_other_settings(folder, config)
    train_run(ExperimentRun(arm, config), folder, Display())
    return paint.load_run(folder)


def of_arm(options: Options, arm: Arm, config: Config, guide: str) -> Config:
    """The settings in which an arm differs from its recipe."""
    if arm == "bake-none":
        config = config.changed("objective", clip_mode="none")
    match arm:
        case "bake" | "bake-none":
            return config.changed("context", file=str(options.folder / "guide.txt"))
        case "placebo" | "other-guide":
            return config.changed("context", file=str(options.folder / f"{arm}.txt"))
        case "paint" | "opsd":
            system = SYSTEM.format(guide=guide)
            return config.changed("prompts", teacher_system=system, teacher=options.teacher)
        case "sft-own" | "sft-own-runs":
            return config.changed("data", path=str(own_answers(options, arm)))
        case "sft":
            return config


def own_answers(options: Options, arm: Arm) -> Path:
    """The training questions with the prompted model's answers as solutions; all, or what runs."""
    path = options.folder / f"{arm}.jsonl"
    questions = options.folder / "train-prompted.jsonl"
    found = answered(options, options.model, questions, options.folder / "answers")
    if arm == "sft-own-runs":
        found = found[found["runs"] == 1]
    texts = dict(zip(found["problem_id"], found["text"], strict=True))
    rows = map(json.loads, (options.folder / "train.jsonl").read_text("utf-8").splitlines())
    write(path, [{**row, "solution": texts[row["id"]]} for row in rows if row["id"] in texts])
    return path


def evaluate(
    options: Options, runs: dict[tuple[Arm, int], paint.Run]
) -> dict[tuple[str, int], pd.DataFrame]:
    """The answers of the base, of the prompted base, and of every run, by arm and seed."""
    folder, split = options.folder / options.split, options.split
    plain = options.folder / f"{split}.jsonl"
    prompted = options.folder / f"{split}-prompted.jsonl"
    found = {
        (BASE, 0): answered(options, options.model, plain, folder / BASE),
        (PROMPTED, 0): answered(options, options.model, prompted, folder / PROMPTED),
    }
    for (arm, seed), run in runs.items():
        checkpoint = str(latest_checkpoint(run.path))
        found[arm, seed] = answered(options, checkpoint, plain, folder / arm / f"seed-{seed}")
    return found


def answered(options: Options, target: str, questions: Path, folder: Path) -> pd.DataFrame:
    """One answer to each question at a temperature of 0.05, graded; sorted by question."""
    rollout = {
        "engine": "local",
        "temperature": 0.05,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": options.answer_tokens,
    }
    evaluation = paint.evaluate(
        target,
        benchmarks=[str(questions)],
        samples=1,
        base=False,
        thinking=False,
        dtype="float32",
        output_dir=str(folder),
        grading={"grader": options.grader},
        rollout=rollout,
    )
    return evaluation.samples.sort_values("problem_id").reset_index(drop=True)


def report(options: Options, answers: dict[tuple[str, int], pd.DataFrame]) -> str:
    """A line for each arm: right, less base, less prompted, runs, tokens an answer."""
    by_arm: dict[str, list[pd.DataFrame]] = {}
    for (arm, _), frame in answers.items():
        by_arm.setdefault(arm, []).append(frame)
    # A grader need not tell whether an answer runs.
    runs = [] if "runs" not in answers[BASE, 0] else ["runs, %"]
    titles = ["right, %", "less base", "less prompted", *runs, "tokens an answer"]
    lines = [f"| {options.split} | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for arm, frames in by_arm.items():
        cells = [arm, percent(over_seeds(values(frames, "correct")))]
        for other in (BASE, PROMPTED):
            others = values(by_arm[other] * len(frames), "correct")
            less = compare_seeds(others, values(frames, "correct"))
            cells.append("" if arm in (other, BASE) else less.text("+.1f", 100))
        if runs:
            cells.append(percent(over_seeds(values(frames, "runs"))))
        cells.append(f"{values(frames, 'tokens').mean():.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def percent(interval: Interval) -> str:
    """A share in %, with its interval."""
    return interval.text(".1f", 100)


def values(frames: Sequence[pd.DataFrame], column: str) -> np.ndarray:
    """A column of each frame as numbers: seeds by questions."""
    return np.stack([frame[column].to_numpy(dtype=float) for frame in frames])


if __name__ == "__main__":
    print(main(tyro.cli(Options)))
