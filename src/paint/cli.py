"""``paint``: every verb calls one function."""

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from paint import PaintError, Stopped
from paint.config import Config, ConfigError, Evaluation
from paint.recipe import find_recipe, read_recipe, shipped_recipes

USAGE = """\
paint: on-policy self-distillation with a partly masked solution

  paint train RECIPE [--section.field VALUE ...]   train; `paint train RECIPE --help` explains every option
  paint resume RUN [--steps N]                     go on with a run from its last checkpoint
  paint eval TARGET ... [--option VALUE ...]       answer benchmarks, grade, compare; `paint eval --help` explains
  paint grade FOLDER ...                           grade stored evaluations again, and compare them
  paint data openthoughts OUT.jsonl                the paper's training data: verified, without benchmark problems
  paint data check FILE --model.path MODEL         say what a file of problems holds
  paint lab [RECIPE ...]                           train and evaluate on the embedded model, on any laptop

RECIPE is a TOML file, or the name of one that comes with paint:
"""


def _within(kind: type, low: float, high: float = math.inf) -> Callable[[str], float]:
    """A parser of numbers in [low, high]."""

    def parse(text: str) -> float:
        value: float = kind(text)
        if not low <= value <= high:
            allowed = f"in [{low:g}, {high:g}]" if high < math.inf else f"at least {low:g}"
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {text}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value"
    return parse


SECONDS = _within(float, 0.01, 86_400)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. What the user can mend is one clear message and exit status 2."""
    verb, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    verbs = {"train": train, "resume": resume, "eval": evaluate, "grade": grade, "data": data, "lab": lab}
    if verb in ("-h", "--help"):
        print(USAGE + "".join(f"  {name}\n" for name in shipped_recipes()), end="")
        return 0
    if verb not in verbs:
        print(f"paint: unknown verb {verb!r}; there are {', '.join(verbs)} (see paint --help)", file=sys.stderr)
        return 2
    try:
        return verbs[verb](rest)
    except PaintError as error:
        print(f"paint {verb}: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        go_on = "; the same command goes on where it stopped" if verb in ("eval", "data") else ""
        print(f"paint {verb}: interrupted{go_on}", file=sys.stderr)
        return 130


def train(arguments: list[str]) -> int:
    """Train by a recipe; flags override its values."""
    recipe = find_recipe(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else None
    config = tyro.cli(
        Config,
        prog=f"paint train {recipe or 'RECIPE'}",
        description="Train by a recipe. Defaults shown are the recipe's; without a recipe, the paper's.",
        default=read_recipe(recipe) if recipe else Config(),
        args=arguments,
    )
    if recipe is None:
        raise ConfigError("no recipe given; start from one, e.g. `paint train lab-paint`")
    name = config.log.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = dataclasses.replace(config, log=dataclasses.replace(config.log, name=name))
    return _run(config, Path(config.log.folder) / name, resume=False)


def resume(arguments: list[str]) -> int:
    """Go on with a run."""
    parser = argparse.ArgumentParser(prog="paint resume", description="Go on with a run, bit by bit as it was.")
    parser.add_argument("run", type=Path, help="the run's folder (it holds run.json)")
    parser.add_argument(
        "--steps", type=_within(int, 1), help="optimizer steps in all, if more than the run was started with"
    )
    parser.add_argument("--urls", nargs="+", help="addresses of the vLLM servers, where they have changed")
    options = parser.parse_args(arguments)
    from paint.runlog import read_run  # torch takes seconds to import: not for --help

    config = read_run(options.run)
    if options.urls is not None:
        config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, urls=tuple(options.urls)))
    if options.steps is not None:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=options.steps))
    return _run(config, options.run, resume=True)


def evaluate(arguments: list[str]) -> int:
    """Answer benchmarks, grade, and compare with the base."""
    targets = []
    while arguments and not arguments[0].startswith("-"):
        targets.append(arguments.pop(0))
    evaluation = tyro.cli(
        Evaluation,
        prog="paint eval TARGET ...",
        description="Answer benchmarks, grade the answers, and compare with the base model. A TARGET is a run (all its "
        "checkpoints), a checkpoint, an adapter folder, or a model (folder or hub name). Every answer is stored; the "
        "same command goes on where it was stopped. Defaults are the paper's.",
        args=arguments,
    )
    if not targets:
        raise ConfigError(
            "nothing to evaluate; name a run, a checkpoint, an adapter folder or a model, before the options"
        )
    from paint import contest  # torch takes seconds to import: not for --help

    contest.evaluate(evaluation, targets)
    return 0


def grade(arguments: list[str]) -> int:
    """Grade stored evaluations again, and compare them."""
    parser = argparse.ArgumentParser(
        prog="paint grade",
        description="Grade stored answers again, without generating, and compare the policies; the first is the base.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="what `paint eval` made, or parts of it, or runs")
    parser.add_argument("--out", type=Path, help="where summary.json and summary.md go (default: the first folder)")
    parser.add_argument(
        "--deadline", type=SECONDS, default=5.0, help="processor seconds for the comparison of two answers (default: 5)"
    )
    options = parser.parse_args(arguments)
    from paint.display import Display
    from paint.evaluate import summarise_again

    out = options.out or options.folders[0]
    summarise_again(options.folders, out, Display(), deadline=options.deadline)
    return 0


def data(arguments: list[str]) -> int:
    """Make training data, or say what a file of problems holds."""
    parser = argparse.ArgumentParser(prog="paint data", description="Make and check training data (docs/data.md).")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    make = verbs.add_parser(
        "openthoughts",
        help="a verified, decontaminated sample of OpenThoughts-114k",
        description="Draw problems of mathematics from OpenThoughts whose solutions are verified and which repeat no "
        "benchmark problem (paper: Experimental Details). Interrupted, the same command goes on where it stopped.",
        argument_default=argparse.SUPPRESS,
    )
    make.add_argument("out", type=Path, help="file to write, OUT.jsonl; OUT.report.json and others go beside it")
    make.add_argument("--source", help="hub data set, or local file or folder with its columns (default: the hub's)")
    make.add_argument("--sample", type=_within(int, 1), help="problems to draw (default: 30000, the paper's)")
    make.add_argument("--seed", type=int, help="of the draw (default: 0)")
    make.add_argument(
        "--solution",
        choices=["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"],
        help="column that becomes the solution y* (default: deepseek_solution, which is always what is verified)",
    )
    make.add_argument(
        "--benchmarks",
        nargs="*",
        metavar="NAME[=PATH]",
        default=["aime_2024", "aime_2025", "aime_2026", "hmmt_feb_2025", "hmmt_feb_2026", "math_500"],
        help="evaluation sets whose problems must not be trained on, as in paint eval (default: all six of the hub)",
    )
    make.add_argument("--ngram", type=_within(int, 1), help="words of a shared piece that counts (default: 13)")
    make.add_argument(
        "--share", type=_within(float, 0, 1), help="share of a problem that is repeated, in [0, 1] (default: 0.6)"
    )
    make.add_argument("--workers", type=_within(int, 1), help="processes that verify (default: one for each core)")
    make.add_argument("--deadline", type=SECONDS, help="processor seconds for one answer (default: 5)")

    look = verbs.add_parser(
        "check",
        help="what a file of problems holds",
        description="Read all rows of a file and count what is good, bad, long, doubled or without a verified answer. "
        "Exit status 1 when a run would refuse the file.",
    )
    look.add_argument("file", help="JSONL, CSV or Parquet file, a hub data set (owner/name), or lab")
    look.add_argument(
        "--model.path", dest="model", required=True, help="model whose tokenizer counts: folder, hub name or lab"
    )
    look.add_argument(
        "--model.no-teacher-thinking",
        dest="teacher_thinking",
        action="store_false",
        help="thinking mode off in the teacher's prompt (default: on)",
    )
    for name in ("problem", "solution", "answer", "id"):
        look.add_argument(f"--data.{name}-field", dest=f"{name}_field", default=name, help=f"default: {name}")
    look.add_argument(
        "--data.max-prompt-tokens",
        dest="max_prompt_tokens",
        type=_within(int, 1),
        default=8192,
        help="longest prompt of the teacher, in tokens (default: 8192)",
    )
    look.add_argument(
        "--data.limit", dest="limit", type=_within(int, 1), help="stop after so many good rows (default: all)"
    )

    options = vars(parser.parse_args(arguments))
    return _check(**options) if options.pop("verb") == "check" else _openthoughts(**options)


def lab(arguments: list[str]) -> int:
    """Train and evaluate recipes on the embedded model, and print one table."""
    parser = argparse.ArgumentParser(
        prog="paint lab",
        description="Train and evaluate on the embedded model: each recipe from the same base, on the same problems.",
    )
    parser.add_argument("recipes", nargs="*", default=["lab-paint"], help="recipes to compare (default: lab-paint)")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where the runs go (default: runs)")
    parser.add_argument("--seed", type=int, default=0, help="of data order, rollouts and evaluation (default: 0)")
    parser.add_argument(
        "--problems",
        type=_within(int, 1, 200),
        default=100,
        help="held-out problems evaluated, up to 200 (default: 100)",
    )
    parser.add_argument(
        "--samples",
        type=_within(int, 1),
        default=12,
        help="answers per problem: the k of Avg@k (default: 12, the paper's)",
    )
    options = parser.parse_args(arguments)
    from paint.lab import run_lab

    folder = options.folder / f"lab-{time.strftime('%Y%m%d-%H%M%S')}"
    recipes = [find_recipe(name) for name in options.recipes]
    run_lab(recipes, folder, seed=options.seed, problems=options.problems, samples=options.samples)
    return 0


def _run(config: Config, folder: Path, *, resume: bool) -> int:
    from paint.train import train as run

    run(config, folder, resume=resume)
    return 0


def _openthoughts(out: Path, benchmarks: list[str], **options: Any) -> int:
    from paint.benchmarks import load_benchmark
    from paint.display import Display
    from paint.openthoughts import prepare, print_report

    display = Display()
    report = prepare(out, benchmarks=[load_benchmark(name) for name in benchmarks], display=display, **options)
    print_report(report, out, display)
    return 0


def _check(file: str, model: str, teacher_thinking: bool, **options: Any) -> int:
    from paint.config import Data
    from paint.survey import print_survey, survey

    found = survey(Data(path=file, **options), model, teacher_thinking=teacher_thinking)
    print_survey(found)
    return 1 if found.bad or found.too_long.count else 0


if __name__ == "__main__":
    sys.exit(main())
