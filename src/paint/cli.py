"""``paint``: each verb reads its arguments and calls one function.

What is specific to a verb stands in its section: the function that runs it, then its parser.
    Settings
of recipes and evaluations need no parser here: tyro makes their flags from paint.config.

Whatever imports torch is imported inside the verbs, after their arguments are read: it takes
seconds, and --help or a slip in a flag need not wait for it. What goes wrong ends in ``main``.
"""

import argparse
import errno
import io
import logging
import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from paint import __version__
from paint.config import MOST, Config, ConfigError, Data, Evaluation, Model, Shown
from paint.errors import (
    EndedElsewhere,
    PaintError,
    Stopped,
    brief,
    has_controls,
    is_output_unread,
    plain,
    reason,
    show,
    unexpected,
    wrong_name,
)
from paint.gpus import (
    HELP,
    Request,
    alone,
    pinned,
    requested,
    serve,
    served,
    train_on,
    with_gpus,
)
from paint.recipe import find_recipe, read_recipe, shipped_recipes
from paint.runs import read_run

Settings = TypeVar("Settings", Config, Evaluation)

USAGE = """\
paint: on-policy self-distillation with a partly masked solution

  paint train RECIPE [--section.field VALUE ...]
      train; `paint train RECIPE --help` explains every option
      --gpus 8 [--split 4+4] [--dry-run]: on so many GPUs, with vLLM servers on some of them
  paint plan RECIPE [--gpus N] [--nodes M] [--memory GB]
      what lies where, what fits, how long a step takes: an estimate, before anything is loaded
  paint resume RUN [--steps N]
      go on with a run from its last checkpoint
  paint serve RECIPE --gpus N
      vLLM servers for a run on other machines
  paint eval TARGET ... [--option VALUE ...]
      answer benchmarks, grade, compare; `paint eval --help` explains
  paint grade FOLDER ...
      grade stored evaluations again, and compare them
  paint show RUN | EVALUATION ...
      one HTML file: rollouts token by token, answers with their verdicts
  paint data openthoughts OUT.jsonl
      the paper's training data: verified, without benchmark problems
  paint data check FILE --model.path MODEL
      say what a file of problems holds
  paint probe RECIPE
      before training: how much more does the teacher know?
  paint lab [RECIPE ...] [--methods M,M,...]
      train and evaluate on the embedded model, on any laptop
  paint ablate TABLE RECIPE [--seeds N]
      the paper's ablations (mask-ratio, mask-placement, interpolation), and controls

RECIPE is a TOML file, or the name of one that comes with paint:
"""

RESUMABLE = ("eval", "data", "probe", "lab", "ablate")
"""Verbs whose same command goes on where it was interrupted."""

GOES_ON = "Interrupted, the same command goes on where it stopped."
SHARED = (
    "Given again while it runs, in another terminal or on another machine, it works on other cells."
)
RECIPE_FLAGS = (
    "Every setting of the recipe can be given as a flag, too: `paint train RECIPE --help` explains "
    "them."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb: what goes wrong is one message on stderr.

    The exit status is 2 for what the user can mend, 70 for an error that nobody expected, whose
    traceback is kept in a file, and 128 + n where signal n ended the work.
    """
    sys.stdout = sys.stdout or io.StringIO()  # None where the shell closed it
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every locale has every letter

    _spin_briefly()
    # Where it is installed, peft imports it, and it warns of a missing kernel for CPUs.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    line = list(sys.argv[1:] if arguments is None else arguments)
    name = f"paint {line[0]}" if line and line[0] in VERBS else "paint"
    try:
        return _run(line)
    except PaintError as error:
        return _end(f"{name}: {error}", 2)
    except Stopped as stopped:
        return _end(str(stopped), 128 + stopped.signal_number)
    except EndedElsewhere as ended:  # one rank alone says why
        return ended.status
    except KeyboardInterrupt:
        is_resumable = bool(line) and line[0] in RESUMABLE
        go_on = "; the same command goes on where it stopped" if is_resumable else ""
        return _end(f"{name}: interrupted{go_on}", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_output_unread():
            return 128 + signal.SIGPIPE
        if isinstance(error, OSError) and error.filename is not None:
            way_out = "look at its name, its rights and the space that is left"
            return _end(f"{name}: {error.filename}: {reason(error)}; {way_out}", 2)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _end(f"{name}: {reason(error)}, where the output or its files go", 2)
        return _end(f"{name}: {unexpected(error, line)}", 70)


def _spin_briefly() -> None:
    """Let OpenMP's threads that wait spin for a moment, and then sleep, unless the user says how.

    By default they spin for long, and where a core is shared, for a thread that cannot run
    meanwhile. If they slept at once, a step of the lab would take twice as long on idle cores
    (docs/log.md). OpenMP reads this when torch is imported, and never again.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["GOMP_SPINCOUNT"] = "10000"


def _run(line: list[str]) -> int:
    """The exit status of the verb. Raises what it raises."""
    verb, *rest = line or ["--help"]
    verbs = VERBS | {"-h": _help, "--help": _help, "-V": _version, "--version": _version}
    for argument in line:
        if has_controls(argument):
            raise ConfigError(f"the argument {show(argument)} holds control characters")
    if verb not in verbs:
        names = ", ".join(VERBS)
        raise ConfigError(f"unknown verb {brief(verb)}; there are {names} (see paint --help)")

    try:
        status = verbs[verb](rest)
    except SystemExit:  # of a parser, which has said why
        sys.stdout.flush()
        raise
    sys.stdout.flush()  # here, and not when Python ends, it is met that nobody reads
    return status


def _help(_: list[str]) -> int:
    print(USAGE + "".join(f"  {name}\n" for name in shipped_recipes()), end="")
    return 0


def _version(_: list[str]) -> int:
    print(f"paint {__version__}")
    return 0


def _end(message: str, status: int) -> int:
    """Say why it ends, if anybody listens."""
    with suppress(OSError):
        print(plain(with_gpus(message)), file=sys.stderr, flush=True)
    return status


def _within(kind: type, low: float, high: float) -> Callable[[str], float]:
    """A parser of numbers in [low, high]."""

    def parse(text: str) -> float:
        value: float = kind(text)
        if not low <= value <= high:
            bound = f"at most {high}" if value > high else f"at least {low:g}"
            allowed = f"in [{low:g}, {high:g}]" if high < MOST else bound
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {brief(text)[1:-1]}")
        return value

    parse.__name__ = kind.__name__  # argparse says "invalid int value"
    return parse


def place(text: str) -> Path:
    """A parser of paths."""
    if wrong := wrong_name(text):
        raise argparse.ArgumentTypeError(f"{brief(text)} {wrong}")
    return Path(text)


COUNT = _within(int, 1, MOST)
SEED = _within(int, 0, 2**63 - 1)
SECONDS = _within(float, 0.01, 86_400)


# --- train ---------------------------------------------------------------------------------------


def train(arguments: list[str]) -> int:
    """Train by a recipe; flags override its values."""
    request, arguments = requested(arguments)
    is_named = bool(arguments) and not arguments[0].startswith("-")
    recipe = find_recipe(arguments.pop(0)) if is_named else None
    config = _from_flags(
        Config,
        prog=f"paint train {recipe or 'RECIPE'}",
        description="Train by a recipe. Defaults shown are the recipe's; without a recipe, the "
        f"paper's. {HELP}",
        default=read_recipe(recipe) if recipe else Config(),
        args=arguments,
    )
    if recipe is None:
        raise ConfigError("no recipe given; start from one, e.g. `paint train lab-paint`")

    name = config.log.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = replace(config, log=replace(config.log, name=name))
    folder = Path(config.log.folder) / name
    line = ["train", str(recipe), *arguments]
    line += [] if "--log.name" in arguments else ["--log.name", name]
    return _train(config, folder, request, line)


def _train(
    config: Config, folder: Path, request: Request | None, line: list[str], *, resume: bool = False
) -> int:
    """Train here, or on the GPUs of a request, where a run that has begun goes on."""
    if request is None:
        _train_here(config, folder, resume=resume)
        return 0

    outcome = train_on(request, config, folder, line)
    if isinstance(outcome, int):
        return outcome
    config, placement = outcome
    has_begun = (folder / "run.json").exists()
    with pinned(placement):
        _train_here(config, folder, resume=has_begun)
    return 0


def _train_here(config: Config, folder: Path, *, resume: bool) -> None:
    from paint.show.trackers import log_page
    from paint.training import run

    run.train(config, folder, resume=resume, at_end=log_page)


# --- plan ----------------------------------------------------------------------------------------


def plan(arguments: list[str]) -> int:
    """What lies where on which GPU, and what fits."""
    options, flags = _plan_parser().parse_known_args(arguments)
    config = _override(find_recipe(options.recipe), flags, "plan")
    from paint.plan import make_plan
    from paint.planning import report

    memory = options.memory and options.memory * 1e9
    print(*report.lines(make_plan(config, options.gpus, options.nodes, memory)), sep="\n")
    return 0


def _plan_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint plan",
        description="What lies where on a GPU, what fits, the longest prompt and completion that "
        "fit, and which GPUs train and serve. An estimate from the model's config.json: nothing is "
        "loaded, and no GPU is needed (docs/plan.md).",
        epilog=RECIPE_FLAGS,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="the recipe to be trained, such as paint-qwen3-8b")
    parser.add_argument(
        "--gpus",
        type=_within(int, 0, 1024),
        default=1,
        help="GPUs of each machine; 0 is a laptop's CPU (default: 1)",
    )
    parser.add_argument(
        "--nodes", type=_within(int, 1, 1024), default=1, help="machines (default: 1)"
    )
    parser.add_argument(
        "--memory",
        type=_within(float, 1, 10_000),
        help="GB of each GPU (default: 80; of a laptop 16)",
    )
    return parser


# --- resume --------------------------------------------------------------------------------------


def resume(arguments: list[str]) -> int:
    """Go on with a run."""
    request, arguments = requested(arguments)
    options = _resume_parser().parse_args(arguments)
    config = read_run(options.run)
    if options.urls is not None:
        rollout = replace(config.rollout, urls=tuple(options.urls), server_gpus=())
        config = replace(config, rollout=rollout)
    if options.server_gpus is not None:
        rollout = replace(config.rollout, urls=(), server_gpus=tuple(options.server_gpus))
        config = replace(config, rollout=rollout)
    if options.steps is not None:
        config = replace(config, train=replace(config.train, steps=options.steps))
    if (gap := options.max_engine_gap) is not None:
        config = replace(config, rollout=replace(config.rollout, max_engine_gap=gap))
    return _train(config, options.run, request, ["resume", str(options.run)], resume=True)


def _resume_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint resume", description=f"Go on with a run, bit by bit as it was. {HELP}"
    )
    parser.add_argument("run", type=place, help="the run's folder (it holds run.json)")
    parser.add_argument(
        "--steps",
        type=COUNT,
        help="optimizer steps in all, if more than the run was started with",
    )
    parser.add_argument(
        "--urls", nargs="+", help="addresses of the vLLM servers, where they have changed"
    )
    parser.add_argument(
        "--max-engine-gap",
        type=float,
        help="another limit on what engine and trainer differ by, in nats; it changes no value",
    )
    parser.add_argument(
        "--server-gpus",
        nargs="+",
        help="GPUs of the servers that are started, one each, where they have changed (--gpus "
        "sets them)",
    )
    return parser


# --- serve ---------------------------------------------------------------------------------------


def run_servers(arguments: list[str]) -> int:
    """Run vLLM servers for a recipe's trainers on other machines."""
    request, arguments = requested(arguments)
    options, flags = _serve_parser().parse_known_args(arguments)
    config = _override(find_recipe(options.recipe), flags, "serve")
    if request is None:
        raise ConfigError("--gpus says how many GPUs of this machine serve")
    return serve(request, config, host=options.host, port=options.port)


def _serve_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint serve",
        description="vLLM servers for a recipe's trainers on other machines, until they are told "
        "to stop: one on each GPU, at --port and the ports after it, with the key in "
        f"VLLM_API_KEY. {HELP}",
        epilog=RECIPE_FLAGS,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="the recipe that is trained")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    parser.add_argument(
        "--port", type=_within(int, 1, 65_000), default=8000, help="of the first (default: 8000)"
    )
    return parser


# --- eval ----------------------------------------------------------------------------------------


def evaluate(arguments: list[str]) -> int:
    """Answer benchmarks, grade, and compare with the base."""
    request, arguments = requested(arguments)
    targets = []
    while arguments and not arguments[0].startswith("-"):
        targets.append(arguments.pop(0))
    evaluation = _from_flags(
        Evaluation,
        prog="paint eval TARGET ...",
        description="Answer benchmarks, grade the samples, and compare with the base model. A "
        "TARGET is a run (all its checkpoints), a checkpoint, an adapter folder, or a model "
        "(folder or hub name). Every sample is stored; the same command goes on where it was "
        f"stopped. Defaults are the paper's. {HELP}",
        args=arguments,
    )
    if not targets:
        raise ConfigError(
            "nothing to evaluate; name a run, a checkpoint, an adapter folder or a model, before "
            "the options"
        )
    from paint.evaluation import run

    model = run.resolve(evaluation, targets)[0] if request else Model()
    with _on_gpus(request, Config(model, rollout=evaluation.rollout), ranks=0) as config:
        if config is not None:
            run.evaluate(replace(evaluation, rollout=config.rollout), targets)
    return 0


# --- grade ---------------------------------------------------------------------------------------


def grade(arguments: list[str]) -> int:
    """Grade stored evaluations again, and compare them."""
    options = _grade_parser().parse_args(arguments)
    from paint.display import Display
    from paint.evaluation.stages import summarise_folders

    out = options.out or options.folders[0]
    summarise_folders(
        options.folders, out, Display(), deadline=options.deadline, verdicts=options.verdicts
    )
    return 0


def _grade_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint grade",
        description="Grade stored samples again, without generating, and compare the policies; the "
        "first is the base.",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=place,
        help="what `paint eval` made, or parts of it, or runs",
    )
    parser.add_argument(
        "--out",
        type=place,
        help="where summary.json and summary.md go (default: the first folder)",
    )
    parser.add_argument(
        "--deadline",
        type=SECONDS,
        default=5.0,
        help="processor seconds for the comparison of two answers (default: 5)",
    )
    parser.add_argument(
        "--verdicts",
        type=place,
        metavar="FILE",
        help="JSONL of verdicts by hand, which take the grader's place: problem, sample, verdict "
        "(right or wrong) and reason, and policy and benchmark where there are several",
    )
    return parser


# --- show ----------------------------------------------------------------------------------------


def show_pages(arguments: list[str]) -> int:
    """Write runs or evaluations as one HTML file."""
    options = _show_parser().parse_args(arguments)
    from paint.display import Display
    from paint.show.show import Asked, show_targets

    asked = Asked(
        options.targets,
        steps=options.step,
        row=options.row,
        contexts=options.contexts,
        again=not options.stored,
        format=options.format,
        out=options.out,
        opens=not options.no_open,
    )
    show_targets(asked, Display())
    return 0


def _show_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint show",
        description="One HTML file that opens anywhere, without a server and without a network: a "
        "run with its rollouts token by token, several runs over each other, or evaluations with "
        "every answer and its verdict (docs/show.md).",
    )
    parser.add_argument(
        "targets",
        nargs="+",
        type=place,
        help="a run, several runs to compare, or what `paint eval` made",
    )
    parser.add_argument(
        "--step",
        nargs="+",
        type=COUNT,
        default=[],
        help="of a run: steps whose rollouts are shown, all rows of each (default: as many steps "
        "as fit, with the rows of log.tokens)",
    )
    parser.add_argument(
        "--row", type=_within(int, 0, MOST), help="of a run: one row of each step, from 0"
    )
    parser.add_argument(
        "--contexts",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        default=[],
        metavar="C,C,...",
        help="of a run: score the completions under these contexts, too: own, none, other (another "
        "problem's solution), answer, wrong_answer",
    )
    parser.add_argument(
        "--stored",
        action="store_true",
        help="of a run: show only what was kept while training; load no model, score nothing again",
    )
    parser.add_argument(
        "--format",
        choices=["html", "inspect"],
        default="html",
        help="of evaluations: html, or logs that `inspect view` of inspect-ai reads, in the folder "
        "--out (default: html)",
    )
    parser.add_argument(
        "--out", type=place, help="file to write (default: show.html in the first target)"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open the page in a browser")
    return parser


# --- data ----------------------------------------------------------------------------------------


def data(arguments: list[str]) -> int:
    """Make training data, or say what a file of problems holds."""
    parser = ArgumentParser(
        prog="paint data", description="Make and check training data (docs/data.md)."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_openthoughts_parser(verbs)
    _add_check_parser(verbs)
    options = parser.parse_args(arguments)
    return _check(options) if options.verb == "check" else _openthoughts(options)


def _openthoughts(options: Namespace) -> int:
    from paint.data.problem_sets import load_benchmark
    from paint.display import Display
    from paint.preparation.openthoughts import make_training_data, print_preparation

    settings = vars(options)
    del settings["verb"]
    out, names = settings.pop("out"), settings.pop("benchmarks")
    display = Display()
    benchmarks = [load_benchmark(name) for name in names]
    preparation = make_training_data(out, benchmarks=benchmarks, display=display, **settings)
    print_preparation(preparation, out, display)
    return 0


def _check(options: Namespace) -> int:
    from paint.data.problem_sets import load_benchmark
    from paint.preparation.check import check_file, print_check

    source = Data(
        path=options.file,
        problem_field=options.problem_field,
        solution_field=options.solution_field,
        answer_field=options.answer_field,
        id_field=options.id_field,
        max_prompt_tokens=options.max_prompt_tokens,
        limit=options.limit,
    )
    check = check_file(
        source,
        options.model,
        teacher_thinking=options.teacher_thinking,
        benchmarks=[load_benchmark(name) for name in options.benchmarks],
    )
    print_check(check)
    return 1 if check.bad or check.too_long.count else 0


def _add_openthoughts_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "openthoughts",
        help="a verified, decontaminated sample of OpenThoughts-114k",
        description="Draw problems of mathematics from OpenThoughts whose solutions are verified "
        f"and which repeat no benchmark problem (paper: Experimental Setup). {GOES_ON}",
        argument_default=argparse.SUPPRESS,  # what is not given keeps the function's default
    )
    parser.add_argument(
        "out", type=place, help="file to write, OUT.jsonl; OUT.report.json and others go beside it"
    )
    parser.add_argument(
        "--source",
        help="hub data set, or local file or folder with its columns (default: the hub's)",
    )
    parser.add_argument(
        "--sample", type=COUNT, help="problems to draw (default: 30000, the paper's)"
    )
    parser.add_argument("--seed", type=SEED, help="of the draw (default: 0)")
    parser.add_argument(
        "--solution",
        choices=["deepseek_solution", "ground_truth_solution", "deepseek_reasoning"],
        help="column that becomes the solution y* (default: deepseek_solution, which is always "
        "what is verified)",
    )
    parser.add_argument(
        "--benchmarks",
        nargs="*",
        metavar="NAME[=PATH]",
        default=[
            "aime_2024",
            "aime_2025",
            "aime_2026",
            "hmmt_feb_2025",
            "hmmt_feb_2026",
            "math_500",
        ],
        help="evaluation sets whose problems must not be trained on, as in paint eval (default: "
        "all six of the hub)",
    )
    parser.add_argument(
        "--ngram", type=COUNT, help="words of a shared piece that counts (default: 13)"
    )
    parser.add_argument(
        "--share",
        type=_within(float, 0, 1),
        help="share of a problem that is repeated, in [0, 1] (default: 0.6)",
    )
    parser.add_argument(
        "--masked",
        action="store_true",
        help="also drop problems that repeat one with other numbers or letters, and some that only "
        "sound alike (docs/data.md)",
    )
    parser.add_argument(
        "--workers", type=COUNT, help="processes that verify (default: one for each core)"
    )
    parser.add_argument(
        "--deadline", type=SECONDS, help="processor seconds for one answer (default: 5)"
    )


def _add_check_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        help="what a file of problems holds",
        description="Read all rows of a file and count what is good, bad, long, doubled or without "
        "a verified answer. Exit status 1 when a run would refuse the file.",
    )
    parser.add_argument(
        "file", help="JSONL, CSV or Parquet file, a hub data set (owner/name), or lab"
    )
    parser.add_argument(
        "--model.path",
        dest="model",
        required=True,
        help="model whose tokenizer counts: folder, hub name or lab",
    )
    parser.add_argument(
        "--benchmarks",
        nargs="*",
        default=[],
        metavar="NAME[=PATH]",
        help="evaluation sets, as in paint eval, whose problems are searched for in the file "
        "(default: none)",
    )
    parser.add_argument(
        "--model.no-teacher-thinking",
        dest="teacher_thinking",
        action="store_false",
        help="thinking mode off in the teacher's prompt (default: on)",
    )
    for name in ("problem", "solution", "answer", "id"):
        parser.add_argument(
            f"--data.{name}-field", dest=f"{name}_field", default=name, help=f"default: {name}"
        )
    parser.add_argument(
        "--data.max-prompt-tokens",
        dest="max_prompt_tokens",
        type=COUNT,
        default=8192,
        help="longest prompt of the teacher, in tokens (default: 8192)",
    )
    parser.add_argument(
        "--data.limit",
        dest="limit",
        type=COUNT,
        help="stop after so many good rows (default: all)",
    )


# --- probe ---------------------------------------------------------------------------------------


def probe(arguments: list[str]) -> int:
    """Before any training: accuracy of student and teacher on the same problems."""
    request, arguments = requested(arguments)
    options, flags = _probe_parser().parse_known_args(arguments)
    recipe = find_recipe(options.recipe)
    with _on_gpus(request, _override(recipe, flags, "probe"), ranks=0) as config:
        if config is None:
            return 0
        from paint.experiments import probe as experiment

        experiment.probe(
            config,
            options.folder or Path("probes") / recipe.stem,
            problems=options.problems,
            samples=options.samples,
            ratios=options.ratios,
            shown=options.shown,
        )
    return 0


def _probe_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint probe",
        description="Before any training: accuracy of the student, and of the teacher at several "
        "mask ratios, on the same problems. What training gains follows that difference. "
        f"Completions are sampled as the recipe samples rollouts. {GOES_ON}",
        epilog=RECIPE_FLAGS,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="the recipe to be trained, such as lab-paint")
    parser.add_argument(
        "--problems",
        type=COUNT,
        default=100,
        help="training problems asked, in the order in which training takes them (default: 100)",
    )
    parser.add_argument(
        "--samples",
        type=COUNT,
        default=4,
        help="samples a problem, of the student and of each teacher (default: 4)",
    )
    parser.add_argument(
        "--ratios",
        type=float,
        nargs="+",
        default=[0.0, 0.25, 0.30, 0.40, 0.50, 0.75],
        metavar="RHO",
        help="mask ratios of the teacher, each in [0, 1); 0 is the whole solution (paper: those of "
        "table mask_ratio_ablation; default: all of them, 0 0.25 0.3 0.4 0.5 0.75)",
    )
    parser.add_argument(
        "--shown",
        nargs="+",
        default=["own"],
        choices=get_args(Shown),
        help="what the teacher is shown: the problem's own solution, and as controls another "
        "problem's, nothing, the right answer, a wrong one (default: own). The cost is "
        "problems * samples completions for each row: one of the student; own and other have one "
        "at each mask ratio, the rest one. 2,800 completions by default; 2,400 with "
        "--ratios 0.4 --shown own other none answer wrong_answer",
    )
    parser.add_argument(
        "--folder", type=place, help="where samples and tables go (default: probes/RECIPE)"
    )
    return parser


# --- lab -----------------------------------------------------------------------------------------


def lab(arguments: list[str]) -> int:
    """Train and evaluate recipes on the embedded model, and print one table."""
    request, arguments = requested(arguments)
    options = _lab_parser().parse_args(arguments)
    names = [*options.recipes, *(f"lab-{name}" for name in options.methods)]
    recipes = [find_recipe(name) for name in names or ["lab-paint"]]
    settings: dict[str, Any] = {
        "seeds": _seeds(options),
        "problems": options.problems,
        "samples": options.samples,
        "every_checkpoint": options.every_checkpoint,
    }

    with _on_gpus(request, read_recipe(recipes[-1]), ranks=1) as config:
        if config is None:
            return 0
        if request is not None:
            settings["server_gpus"] = config.rollout.server_gpus
        from paint.experiments.lab import run_lab

        run_lab(recipes, options.folder, **settings)
    return 0


def _lab_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint lab",
        description="Train and evaluate on the embedded model: each recipe from the same base, on "
        "the same problems. The last recipe is compared with each of the others. "
        f"{GOES_ON} {SHARED}",
    )
    parser.add_argument(
        "recipes",
        nargs="*",
        help="recipes to compare (default: lab-paint)",
    )
    parser.add_argument(
        "--methods",
        type=lambda text: [name.strip() for name in text.split(",")],
        default=[],
        metavar="M,M,...",
        help="the model's recipes by method, among sft, grpo, opsd, paint: all four are the "
        "paper's main table; grpo-long is grpo with 8 times as many steps",
    )
    _add_seeds_and_samples(parser, seeds=1)
    _add_every_checkpoint(
        parser,
        "tables by step, and efficiency.svg and .png: accuracy against rollout tokens and against "
        "seconds",
    )
    parser.add_argument(
        "--folder",
        type=place,
        default=Path("runs/lab"),
        help="where results, runs and samples go; what it holds already is not done again "
        "(default: runs/lab)",
    )
    parser.add_argument(
        "--problems",
        type=_within(int, 1, 200),
        default=100,
        help="held-out problems evaluated, up to 200 (default: 100)",
    )
    return parser


# --- ablate --------------------------------------------------------------------------------------


def ablate(arguments: list[str]) -> int:
    """Train and evaluate the rows of one of the paper's ablation tables."""
    request, arguments = requested(arguments)
    options, flags = _ablate_parser().parse_known_args(arguments)
    recipe = find_recipe(options.recipe)
    config = _override(recipe, flags, f"ablate {options.table}")
    unchanged = read_recipe(recipe)
    if (config.log, config.train.seed) != (unchanged.log, unchanged.train.seed):
        raise ConfigError(
            "rows have folders and seeds of their own: --folder, --seed and --seeds say which"
        )
    with _on_gpus(request, config, ranks=1) as served_config:
        if served_config is None:
            return 0
        from paint.experiments import ablations

        ablations.ablate(
            options.table,
            served_config,
            options.folder or Path("runs") / f"ablate-{recipe.stem}",
            seeds=_seeds(options),
            benchmark=options.benchmark,
            problems=options.problems,
            samples=options.samples,
            every_checkpoint=options.every_checkpoint,
        )
    return 0


def _ablate_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="paint ablate",
        description="One of the paper's ablation tables (section 'Ablation Studies'), or controls, "
        "row by row, from any recipe: what the table varies replaces the recipe's values. Rows "
        f"that stand in several tables are trained once, if the folder is the same. {GOES_ON} "
        f"{SHARED}",
        epilog=RECIPE_FLAGS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "table",
        choices=["mask-ratio", "mask-placement", "interpolation", "controls"],
        help="mask-ratio: rho_correct and rho_wrong; mask-placement: which part is hidden; "
        "interpolation: k_base and f_top (paper: tables mask_ratio_ablation, "
        "mask_strategy_ablation, interpolation_ablation); controls: what the teacher is shown in "
        "place of the solution (ours)",
    )
    parser.add_argument(
        "recipe",
        help="recipe to start from (paper: paint-qwen3-1.7b), or lab-paint on any laptop",
    )
    _add_seeds_and_samples(parser, seeds=3)
    _add_every_checkpoint(
        parser,
        "a table by step, and each seed's best one (paper: Main Results, best within 100 steps)",
    )
    parser.add_argument(
        "--folder",
        type=place,
        help="where results, runs and samples go; what it holds already is not done again "
        "(default: runs/ablate-RECIPE)",
    )
    parser.add_argument(
        "--benchmark",
        help="problems evaluated, named as in paint eval (paper: Ablation Studies, aime_2024; "
        "default: that, or for the embedded model its held-out problems)",
    )
    parser.add_argument(
        "--problems",
        type=COUNT,
        help="evaluate on the first so many of these problems (default: all)",
    )
    return parser


# --- what several verbs share --------------------------------------------------------------------


def _override(recipe: Path, flags: list[str], verb: str) -> Config:
    """The recipe with what the flags say in its place."""
    prog = f"paint {verb} {recipe}"
    return _from_flags(Config, prog=prog, default=read_recipe(recipe), args=flags)


@contextmanager
def _on_gpus(request: Request | None, config: Config, *, ranks: int) -> Iterator[Config | None]:
    """The config for one process that trains on so many GPUs, with servers on the others.

    Without a request it is as it was; None: a dry run, which has printed what would be started.
    """
    placement = alone(request, config, ranks=ranks) if request else None
    if request is None:
        yield config
    elif placement is None:
        yield None
    else:
        with pinned(placement):
            yield served(config, placement)


def _from_flags(kind: type[Settings], **options: Any) -> Settings:
    """The settings that flags describe; tyro makes their parser."""
    import tyro

    settings: Settings = tyro.cli(kind, **options)
    return settings


def _add_seeds_and_samples(parser: ArgumentParser, *, seeds: int) -> None:
    parser.add_argument(
        "--seeds",
        type=COUNT,
        default=seeds,
        help=f"trainings of each row, with seeds of their own (ours; default: {seeds})",
    )
    parser.add_argument(
        "--seed",
        type=SEED,
        default=0,
        help="the first seed; each is that of data order, rollouts and evaluation (default: 0)",
    )
    parser.add_argument(
        "--samples",
        type=COUNT,
        default=12,
        help="samples a problem: the k of Avg@k (paper: Experimental Details, 12; default: 12)",
    )


def _add_every_checkpoint(parser: ArgumentParser, shown: str) -> None:
    parser.add_argument(
        "--every-checkpoint",
        action="store_true",
        help="evaluate every checkpoint (train.checkpoint_every), not the last one alone, which "
        f"stays what is reported; adds {shown}",
    )


def _seeds(options: Namespace) -> range:
    return range(options.seed, options.seed + options.seeds)


VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "plan": plan,
    "resume": resume,
    "serve": run_servers,
    "eval": evaluate,
    "grade": grade,
    "show": show_pages,
    "data": data,
    "probe": probe,
    "lab": lab,
    "ablate": ablate,
}

if __name__ == "__main__":
    sys.exit(main())
