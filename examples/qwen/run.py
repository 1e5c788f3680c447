"""Train and evaluate Qwen2.5-Coder-0.5B-Instruct on GSM8K and MBPP, by all methods and controls.

    python examples/qwen/run.py --processes 4      all of it, four runs beside each other on a GPU
    python examples/qwen/run.py --parts gsm8k --seeds 1
    python examples/qwen/run.py --rehearse --model FOLDER --data FOLDER      every stage, in minutes

    runs/qwen/
      data/                          rows: train less validation, validation, wrong ends, test
      wordings/, contexts/  `paint advise`: what a context repairs, before any training
      protocol.json                  the wording and the learning rates that were chosen
      gsm8k/, wrong-ends/, mbpp/     an experiment each, as paint.lab.runner writes it
        rates/                       three learning rates a method, and their KL on validation rows
      transfer/EXPERIMENT/seed-0/    the same policies on MATH-500 and HumanEval

Seed 0 of every part comes first, so that what is cut short leaves tables. What is done is not done
again: the same command continues, and several at once share the runs.

Nothing is chosen on a test problem. The teacher's wording is the one with the largest accuracy
gradient on training problems. Learning rates are those whose student is closest to its teacher on
validation rows, which are cut from the end of the training data.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro

import paint
from contexts import with_wrong_numbers  # type: ignore[import-not-found]
from paint.config.schema import Config, DataConfig, PromptsConfig, RolloutConfig
from paint.core import storage
from paint.core.display import Display, shown_on_terminal
from paint.core.errors import Interrupted, PaintError
from paint.core.storage import lock_folder
from paint.data.benchmarks import PUBLISHED, load_benchmark
from paint.data.problems import read_problems, to_row
from paint.lab.comparison_report import publish
from paint.lab.eval_protocols import EvalProtocol
from paint.lab.learning_rates import RateSearch, with_chosen_rates
from paint.lab.plots import side_by_side
from paint.lab.recipes import read_recipes
from paint.lab.runner import ExperimentRun, run_experiment

HERE = Path(__file__).parent
BASE = str(HERE / "recipes" / "qwen.toml")

Part = Literal["contexts", "gsm8k", "wrong-ends", "mbpp"]

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
"""Learning rates that are tried, as multiples of the paper's."""

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
    """What is done, in this order."""
    seeds: int = 3
    """Trainings of each method, with the seeds 0, 1, ..."""
    steps: int = 50
    """Steps of a training."""
    batch_size: int = 32
    """Completions of a step."""
    problems: int | None = None
    """Test problems of each set, from the first; None: all."""
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
    def limit(self) -> int | None:
        return 4 if self.rehearse else self.problems


def main() -> None:
    """Run the parts that the command line names."""
    options = tyro.cli(Options, description=Options.__doc__)
    if options.rehearse:
        options = replace(options, seeds=1, steps=2, batch_size=8)
    options.folder.mkdir(parents=True, exist_ok=True)
    helpers = start_helpers(options)
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
    helpers = []
    for number in range(1, options.processes):
        log = (options.folder / f"process-{number}.txt").open("ab")
        command = [sys.executable, __file__, *arguments]
        helpers.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    return helpers


def run(options: Options) -> None:
    """All parts with seed 0, and then with all seeds."""
    display = Display()
    with lock_folder(options.folder, ".lock-data", waiting=display.note):
        write_rows(options)
    wording = "paper"
    if "contexts" in options.parts:
        with lock_folder(options.folder, ".lock-contexts", waiting=display.note):
            wording = measure_contexts(options, display)
    for seeds in (1, options.seeds):
        for part in options.parts:
            if part != "contexts":
                run_part(part, wording, range(seeds), options, display)


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


def measure_contexts(options: Options, display: Display) -> str:
    """Compare wordings on training problems, and contexts under the chosen one; return its name.

    The wording is the one with the largest accuracy gradient of the solution with 0.35 masked.
    """
    path = options.folder / "protocol.json"
    if path.exists():
        return str(storage.read_json(path, "delete it")["wording"])
    gradients = {}
    for name, prompts in WORDINGS.items():
        found = advise(f"wordings/{name}", prompts, ("solution",), (0.0, 0.35), options)
        gradients[name] = gradient_of(found, "solution@0.35")
    chosen = max(gradients, key=lambda name: gradients[name])
    found = advise(f"contexts/{chosen}", WORDINGS[chosen], CONTEXTS, (0.0, 0.35), options)
    display.note(f"the teacher's wording: {chosen}, of accuracy gradients {gradients}")
    storage.write_json(path, {"wording": chosen, "accuracy_gradients": gradients})
    return chosen


def advise(
    name: str,
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
        output_dir=options.folder / name,
        problems=4 if options.rehearse else (300 if len(contexts) > 1 else 100),
        samples=2,
        contexts=contexts,
        ratios=ratios,
        answers=True,
        prompts={"teacher": prompts.teacher},
        rollout={"max_new_tokens": options.tokens},
    )


def gradient_of(found: paint.Result, context: str) -> float:
    """The accuracy gradient of a context."""
    for row in found.report.rows:
        if (row.policy, row.metric, row.against) == (context, "accuracy_gradient", ""):
            return row.mean
    raise AssertionError(f"{found.path} has no accuracy gradient of {context}")


# --- experiments ---------------------------------------------------------------------------------


def run_part(
    part: Part, wording: str, seeds: Sequence[int], options: Options, display: Display
) -> None:
    """Choose learning rates, train and evaluate the methods of a part, and print its tables."""
    folder = options.folder / part
    cells = cells_of(part, wording, options)
    data = replace(cells[0].config.data, path=rows_of(part, "validation", options))
    search = RateSearch(
        replace(data, limit=2 if options.rehearse else 128), folder / "rates", factors=RATES
    )
    if options.rehearse:
        search = replace(search, factors=(1,), steps=1, samples=1)
    cells = with_chosen_rates(cells, search, display)
    results = run_experiment(cells, seeds, folder, exam_of(part, options), display)
    with lock_folder(folder, ".lock-tables", waiting=display.note):
        names = [cell.name for cell in cells]
        publish(side_by_side(f"Qwen2.5-Coder-0.5B, {part}", names), results, folder, display)
        paint.grade(folder / "evaluation")
        if part == "gsm8k":
            transfer(folder, names, seeds, options)


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
    if part != "mbpp" and wording != "paper":
        name, config = read[-1][0], read[-1][1].config
        cells.insert(
            -1,
            ExperimentRun(
                f"{name}-as-worded-in-the-paper", replace(config, prompts=PromptsConfig())
            ),
        )
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


def transfer(folder: Path, names: Sequence[str], seeds: Sequence[int], options: Options) -> None:
    """The same policies on MATH-500, and on HumanEval, which training may make them forget."""
    data = options.folder / "data"
    for seed in seeds:
        runs = [folder / name / f"seed-{seed}" for name in names]
        for benchmark, grader in (("math500", "math"), ("humaneval", "code")):
            paint.evaluate(
                runs,
                benchmarks=str(data / f"{benchmark}.jsonl"),
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
                output_dir=options.folder / "transfer" / folder.name / f"seed-{seed}" / benchmark,
                confirm=True,
            )


if __name__ == "__main__":
    with shown_on_terminal():
        main()
