"""A world of everything that paint writes, the verbs that read it again, and what they end in."""

import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load_file

from paint.cli import main
from paint.demo.files import HELD_OUT_PROBLEMS

RECIPE = """
[model]
path = "demo"
dtype = "float32"
lora_rank = 2
lora_alpha = 4
teacher_thinking = false
[data]
path = "demo"
limit = 20
[rollout]
max_new_tokens = 40
[objective]
clip = {clip}
[train]
steps = 2
batch_size = 2
micro_batch_size = 2
learning_rate = 3e-2
checkpoint_every = 1
"""
VALIDATED = """
[validation]
path = "{problems}"
samples = 2
thinking = false
max_new_tokens = 40
[teacher]
weights = "ema"
"""
UNTIMED = ("seconds", "tokens_per_second")
"""What differs from one time to the next in a row of figures."""


@dataclass(frozen=True)
class Verb:
    """A command that reads what is stored.

    Attributes:
        needs: folders of the world that it reads or writes; ``damaged`` are globs of those of
            their files that are damaged.
        command: as it is typed, with {at} for the world, and {home} for where it was made.
        figures: what it ends in.
        forget: files that are gone, so that what they are made of is read again.
    """

    name: str
    needs: Sequence[str]
    command: Sequence[str]
    figures: Callable[[Path], Any]
    damaged: Sequence[str]
    forget: Sequence[str] = ()


def run_paint(command: Sequence[str], home: Path, at: Path) -> tuple[int, str]:
    """The exit status of a command, and what it said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([word.format(home=home, at=at) for word in command])
    return status, err.getvalue()


def make_world(at: Path) -> Path:
    """Fill a folder with a run, two experiments' worth of runs, evaluations, a probe and data."""
    at.mkdir(parents=True)
    rows = [json.loads(line) for line in HELD_OUT_PROBLEMS.read_text("utf-8").splitlines()]
    for name, chosen in (("mine", rows[:3]), ("other", rows[3:6])):
        lines = [json.dumps({"problem": r["problem"], "answer": r["answer"]}) for r in chosen]
        (at / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    for name, clip in (("tight", 0.06), ("loose", 0.3)):
        (at / f"{name}.toml").write_text(RECIPE.format(clip=clip), "utf-8")
    validated = RECIPE.format(clip=0.1) + VALIDATED.format(problems=at / "mine.jsonl")
    (at / "validated.toml").write_text(validated, "utf-8")

    table = [
        {
            "problem": f"What is ${n}+1$?",
            "deepseek_reasoning": f"Okay, so {n} and one.",
            "deepseek_solution": f"We add. \\[ \\boxed{{{n + 1 + (n % 7 == 0)}}} \\]",
            "ground_truth_solution": f"It is $\\boxed{{{n + 1}}}$.",
            "domain": "math" if n % 5 else "code",
            "source": "numina_math",
        }
        for n in range(40)
    ]
    (at / "rows").mkdir()
    pq.write_table(pa.Table.from_pylist(table), at / "rows/rows.parquet")

    for command in (
        TRAIN,
        ["eval", *(f"{{at}}/run/run/checkpoints/step-00000{n}" for n in (1, 2)), *EVAL],
        DEMO,
        ADVISE,
        [*DATA, "12"],
    ):
        status, said = run_paint(command, at, at)
        assert status == 0, said
    return at


TRAIN = ["train", "{home}/validated.toml", "--log.folder", "{at}/run", "--log.name", "run"]
EVAL = [
    *("--benchmarks", "demo", "--limit", "3", "--samples", "2", "--no-thinking"),
    *("--rollout.max-new-tokens", "40", "--folder", "{at}/evals"),
]
# The recipes are not part of what is damaged, and lie where the world was made.
DEMO = [
    *("demo", "{home}/tight.toml", "{home}/loose.toml"),
    *("--problems", "3", "--samples", "2", "--folder", "{at}/demo"),
]
ADVISE = [
    *("advise", "{home}/tight.toml", "--folder", "{at}/advice"),
    *("--problems", "3", "--samples", "2", "--ratios", "0.5", "--context", "solution"),
]
DATA = [
    *("data", "openthoughts", "{at}/data/out.jsonl", "--source", "{home}/rows"),
    *("--benchmarks", "demo", "--workers", "1", "--sample"),
]


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def untimed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not name.startswith(UNTIMED)} for row in rows
    ]


def restore(pristine: Path, at: Path, needs: Sequence[str], forget: Sequence[str]) -> None:
    """The world as it was, as far as a verb needs it."""
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    for name in needs:
        shutil.copytree(pristine / name, at / name)
    for name in forget:
        (at / name).unlink()


def run_figures(at: Path, step: int) -> Any:
    """What a run ends in after so many steps."""
    run, name = at / "run/run", f"step-{step:06d}"
    weights = load_file(run / "checkpoints" / name / "adapter/adapter_model.safetensors")
    return {
        "adapter": {name: value.tolist() for name, value in sorted(weights.items())},
        "metrics": untimed(rows_of(run / "metrics.jsonl")),
        "validation": read(run / "validation/summary.json"),
        "rollouts": untimed(rows_of(run / "rollouts" / f"{name}.jsonl")),
        "steps": sorted(path.name for path in (run / "checkpoints").glob("step-??????")),
    }


def _demo_metrics(at: Path) -> Any:
    return untimed(rows_of(at / "demo/results.jsonl"))


def _data_figures(at: Path) -> Any:
    report = read(at / "data/out.report.json")
    return rows_of(at / "data/out.jsonl"), report, rows_of(at / "data/out.contaminated.jsonl")


CHECKPOINT = "run/run/checkpoints/step-000002"
VERBS = [
    Verb(
        "resume",
        ["run"],
        ["resume", "{at}/run/run", "--steps", "3"],
        lambda at: run_figures(at, 3),
        ["run"],
    ),
    Verb(
        "grade a run",
        ["run"],
        ["grade", "{at}/run/run", "--out", "{at}/out"],
        lambda at: read(at / "out/summary.json"),
        ["run/run/validation"],
    ),
    Verb(
        "eval",
        ["run", "evals"],
        ["eval", f"{{at}}/{CHECKPOINT}", *EVAL],
        lambda at: read(at / "evals/demo/summary.json"),
        ["evals", CHECKPOINT],
    ),
    Verb(
        "grade",
        ["evals"],
        ["grade", "{at}/evals/demo"],
        lambda at: read(at / "evals/demo/summary.json"),
        ["evals"],
    ),
    Verb(
        "show",
        ["evals"],
        ["show", "{at}/evals/demo", "--no-open", "--out", "{at}/page.html"],
        lambda at: (at / "page.html").read_text("utf-8"),
        ["evals"],
    ),
    Verb("demo", ["demo"], DEMO, _demo_metrics, ["demo"]),
    Verb(
        "demo without its results", ["demo"], DEMO, _demo_metrics, ["demo"], ["demo/results.jsonl"]
    ),
    Verb("advise", ["advice"], ADVISE, lambda at: read(at / "advice/summary.json"), ["advice"]),
    Verb("data openthoughts", ["data"], [*DATA, "6"], _data_figures, ["data"]),
    Verb(
        "train on it",
        ["data"],
        [
            *("train", "{home}/tight.toml", "--data.path", "{at}/data/out.jsonl"),
            *("--train.steps", "1", "--log.folder", "{at}/trained", "--log.name", "run"),
        ],
        lambda at: untimed(rows_of(at / "trained/run/metrics.jsonl")),
        ["data/out.jsonl", "data/out.report.json"],
    ),
]
