"""Train and evaluate Qwen2.5-Coder-0.5B-Instruct on GSM8K and MBPP, by all methods and controls.

    python examples/qwen/run.py --processes 4      all of it, four runs beside each other on a GPU
    python examples/qwen/run.py --parts gsm8k --seeds 1
    python examples/qwen/run.py --rehearse --model FOLDER --data FOLDER      every stage, in minutes

    runs/qwen/
      tasks/                         a file for each task that is done, or that failed
      data/                          rows: train less validation, validation, wrong ends, test
      wordings/, contexts/           `paint advise`: what a context repairs, before any training
      rates/                         three learning rates of PAINT, and their KL on validation rows
      gsm8k/, wrong-ends/, mbpp/     an experiment each, as paint.lab.runner writes it
      transfer/seed-0/               GSM8K's policies on MATH-500 and HumanEval

Each process takes the first task that is free and whose needs are there: seed 0 of every part comes
first, so that what is cut short leaves tables. What is done is not done again: the same command
continues, and several at once share the tasks. One that fails is named, and the others go on.

Nothing is chosen on a test problem. The teacher's wording is the one with the largest accuracy
gradient on training problems. The learning rate of OPSD, PAINT and its controls is the one of PAINT
whose student is closest to its teacher on validation rows, which are cut from the end of the
training data; GRPO, SFT and sdpo have their recipes'.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

import paint
from contexts import with_wrong_numbers  # type: ignore[import-not-found]
from paint.config.schema import Config, DataConfig, PromptsConfig, RolloutConfig
from paint.core import storage
from paint.core.display import Display, shown_on_terminal
from paint.core.errors import Interrupted, PaintError
from paint.core.storage import FolderInUse, lock_folder
from paint.data.benchmarks import PUBLISHED, load_benchmark
from paint.data.problems import read_problems, to_row
from paint.lab.checkpoint_results import BASE as BASE_MODEL
from paint.lab.checkpoint_results import read_results
from paint.lab.comparison_report import Layout, publish
from paint.lab.eval_protocols import EvalProtocol
from paint.lab.learning_rates import nearest, try_rate
from paint.lab.recipes import read_recipes
from paint.lab.runner import ExperimentRun, run_experiment

HERE = Path(__file__).parent
BASE = str(HERE / "recipes" / "qwen.toml")

Part = Literal["contexts", "gsm8k", "wrong-ends", "mbpp"]
PARTS: tuple[Part, ...] = ("gsm8k", "wrong-ends", "mbpp")
"""The experiments, by importance."""

VALIDATION = 256
"""Rows that are cut from the end of the training data."""

REHEARSED = 1200
"""Characters of a row, of which a rehearsal takes shorter ones: they fit any model."""

WRONG_SHARE = 0.4
"""Of a reference's numbers, from the end, that are wrong in the part wrong-ends."""

INSTRUCTION = "put the final answer within \\boxed{}."

EXAMPLE = (
    "Problem: A box holds 3 red and twice as many blue pens. How many pens does it hold?\n\n"
    "Here is the correct solution:\nThere are 3*2 = 6 blue pens.\nThe answer is \\boxed{9}.\n\n"
    "Answer: There are 3 red pens and 3*2 = 6 blue pens. Together these are 3+6 = 9 pens.\n"
    "The answer is \\boxed{9}.\n\n"
)

PART = (
    "Here is {% if complete %}the{% else %}the beginning of the{% endif %} correct solution:\n"
    "{{ context }}"
)
ASKED = (
    "{% if complete %}Explain{% else %}Complete{% endif %} this solution step by step, and "
    + INSTRUCTION
)
WORDINGS = {
    "paper": PromptsConfig(),
    "explain": PromptsConfig(teacher=f"Problem: {{{{ problem }}}}\n\n{PART}\n\n{ASKED}"),
    "example": PromptsConfig(
        teacher=f"{EXAMPLE}Problem: {{{{ problem }}}}\n\n{PART}\n\nAnswer: {ASKED}"
    ),
}
"""What the teacher is asked, beside the masked solution. The paper's is a row of every table."""

CONTEXTS = ("solution", "contexts:numbers_shifted", "contexts:first_step", "other", "none")
"""What a context repairs is measured for these, the solution whole and with 0.35 of it masked."""

METHODS: dict[Part, tuple[str, ...]] = {
    "gsm8k": (str(HERE / "recipes/sft.toml"), str(HERE / "recipes/grpo.toml"), "opsd", "paint"),
    "wrong-ends": (str(HERE / "recipes/sft.toml"), "opsd", "paint"),
    "mbpp": (
        str(HERE / "recipes/sft.toml"),
        str(HERE / "recipes/grpo.toml"),
        "sdpo",
        "opsd",
        "paint",
    ),
}
RATES = (1, 3, 10)
"""Learning rates of PAINT that are tried, as multiples of the paper's."""

TRANSFER = {"humaneval": "code", "math500": "math"}
"""Benchmarks on which the policies of GSM8K are evaluated, and their graders."""

OWN_RATE = ("sft", "grpo", "sdpo")
"""Methods that keep the learning rate of their recipe."""

FIXED = ("model", "steps", "batch_size", "problems", "wording", "rate", "rehearse")
"""Options on which results depend: a folder has those of its first call."""

HELPER = "QWEN_HELPER"
"""Set in the environment of the further processes, to the number of all."""

AS_IN_PAPER = "paint-as-worded-in-the-paper"
CLIP_MODES = {"without-clip": "none", "bounded": "huber"}
OTHER_CLIPS = (
    "opsd-without-clip",
    "paint-other-without-clip",
    "paint-without-clip-x3",
    "paint-without-clip",
    "opsd-bounded",
    "opsd-bounded-x3",
    "paint-other-bounded",
    "paint-bounded-x3",
    "paint-bounded",
)
"""The same losses without the paper's clip, with which they collapsed on an H200, and with the
bounded form, which is the default."""

TRIPLED = "-x3"
"""A run whose name ends so has three times the learning rate."""

CONTROLS: dict[Part, tuple[str, ...]] = {"gsm8k": ("none", "other", "answer")}


@dataclass(frozen=True)
class Options:
    """Train and evaluate Qwen2.5-Coder-0.5B-Instruct (docs/results/qwen.md has the figures)."""

    model: str = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    """Folder or hub name of the model."""
    data: Path | None = None
    """Folder with gsm8k_train.jsonl, gsm8k_test.jsonl, math500.jsonl, humaneval.jsonl,
    mbpp_train.jsonl and mbpp_test.jsonl; None: the hub's data sets."""
    parts: tuple[Part, ...] = ("contexts", "gsm8k", "wrong-ends", "mbpp")
    """What is done."""
    seeds: int = 3
    """Trainings of each method, with the seeds 0, 1, ..."""
    steps: int = 50
    """Steps of a training."""
    batch_size: int = 32
    """Completions of a step."""
    problems: int | None = None
    """Test problems of each set, from the first; None: all."""
    methods: tuple[str, ...] = ()
    """Runs of each part that are made, in this order; empty: all."""
    wording: Literal["paper", "explain", "example"] | None = None
    """The teacher's wording; None: the one with the largest accuracy gradient."""
    rate: float | None = None
    """Learning rate of the methods with a teacher; None: searched."""
    rehearse: bool = False
    """Every stage, small: two steps of eight completions, four problems, one seed."""
    processes: int = 1
    """Processes that share the runs."""
    folder: Path = Path("runs/qwen")
    """Folder of rows, runs, results and answers."""

    @property
    def tokens(self) -> int:
        return 24 if self.rehearse else 320

    @property
    def rates(self) -> tuple[int, ...]:
        """The multiples of the paper's learning rate that are tried."""
        if self.rate is not None:
            return ()
        return RATES[:1] if self.rehearse else RATES

    @property
    def limit(self) -> int | None:
        return 4 if self.rehearse else self.problems


def main() -> None:
    """Run the parts that the command line names."""
    options = tyro.cli(Options, description=Options.__doc__)
    if options.rehearse:
        options = replace(options, seeds=1, steps=2, batch_size=8)
    options.folder.mkdir(parents=True, exist_ok=True)
    if HELPER not in os.environ:
        for path in (options.folder / "tasks").glob("*.failed"):
            path.unlink()  # tried again
    helpers = start_helpers(options)
    if torch.cuda.is_available():
        # Otherwise each process would plan its micro-batches for the whole GPU.
        processes = int(os.environ.get(HELPER, options.processes))
        torch.cuda.set_per_process_memory_fraction(1 / processes)
    try:
        run(options)
    except (PaintError, Interrupted) as error:
        sys.exit(str(error))
    finally:
        for helper in helpers:
            helper.wait()


def start_helpers(options: Options) -> list[subprocess.Popen[bytes]]:
    """Start this command again, as often as there are further processes; each writes a log."""
    arguments = [*sys.argv[1:], "--processes", "1"]
    environment = {**os.environ, HELPER: str(options.processes)}
    helpers = []
    for number in range(1, options.processes):
        log = (options.folder / f"process-{number}.txt").open("ab")
        command = [sys.executable, __file__, *arguments]
        helpers.append(
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        )
    return helpers


# --- tasks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A piece of the work, which one process does.

    Attributes:
        name: of its lock, and of its file once it is done or has failed.
        do: does it; what was interrupted is resumed.
        needs: names of the tasks that must be done before.
    """

    name: str
    do: Callable[[], object]
    needs: tuple[str, ...] = ()


def run(options: Options) -> None:
    """Do the tasks that no other process does, and write the tables."""
    display = Display()
    with lock_folder(options.folder, ".lock-data", waiting=display.note):
        require_same(options)
        write_rows(options)
    share(tasks_of(options, display), options.folder / "tasks", display)
    if HELPER in os.environ:
        return  # the first process writes the tables of all
    with lock_folder(options.folder, ".lock-tables", waiting=display.note):
        for part in PARTS:
            if part in options.parts:
                write_tables(part, options, display)


def require_same(options: Options) -> None:
    """Exit if the folder holds results of other options: its tasks are done, and say nothing."""
    path = options.folder / "options.json"
    # As JSON has them, so that they compare equal with what is read.
    fixed = {name: getattr(options, name) for name in FIXED}
    if not path.exists():
        storage.write_json(path, fixed)
    held = storage.read_json(path, "delete it")
    if held != fixed:
        sys.exit(f"{options.folder} holds results of {held}, not of {fixed}; name another --folder")


def share(tasks: Sequence[Task], folder: Path, display: Display) -> None:
    """Do each task whose needs are done and that no other process does; wait for the others'."""
    folder.mkdir(exist_ok=True)
    left = list(tasks)
    while left:
        left = [task for task in left if not is_over(task, folder)]
        for task in left:
            if all((folder / f"{need}.done").exists() for need in task.needs):
                with suppress(FolderInUse), lock_folder(folder, f".lock-{task.name}"):
                    if not is_over(task, folder):  # another process may have just done it
                        do(task, folder, display)
                    break  # an earlier task may be ready now
        else:
            time.sleep(1)


def is_over(task: Task, folder: Path) -> bool:
    """Whether the task is done or failed. It fails with what it needs, and so do those after it."""
    failed = folder / f"{task.name}.failed"
    for need in task.needs:
        if (folder / f"{need}.failed").exists():
            failed.write_text(f"{need} failed\n")
    return failed.exists() or (folder / f"{task.name}.done").exists()


def do(task: Task, folder: Path, display: Display) -> None:
    """Do a task, and write its file. An error is written there: the others go on."""
    began = time.monotonic()
    display.note(f"task {task.name}")
    try:
        task.do()
    except Interrupted:
        raise
    except Exception:
        (folder / f"{task.name}.failed").write_text(traceback.format_exc())
        display.warn(f"task {task.name} failed:\n{traceback.format_exc()}")
    else:
        took = f"{time.monotonic() - began:.0f} s"
        (folder / f"{task.name}.done").write_text(took + "\n")
        display.note(f"task {task.name} took {took}")


def tasks_of(options: Options, display: Display) -> list[Task]:
    """All tasks in the order in which they are taken."""
    tasks = []
    wordings: tuple[str, ...] = ()
    if "contexts" in options.parts:
        wordings = tuple(f"wording-{name}" for name in WORDINGS)
        tasks += [
            Task(f"wording-{name}", partial(measure_wording, name, options)) for name in WORDINGS
        ]
    # A wording that is given is not waited for, though all are measured.
    awaited = wordings if options.wording is None else ()
    rates = []
    for factor in options.rates:
        do_rate = partial(search_rate, (factor,), options, display)
        rates.append(Task(f"rate-{factor}", do_rate, awaited))
    needs = (*awaited, *(task.name for task in rates))

    for seed in range(options.seeds):
        free: list[Task] = []
        taught: list[Task] = []
        transfers: list[Task] = []
        for part in (part for part in PARTS if part in options.parts):
            trained = []
            for name in options.methods or names_of(part):
                do_run = partial(train_and_evaluate, part, name, seed, options, display)
                has_rate = name not in OWN_RATE
                task = Task(f"{part}-{name}-{seed}", do_run, needs if has_rate else ())
                (taught if task.needs else free).append(task)
                trained.append(task.name)
            if part == "gsm8k" and not options.methods:
                for benchmark, grader in TRANSFER.items():
                    do_transfer = partial(transfer, benchmark, grader, seed, options)
                    task = Task(f"transfer-{benchmark}-{seed}", do_transfer, tuple(trained))
                    transfers.append(task)
        # The rates wait for the wordings: what needs neither comes between.
        tasks += [*free, *(rates if seed == 0 else []), *taught, *transfers]
        if seed == 0 and wordings:
            tasks.append(Task("contexts", partial(measure_contexts, options), wordings))
    return tasks


# --- rows ----------------------------------------------------------------------------------------


def source_of(name: str, options: Options) -> str:
    """The file of a set, or its name on the hub."""
    if options.data is not None:
        return str(options.data / f"{name}.jsonl")
    hub = {
        "gsm8k_train": "openai/gsm8k:main",
        "mbpp_train": "google-research-datasets/mbpp:full",
        "gsm8k_test": PUBLISHED["gsm8k"].source,
        "mbpp_test": PUBLISHED["mbpp"].source,
        "math500": PUBLISHED["math_500"].source,
        "humaneval": PUBLISHED["humaneval"].source,
    }
    return hub[name]


def write_rows(options: Options) -> None:
    """The rows of all parts, in the experiment's folder; what is there is not made again."""
    folder = options.folder / "data"
    folder.mkdir(exist_ok=True)
    names = ("gsm8k_train", "gsm8k_test", "math500", "mbpp_train", "mbpp_test", "humaneval")
    for name in names:
        path = folder / f"{name}.jsonl"
        if path.exists():
            continue
        is_code = name in ("mbpp_train", "mbpp_test", "humaneval")
        needs = {"tests": "the grader code"} if is_code else {"answer": ""}
        found = read_problems(
            DataConfig(path=source_of(name, options)),
            needs=needs,
            solutions=name.endswith("_train"),
        )
        rows = []
        for problem in found.problems:
            row = to_row(problem)
            rows.append(row | row.pop("fields", {}))
        if options.rehearse:
            rows = [row for row in rows if len(json.dumps(row)) < REHEARSED][:40]
        if name.endswith("_train"):
            cut = min(VALIDATION, len(rows) // 5)
            storage.write_jsonl(folder / name.replace("train", "validation.jsonl"), rows[-cut:])
            rows = rows[:-cut]
        storage.write_jsonl(path, rows)
    for split in ("train", "validation"):
        path = folder / f"gsm8k_wrong_{split}.jsonl"
        if not path.exists():
            right = list(storage.read_jsonl(folder / f"gsm8k_{split}.jsonl", "delete it"))
            storage.write_jsonl(path, map(with_wrong_end, right))


def with_wrong_end(row: dict[str, Any]) -> dict[str, Any]:
    """The row with WRONG_SHARE of its reference's numbers wrong; its answer stays right."""
    wrong = with_wrong_numbers(row["solution"], str(row["id"]), share=WRONG_SHARE)
    return {**row, "solution": wrong}


def rows_of(part: Part, split: str, options: Options) -> str:
    """The file of a part's rows."""
    name = {"gsm8k": "gsm8k", "wrong-ends": "gsm8k_wrong", "mbpp": "mbpp"}[part]
    return str(options.folder / "data" / f"{name}_{split}.jsonl")


# --- what a context repairs ----------------------------------------------------------------------


def measure_wording(name: str, options: Options) -> paint.Result:
    """What the solution repairs in a wording, whole and with 0.35 masked."""
    place = options.folder / "wordings" / name
    return advise(place, WORDINGS[name], ("solution",), (0.0, 0.35), options)


def wording_of(options: Options) -> str:
    """The wording with the largest accuracy gradient of the solution with 0.35 masked."""
    if options.wording is not None:
        return options.wording
    if "contexts" not in options.parts:
        return "paper"
    gradients = {}
    for name in WORDINGS:
        found = paint.Result(options.folder / "wordings" / name)
        gradients[name] = gradient_of(found, "solution@0.35")
    return max(gradients, key=lambda name: gradients[name])


def measure_contexts(options: Options) -> paint.Result:
    """What each context repairs, in the chosen wording."""
    wording = WORDINGS[wording_of(options)]
    return advise(options.folder / "contexts", wording, CONTEXTS, (0.0, 0.35), options)


def advise(
    place: Path,
    prompts: PromptsConfig,
    contexts: Sequence[str],
    ratios: tuple[float, ...],
    options: Options,
) -> paint.Result:
    """`paint advise`, with the teacher's own answers, on the first training problems."""
    return paint.advise(
        BASE,
        model=options.model,
        data=rows_of("gsm8k", "train", options),
        output_dir=place,
        problems=4 if options.rehearse else (300 if len(contexts) > 1 else 100),
        samples=2,
        contexts=contexts,
        ratios=ratios,
        answers=True,
        prompts={"teacher": prompts.teacher},
        rollout={"max_new_tokens": options.tokens, "batch_size": 256},
    )


def gradient_of(found: paint.Result, context: str) -> float:
    """The accuracy gradient of a context."""
    for row in found.report.rows:
        if (row.policy, row.metric, row.against) == (context, "accuracy_gradient", ""):
            return row.mean
    raise AssertionError(f"{found.path} has no accuracy gradient of {context}")


# --- experiments ---------------------------------------------------------------------------------


def names_of(part: Part) -> list[str]:
    """The runs of a part, in the order in which they are taken."""
    names = {
        "gsm8k": [
            "paint",
            "opsd",
            *OTHER_CLIPS,
            "grpo",
            "paint-other",
            "paint-none",
            "sft",
            "paint-answer",
        ],
        "wrong-ends": ["paint", "opsd", "sft"],
        "mbpp": ["grpo", "paint", "opsd", "sdpo", "sft"],
    }
    found = names[part]
    return [*found, AS_IN_PAPER] if part == "gsm8k" else found


def search_rate(factors: Sequence[float], options: Options, display: Display) -> float:
    """The learning rate of PAINT on GSM8K, of these multiples of the paper's."""
    cell = next(
        cell for cell in cells_of("gsm8k", wording_of(options), options) if cell.name == "paint"
    )
    data = replace(
        cell.config.data,
        path=rows_of("gsm8k", "validation", options),
        limit=2 if options.rehearse else 128,
    )
    steps, samples = (1, 1) if options.rehearse else (20, 2)
    train = {"steps": steps, "seed": 100}  # of the comparison's seeds, none is this one
    problems = read_problems(data, needs=cell.checked.needed_fields).problems
    trials = []
    for factor in factors:
        rate = cell.config.train.learning_rate * factor
        config = cell.config.changed("train", learning_rate=rate, **train)
        config = config.changed("health", stop_on=())  # rates are judged after equal steps
        run = ExperimentRun(f"paint-{rate:.1e}", config)
        folder = options.folder / "rates" / run.name
        trials.append(try_rate(run, rate, problems, samples, folder, display))
    for trial in trials:
        display.note(f"{trial.name}: KL {trial.mean_kl:.4f} nats a token {trial.course}")
    return (nearest(trials) or trials[0]).rate


def train_and_evaluate(
    part: Part, name: str, seed: int, options: Options, display: Display
) -> None:
    """Train a method of a part, and evaluate it and the base."""
    # Methods without a teacher do not wait for the wording.
    wording = "paper" if name in OWN_RATE else wording_of(options)
    cells = {cell.name: cell for cell in cells_of(part, wording, options)}
    if name not in cells:  # the paper's wording was chosen
        return
    cell = cells[name]
    if name not in OWN_RATE:
        rate = options.rate or search_rate(options.rates, options, display)
        if name.endswith(TRIPLED):
            rate *= 3
        cell = replace(cell, config=cell.config.changed("train", learning_rate=rate))
    results = run_experiment([cell], [seed], options.folder / part, exam_of(part, options), display)
    for result in results:
        right = 100 * sum(result.right) / len(result.right)
        display.note(
            f"{part}, {result.run}, seed {seed}: {right:.1f} % right of {len(result.right)}, "
            f"{result.answer_tokens:.0f} tokens an answer"
        )


def write_tables(part: Part, options: Options, display: Display) -> None:
    """The tables of a part: of the seeds with all of its runs, or else of seed 0."""
    folder = options.folder / part
    found = read_results(folder) if folder.exists() else []
    by_seed: dict[int, set[str]] = {}
    for result in found:
        by_seed.setdefault(result.seed, set()).add(result.run)
    wanted = {BASE_MODEL, *(options.methods or names_of(part))} - {AS_IN_PAPER}
    whole = [seed for seed, runs in by_seed.items() if wanted <= runs] or [0]
    results = [result for result in found if result.seed in whole]
    made = {result.run for result in results}
    names = [name for name in names_of(part) if name in made]
    names.sort(key=lambda name: name == "paint")  # the last is compared with each
    if len(names) > 1:
        publish(Layout(f"Qwen2.5-Coder-0.5B, {part}", names), results, folder, display)
        paint.grade(folder / "evaluation")


def cells_of(part: Part, wording: str, options: Options) -> list[ExperimentRun]:
    """The methods of a part, the controls of PAINT, and PAINT in the paper's wording."""

    def shared(config: Config) -> Config:
        config = config.changed("model", path=options.model)
        config = config.changed("data", path=rows_of(part, "train", options))
        config = config.changed("rollout", max_new_tokens=options.tokens)
        config = replace(config, prompts=WORDINGS[wording])
        if part == "mbpp":
            config = config.changed("grading", grader=("code",)).changed(
                "context", alignment="words"
            )
            config = replace(config, prompts=CODE_PROMPTS)
        return config.changed("train", steps=options.steps, batch_size=options.batch_size)

    read = read_recipes(METHODS[part], base=BASE, controls=CONTROLS.get(part, ()), change=shared)
    cells = [ExperimentRun(name, run.config) for name, run in read]
    if part == "gsm8k":
        configs = {cell.name: cell.config for cell in cells}
        for name in OTHER_CLIPS:
            clip = next(clip for clip in CLIP_MODES if clip in name)
            config = configs[name.partition(f"-{clip}")[0]]
            config = config.changed("objective", clip_mode=CLIP_MODES[clip])
            cells.insert(-1, ExperimentRun(name, config))
    if part == "gsm8k" and wording != "paper":
        config = replace(read[-1][1].config, prompts=PromptsConfig())
        cells.insert(-1, ExperimentRun(AS_IN_PAPER, config))
    return cells


CODE_PROMPTS = PromptsConfig(
    student="{{ problem }}\n\nAnswer with one Python code block.",
    teacher=f"{{{{ problem }}}}\n\n{PART}\n\nAnswer with one Python code block, in your own way.",
)
"""The prompts of code: there is no box."""


def exam_of(part: Part, options: Options) -> EvalProtocol:
    """One sample of every test problem, at temperature 0.7 and top-p 0.95."""
    name = "mbpp_test" if part == "mbpp" else "gsm8k_test"
    path = options.folder / "data" / f"{name}.jsonl"
    tokens = options.tokens if options.rehearse else 512
    rollout = RolloutConfig(
        temperature=0.7, top_p=0.95, top_k=-1, max_new_tokens=tokens, batch_size=256
    )
    benchmark = load_benchmark(str(path), limit=options.limit, needs_answer=part != "mbpp")
    return EvalProtocol(benchmark, samples=1, thinking=False, rollout=rollout)


def transfer(benchmark: str, grader: str, seed: int, options: Options) -> None:
    """The policies of GSM8K on MATH-500, or on HumanEval, which training may make them forget."""
    runs = [
        options.folder / "gsm8k" / cell.name / f"seed-{seed}"
        for cell in cells_of("gsm8k", wording_of(options), options)
    ]
    paint.evaluate(
        runs,
        benchmarks=str(options.folder / "data" / f"{benchmark}.jsonl"),
        samples=1,
        limit=options.limit,
        grading={"grader": (grader,)},
        rollout={
            "temperature": 0.7,
            "top_p": 0.95,
            "top_k": -1,
            "max_new_tokens": options.tokens if options.rehearse else 512,
            "batch_size": 256,
        },
        output_dir=options.folder / "transfer" / f"seed-{seed}" / benchmark,
    )


if __name__ == "__main__":
    with shown_on_terminal():
        main()
