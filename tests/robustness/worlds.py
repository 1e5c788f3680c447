"""A world of everything that paint writes, the verbs that read it again, and what they end in."""

import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from paint.cli import main
from paint.core.demo_files import HELD_OUT_PROBLEMS
from processes import write_recipe
from runs import Sections, changed, rows_of, tight_and_loose, write_problems

SMALL: Sections = {
    "model": {"lora_rank": 2, "lora_alpha": 4},
    "data": {"limit": 20},
    "rollout": {"max_new_tokens": 40},
    "train": {
        "steps": 2,
        "batch_size": 2,
        "micro_batch_size": 2,
        "learning_rate": 3e-2,
        "checkpoint_every": 1,
    },
}
UNTIMED = ("seconds", "tokens_per_second")
"""How those figures begin that differ from one time to the next."""


@dataclass(frozen=True)
class Verb:
    """A command that reads what is stored. Several words stand in one text.

    Attributes:
        needs: folders of the world that it reads or writes.
        command: as it is typed, with {at} for the world, and {home} for where it was made.
        figures: what it ends in.
    """

    name: str
    needs: str
    command: str
    figures: Callable[[Path], Any]


def run_paint(command: str, home: Path, at: Path) -> tuple[int, str]:
    """The exit status of a command, and what it said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(command.format(home=home, at=at).split())
    return status, err.getvalue()


def make_world(at: Path) -> Path:
    """Fill a folder with a run, two experiments' worth of runs, evaluations and a probe."""
    at.mkdir(parents=True)
    problems = [{k: row[k] for k in ("problem", "answer")} for row in rows_of(HELD_OUT_PROBLEMS)]
    tight_and_loose(at, SMALL)
    path = write_problems(at / "mine.jsonl", problems[:3])
    validation = {"path": path, "samples": 2}
    validated: Sections = {
        "objective": {"clip": 0.1},
        "validation": validation | {"max_new_tokens": 40},
        "teacher": {"weights": "ema"},
    }
    write_recipe(at / "validated.toml", changed("demo-paint", SMALL, validated))

    evaluated = " ".join(f"{{at}}/run/run/checkpoints/step-00000{n}" for n in (1, 2))
    for command in (TRAIN, f"eval {evaluated} {EVAL}", DEMO, ADVISE):
        status, said = run_paint(command, at, at)
        assert status == 0, said
    return at


TRAIN = "train {home}/validated.toml --log.folder {at}/run --log.name run"
EVAL = "--benchmarks demo --limit 3 --samples 2 --no-thinking --rollout.max-new-tokens 40 "
EVAL += "--output-dir {at}/evals"
# The recipes are not part of what is damaged, and lie where the world was made.
DEMO = "demo {home}/tight.toml {home}/loose.toml --problems 3 --samples 2 --output-dir {at}/demo"
ADVISE = "advise {home}/tight.toml --output-dir {at}/advice --problems 3 --samples 2 --ratios 0.5 "
ADVISE += "--contexts solution"


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def untimed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(UNTIMED)} for row in rows]


def restore(pristine: Path, at: Path, verb: Verb) -> None:
    """The world as it was, as far as a verb needs it."""
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    for name in verb.needs.split():
        shutil.copytree(pristine / name, at / name)


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


def summary(place: str) -> Callable[[Path], Any]:
    return lambda at: read(at / place / "summary.json")


def rows_in(place: str) -> Callable[[Path], Any]:
    return lambda at: untimed(rows_of(at / place))


CHECKPOINT = "run/run/checkpoints/step-000002"
EVAL_RUN = f"eval {{at}}/{CHECKPOINT} {EVAL}"
RESUME = "resume {at}/run/run --steps 3"
GRADE_RUN = "grade {at}/run/run --output-dir {at}/out"
VERBS = [
    Verb("resume", "run", RESUME, lambda at: run_figures(at, 3)),
    Verb("grade a run", "run", GRADE_RUN, summary("out")),
    Verb("eval", "run evals", EVAL_RUN, summary("evals/run")),
    Verb("grade", "evals", "grade {at}/evals/run", summary("evals/run")),
    Verb("demo", "demo", DEMO, rows_in("demo/results.jsonl")),
    Verb("advise", "advice", ADVISE, summary("advice")),
]
