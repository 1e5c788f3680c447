"""The Python API: train, resume, evaluate, export and read runs from a script or a notebook.

    import paint

    run = paint.train("demo-paint", data=rows, output_dir="runs/x", train={"steps": 4})
    run.metrics                                    # a DataFrame, one row per step
    run.rollouts(4)                                # one row per rollout of step 4
    results = paint.evaluate(run, benchmark=held_out, samples=4)
    results.table

Settings are those of a recipe, by section, and are checked in the same way. The command line calls
these functions. This module imports torch only where a model is loaded.
"""

import html
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paint.config.recipe import (
    differences,
    find_recipe,
    from_table,
    read_recipe,
    require_paths,
    to_table,
)
from paint.config.run_folder import (
    ROWS,
    RunError,
    latest_checkpoint,
    list_runs,
    read_metrics,
    read_run,
    read_run_json,
    step_folder,
    step_of,
    step_paths,
)
from paint.config.run_folder import checkpoints as list_checkpoints
from paint.config.schema import Config, Dtype, EvaluationConfig
from paint.core.errors import ConfigError, PaintError, format_value, wrap_errors
from paint.core.plugins import spec_of
from paint.core.storage import digest, read_growing_jsonl, read_json, read_jsonl, write_jsonl
from paint.data.readers import DataError
from paint.evaluation.defaults import defaults_of
from paint.evaluation.store import COMPLETIONS, find_stores, read_grades
from paint.experiments.recipes import read_recipes
from paint.objective.divergences import Divergence, divergence_name
from paint.training.callbacks import Callback, complete_callbacks
from paint.training.check import check_config, check_training
from paint.training.launcher import Request, train_on

if TYPE_CHECKING:
    import pandas as pd

    from paint.core.display import Display
    from paint.data.openthoughts import Preparation
    from paint.data.validate import FileCheck
    from paint.estimate.plan import Plan
    from paint.experiments.report import Result
else:
    Display = Any

Rows = Any
"""A list of dicts, a ``datasets.Dataset`` or a ``pandas.DataFrame``."""

Callbacks = Any
"""A list of objects with methods of ``paint.Callback``; those that one lacks are not called."""


@dataclass(frozen=True)
class Run:
    """A training run on disk. Nothing is cached, so a run under way shows its latest steps.

    Attributes:
        path: its folder (docs/reference/run-folder.md).
    """

    path: Path

    @property
    def config(self) -> Config:
        """The resolved settings. Raises RunError where the folder holds no run."""
        return read_run(self.path)

    @property
    def metrics(self) -> "pd.DataFrame":
        """One row per step, indexed by it; docs/reference/metrics.md has the columns."""
        rows = read_metrics(self.path) if (self.path / "metrics.jsonl").exists() else []
        return _frame(rows).set_index("step") if rows else _frame(rows)

    @property
    def steps(self) -> list[int]:
        """The steps whose rollouts are stored."""
        return [step_of(path) for path in step_paths(self.path / "rollouts", ".jsonl")]

    def rollouts(self, step: int | None = None) -> "pd.DataFrame":
        """One row per rollout of a step: text, verdict, overlap, mask ratio, context and ids.

        Args:
            step: from 1; None is the last stored step.

        Raises:
            RunError: the run has no rollouts of this step.
        """
        path = step_folder(self.path / "rollouts", self._step(step)).with_suffix(".jsonl")
        return _frame(list(read_jsonl(path, "restore it, or start a new run")))

    def tokens(self, step: int | None = None) -> "pd.DataFrame":
        """One row per token of the first ``log.token_rows`` rollouts of a step.

        Columns: docs/reference/run-folder.md.

        Raises:
            RunError: the run has no rollouts of this step. CorruptFileError: the file was changed,
                or ``log.token_rows`` was 0.
        """
        import pandas as pd

        from paint.training.token_log import read_tokens, tokens_path

        by_row = read_tokens(tokens_path(self.path, self._step(step)))
        return pd.concat([pd.DataFrame(columns) for columns in by_row.values()], ignore_index=True)

    @property
    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, by step."""
        return list_checkpoints(self.path)

    @property
    def adapter(self) -> Path:
        """What the last checkpoint trained: an adapter in peft's format, or a whole model.

        Raises:
            RunError: there is no checkpoint yet.
        """
        checkpoint = latest_checkpoint(self.path)
        if checkpoint is None:
            raise RunError(f"{self.path} has no checkpoint yet; `paint resume {self.path}` goes on")
        return checkpoint / ("model" if self.config.model.train_mode == "full" else "adapter")

    def export(self, folder: str | Path, **options: Any) -> Path:
        """Write the last checkpoint for other programs; options are those of ``export``."""
        return export(self, folder, **options)

    def differences(self, other: "Run") -> list[str]:
        """The settings that differ in another run, such as "train.seed: 0 -> 1"."""
        return differences(self.config, other.config)

    def show(self, **options: Any) -> "Page":
        """The run's page (docs/how-to/inspect-rollouts.md); options are those of ``show``."""
        return show(self, **options)

    def _step(self, step: int | None) -> int:
        steps = self.steps
        if step is None and steps:
            return steps[-1]
        if step not in steps:
            stored = f"steps {steps[0]} to {steps[-1]}" if steps else "no rollouts"
            raise RunError(f"{self.path} has no rollouts of step {step}; it has {stored}")
        return int(step)

    def _repr_html_(self) -> str:
        """A notebook's view: the run's folder and the metrics of its last step."""
        metrics = self.metrics.tail(1).T
        return f"<b>{html.escape(str(self.path))}</b>{metrics.to_html()}"


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on disk: graded samples, and tables with intervals.

    Attributes:
        path: its folder.
    """

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: all metrics, intervals and comparisons, unrounded."""
        return read_json(self.path / "summary.json", f"`paint grade {self.path}` writes it again")

    @property
    def table(self) -> "pd.DataFrame":
        """One row per policy, benchmark and metric: the mean and its 95 % interval."""
        rows = [
            {"policy": policy, "benchmark": benchmark, "metric": metric, **interval}
            for policy, benchmarks in self.summary["figures"].items()
            for benchmark, metrics in benchmarks.items()
            for metric, interval in metrics.items()
        ]
        return _frame(rows)

    @property
    def comparisons(self) -> "pd.DataFrame":
        """One row per policy and benchmark: its difference to the first policy, problem by problem.

        The columns are the mean difference, its 95 % interval, the p-value and the smallest
        difference that this many problems can detect.
        """
        rows = self.summary["comparisons"]
        return _frame([{**row, **row["difference"]} for row in rows]).drop(
            columns="difference", errors="ignore"
        )

    @property
    def samples(self) -> "pd.DataFrame":
        """One row per sample of every policy and benchmark: text, verdict, reason and feedback."""
        rows = []
        for folder in find_stores(self.path):
            verdicts = {(row["problem"], row["sample"]): row for row in read_grades(folder)}
            for sample in read_growing_jsonl(folder / COMPLETIONS, "evaluate again"):
                verdict = verdicts.get((sample["problem"], sample["sample"]))
                if verdict is not None:
                    further = ("reward", "rewards", "feedback")
                    rows.append(
                        {"policy": folder.parent.name, "benchmark": folder.name}
                        | sample
                        | verdict["strict"]
                        | {key: verdict[key] for key in further if key in verdict}
                    )
        return _frame(rows)

    def show(self, **options: Any) -> "Page":
        """The evaluation's page; options are those of ``show``."""
        return show(self, **options)

    def _repr_html_(self) -> str:
        table = self.table
        main = table[table["metric"].isin(["avg_at_k", "reward"])]
        return f"<b>{html.escape(str(self.path))}</b>{main.to_html(index=False)}"


@dataclass(frozen=True)
class Advice:
    """What contexts would teach, on disk.

    Attributes:
        path: its folder.
    """

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: facts, figures of every context, and the advice."""
        return read_json(self.path / "summary.json", "advise again")

    @property
    def lines(self) -> list[str]:
        """The advice and its reasons."""
        return list(self.summary["advice"])

    @property
    def table(self) -> "pd.DataFrame":
        """One row per context and figure: the mean and its 95 % interval."""
        rows = [
            {"context": context, "metric": metric, **interval}
            for context, metrics in self.summary["contexts"].items()
            for metric, interval in metrics.items()
            if isinstance(interval, dict)
        ]
        return _frame(rows)

    def show(self) -> "Page":
        """The page of the advice: its lines, charts and tables."""
        return show(self)

    def _repr_html_(self) -> str:
        table = self.table
        slopes = table[table["metric"] == "slope"]
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.lines)
        return f"<ul>{lines}</ul>{slopes.to_html(index=False)}"


@dataclass(frozen=True)
class Bake:
    """A baked prompt on disk: its run, and what was measured.

    Attributes:
        path: its folder.
    """

    path: Path

    @property
    def run(self) -> Run:
        """The training; its last checkpoint is the baked adapter."""
        return Run(self.path / "run")

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: figures by group of questions, and of each measured step."""
        return read_json(self.path / "summary.json", "bake again")

    @property
    def table(self) -> "pd.DataFrame":
        """One row per group of questions, view and figure: the mean and its 95 % interval."""
        rows = [
            {"questions": group, "view": view, "metric": metric, **interval}
            for group, views in self.summary.items()
            if group != "steps"
            for view, figures in views.items()
            for metric, interval in figures.items()
            if interval
        ]
        return _frame(rows)

    def show(self) -> "Page":
        """The page of the bake: its charts and tables."""
        return show(self)


@dataclass(frozen=True)
class Page:
    """A page as one HTML file. A notebook shows it in a frame."""

    path: Path
    height: int = field(default=720, repr=False)
    """Height of the frame in pixels."""

    def _repr_html_(self) -> str:
        # srcdoc works in every notebook server, whatever folders it serves.
        page = html.escape(self.path.read_text("utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="{self.height}"></iframe>'


def train(
    recipe: str | Path | Config = "paint",
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    data: str | Path | Mapping[str, Any] | Rows = None,
    output_dir: str | Path | None = None,
    callbacks: Callbacks = (),
    gpus: int = 0,
    split: str | None = None,
    display: Display | None = None,
    **sections: Mapping[str, Any],
) -> Run:
    """Train by a recipe, and return the run.

    Args:
        recipe: the name of a shipped recipe, the path of a TOML file, or a ``Config``.
        model: a folder, a hub name or "demo"; or the settings of the section model.
        data: a file, a hub data set, "demo", or rows; or the settings of the section data, whose
            ``path`` may be rows. Rows are stored in ``output_dir``.
        output_dir: folder of the run; by default runs/NAME-DATE-TIME.
        callbacks: objects whose methods are called while training; those that an object lacks are
            not.
        gpus: GPUs of this machine to train and serve on; 0 is this process alone.
        split: with ``gpus``: how many train and how many serve, such as "4+4".
        display: where progress is shown; None is the terminal or the notebook.
        sections: settings by section, such as ``train={"steps": 4}``. An algorithm, engine,
            grader or divergence may be an object instead of a name.

    Raises:
        PaintError: ConfigError, DataError, RunError and others, before the first step wherever that
            is possible; the message has a hint.
        Interrupted: after Ctrl-C, when the step under way is finished and saved; ``resume`` takes
            the run up.
    """
    callbacks = complete_callbacks(callbacks)
    path, config = _recipe(recipe)
    name = f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(output_dir) if output_dir is not None else Path(config.log.folder) / name
    if (folder / "run.json").exists():
        raise RunError(f"{folder} already holds a run; paint.resume goes on with it")

    log = replace(config.log, folder=str(folder.parent), name=folder.name)
    config = _configured(replace(config, log=log), folder, model, data, sections)
    _run(config, folder, Request(gpus, split), path, callbacks, display)
    return Run(folder)


def resume(
    run: Run | str | Path,
    *,
    steps: int | None = None,
    callbacks: Callbacks = (),
    gpus: int = 0,
    split: str | None = None,
    display: Display | None = None,
) -> Run:
    """Resume a run from its last checkpoint; the result is that of an unstopped run.

    Args:
        run: a run or its folder.
        steps: optimizer steps in all, where they are more than the run was started with.
        callbacks, gpus, split, display: as in ``train``.

    Raises:
        PaintError: as ``train``.
    """
    callbacks = complete_callbacks(callbacks)
    run = load_run(run)
    config = run.config
    if steps is not None:
        config = replace(config, train=replace(config.train, steps=steps))
    _run(config, run.path, Request(gpus, split), None, callbacks, display)
    return run


def load_run(run: Run | str | Path) -> Run:
    """Load a run from its folder.

    Raises:
        RunError: the folder holds no run. CorruptFileError: run.json cannot be read.
    """
    loaded = run if isinstance(run, Run) else Run(Path(run))
    read_run_json(loaded.path)
    return loaded


def runs(folder: str | Path = "runs") -> "pd.DataFrame":
    """List the runs in a folder and below it, the last to change first, as `paint runs` does.

    Columns: ``name`` (path below the folder), ``state`` (running, done, stopped or damaged),
    ``step``, ``steps``, ``changed`` (seconds since 1970), and the last value of every metric.
    """
    rows = [asdict(status) for status in list_runs(Path(folder))]
    return _frame([row | row.pop("metrics") for row in rows])


def plan(
    recipe: str | Path | Config = "paint",
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    gpus: int = 1,
    nodes: int = 1,
    memory: float | None = None,
    **sections: Mapping[str, Any],
) -> "Plan":
    """Print memory use and the split of GPUs, as `paint plan` does; nothing is loaded.

    Returns the plan: ``memory.peak`` are bytes of a GPU that trains, and ``fits`` says whether the
    GPU has them.

    Args:
        recipe, model, sections: as in ``train``.
        gpus: GPUs of each machine; 0 is a laptop's CPU.
        nodes: machines.
        memory: memory of each GPU in GB; None is 80, and 16 for a laptop.

    Raises:
        ConfigError: the model has no config.json, or layers that a plan does not know.
    """
    from paint.estimate import report
    from paint.estimate.plan import make_plan

    config = _configured(_recipe(recipe)[1], Path(), model, None, sections)
    made = make_plan(config, gpus, nodes, memory and memory * 1e9)
    print(*report.lines(made), sep="\n")
    return made


def validate_data(
    data: str | Path | Rows,
    recipe: str | Path | Config = "paint",
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    benchmarks: Sequence[str] = (),
    **sections: Mapping[str, Any],
) -> "FileCheck":
    """Count good and bad rows, lengths and verdicts as `paint data validate` does, and print them.

    Args:
        data: a file, a hub data set, "demo", or rows.
        recipe, model, sections: as in ``train``.
        benchmarks: problem sets, as in ``evaluate``, whose problems are searched for in the data.

    Raises:
        PaintError: the data cannot be read, or the tokenizer cannot be loaded.
    """
    from paint.data.benchmarks import load_benchmark
    from paint.data.validate import check_file, print_check

    is_file = isinstance(data, str | Path)
    with TemporaryDirectory() as folder:
        config = _configured(_recipe(recipe)[1], Path(folder), model, data, sections)
        require_paths(config)
        check = check_file(config, benchmarks=[load_benchmark(name) for name in benchmarks])
    if not is_file:
        check.path = "rows"  # not the temporary file
    print_check(check)
    return check


def doctor(recipes: Sequence[str] = ()) -> dict[str, Any]:
    """Find devices, memory, disk, libraries, vLLM and Liger, as `paint doctor` does.

    Sizes are in bytes. ``packages`` has version, requirement and fit of every library.

    Args:
        recipes: names or files; whether each fits in this machine's memory, by ``plan``'s estimate.
    """
    from paint.inference.machine import examine

    return examine(recipes)


def prepare_openthoughts(
    out: str | Path, *, benchmarks: Sequence[str] | None = None, **settings: Any
) -> "Preparation":
    """Write a verified, decontaminated sample of OpenThoughts, as `paint data openthoughts` does.

    Args:
        out: file to write, OUT.jsonl; its report and others are written to the same folder.
        benchmarks: problem sets, as in ``evaluate``, whose problems must not be trained on; None
            are all that are known but the demo's.
        settings: ``source``, ``sample``, ``seed``, ``solution``, ``ngram``, ``share``, ``masked``,
            ``workers`` and ``deadline``, as the command's.

    Returns:
        The numbers of rows that were kept, dropped for each reason, and sampled.

    Raises:
        DataError: the source cannot be read, or ``out`` cannot be written.
    """
    from paint.core.display import Display
    from paint.data.benchmarks import PUBLISHED, load_benchmark
    from paint.data.openthoughts import make_training_data, print_preparation
    from paint.demo.files import NAME

    if benchmarks is None:
        benchmarks = [name for name in PUBLISHED if name != NAME]
    sets = [load_benchmark(name) for name in benchmarks]
    preparation = make_training_data(Path(out), benchmarks=sets, **settings)
    print_preparation(preparation, Path(out), Display())
    return preparation


def advise(
    recipe: str | Path | Config = "paint",
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    data: str | Path | Mapping[str, Any] | Rows = None,
    output_dir: str | Path | None = None,
    problems: int = 100,
    samples: int = 4,
    contexts: Sequence[str] = ("solution", "other", "none", "answer"),
    ratios: Sequence[float] = (0.0, 0.3, 0.5),
    answers: bool = False,
    both_modes: bool = False,
    **sections: Mapping[str, Any],
) -> Advice:
    """Measure what each context would teach, before training, as `paint advise` does.

    Args:
        recipe, model, data, sections: as in ``train``.
        output_dir: folder of rollouts and tables; by default advice/RECIPE. The same call goes on
            with what it holds.
        problems: training problems, in the order of training.
        samples: rollouts of each problem, at least 2.
        contexts: sources of contexts, as in ``context.source``.
        ratios: mask ratios of the contexts that can be masked, in [0, 1).
        answers: sample the teacher's own answers with each context, too.
        both_modes: score each context in the teacher's other thinking mode, too.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    path, config = _recipe(recipe)
    folder = Path(output_dir) if output_dir is not None else Path("advice") / path.stem
    config = _configured(config, folder, model, data, sections)

    from paint.experiments import advise

    advise.advise(
        config,
        folder,
        problems=problems,
        samples=samples,
        sources=contexts,
        ratios=ratios,
        answers=answers,
        both_modes=both_modes,
    )
    return Advice(folder)


def bake(
    rules: str | Path,
    questions: str | Path | Rows,
    *,
    recipe: str | Path | Config = "bake",
    model: str | Path | Mapping[str, Any] | None = None,
    output_dir: str | Path | None = None,
    held_out: int = 50,
    samples: int = 4,
    unrelated: str | Path = "",
    benchmark: str | Path = "",
    force: bool = False,
    **sections: Mapping[str, Any],
) -> Bake:
    """Train an adapter that answers as if a text were its system prompt, as `paint bake` does.

    Args:
        rules: text file of the system prompt.
        questions: rows with a problem, and no answer: a file, a hub data set or rows.
        recipe, model, sections: as in ``train``.
        output_dir: folder of run and tables; by default bakes/RULES. The same call goes on there.
        held_out: questions that are measured and not trained on, at most half of all.
        samples: answers to each question that is measured.
        unrelated: file of questions that the text does not concern.
        benchmark: problems on which accuracy before and after is compared.
        force: train even where the text changes nothing that is measured.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    folder = Path(output_dir) if output_dir is not None else Path("bakes") / Path(rules).stem
    context = {**sections.get("context", {}), "file": str(rules)}
    config = _configured(
        _recipe(recipe)[1], folder, model, questions, {**sections, "context": context}
    )

    from paint.experiments.bake import bake

    bake(
        config,
        folder,
        held_out=held_out,
        samples=samples,
        unrelated=str(unrelated),
        benchmark=str(benchmark),
        force=force,
    )
    return Bake(folder)


def evaluate(
    target: Run | str | Path | Sequence[Run | str | Path],
    *,
    benchmark: str | Path | Rows | Sequence[str | Path] = None,
    output_dir: str | Path | None = None,
    rollout: Mapping[str, Any] | None = None,
    grading: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Evaluation:
    """Sample, grade and compare policies on problems, as `paint eval` does.

    Args:
        target: a run (all its checkpoints), a checkpoint, an adapter or a model; or several.
        benchmark: rows with problem and answer, a file, or the name of a benchmark; or several
            files and names. None: the problems of the run's validation, of the demo, or the
            paper's.
        output_dir: folder in which the evaluation gets one of its model's name; default "evals".
        rollout: how answers are sampled, as the section rollout of a recipe.
        grading: how they are graded, as the section grading of a recipe; its ``grader`` may be a
            function.
        settings: the other settings of `paint eval`, such as samples, thinking, limit and seed.
            Those that are not given fit the run, as the command's.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    targets: Sequence[Any] = target if isinstance(target, list | tuple) else [target]
    default = defaults_of(_text(targets[0])) if targets else EvaluationConfig()
    folder = Path(output_dir) if output_dir is not None else Path(default.folder)
    if benchmark is None:
        names = list(default.benchmarks)
    elif isinstance(benchmark, str | Path):
        names = [str(benchmark)]
    elif isinstance(benchmark, list | tuple) and all(isinstance(b, str | Path) for b in benchmark):
        names = [str(name) for name in benchmark]
    else:
        names = [_write_rows(benchmark, folder / "benchmarks")]
    known = {f.name for f in fields(EvaluationConfig)} - {"benchmarks", "folder"}
    if unknown := [name for name in settings if name not in known]:
        parameters = sorted(known | {"benchmark", "output_dir"})
        raise ConfigError(f"evaluate has no setting {unknown[0]}; it has {', '.join(parameters)}")
    table = to_table(Config(rollout=default.rollout, grading=default.grading))
    table["rollout"] |= {key: _named(value) for key, value in (rollout or {}).items()}
    table["grading"] |= {key: _named(value) for key, value in (grading or {}).items()}
    sections = from_table(table, source="evaluate")
    config = replace(
        default,
        benchmarks=tuple(names),
        folder=str(folder),
        rollout=sections.rollout,
        grading=sections.grading,
        **{key: _named(value) for key, value in settings.items()},
    )

    from paint.evaluation import run

    return Evaluation(run.evaluate(config, [_text(one) for one in targets]))


def held_out_kl(
    run: Run | str | Path,
    *,
    data: str | Path | Mapping[str, Any] | Rows,
    problems: int | None = 128,
    samples: int = 2,
    output_dir: str | Path | None = None,
) -> float:
    """Return KL(teacher ‖ student) in nats a token on the student's rollouts of held-out problems.

    It judges learning rates without evaluating answers (docs/how-to/compare.md). The student is the
    run's last checkpoint, and samples as in training. The teacher reads the run's context; its
    weights are those of the start, or the student's with teacher.weights "live". There is no clip.

    Args:
        data: problems that were not trained on, as in ``train``.
        problems: the first so many; None is all.
        samples: rollouts of each.
        output_dir: folder of the rollouts, by default in the run's folder.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    from paint.core.display import Display
    from paint.experiments.rollout_bank import kl_of_checkpoint

    run = load_run(run)
    checkpoint = run.adapter.parent
    folder = Path(output_dir or run.path / "held-out-kl" / checkpoint.name)
    given = dict(data) if isinstance(data, Mapping) else {"path": data}
    config = _configured(run.config, folder, None, {"limit": problems, **given}, {})
    return kl_of_checkpoint(checkpoint, config, config.data, samples, folder, Display())


def grade(
    *targets: Evaluation | Run | str | Path,
    grading: Mapping[str, Any] | None = None,
    output_dir: str | Path | None = None,
) -> Evaluation:
    """Grade stored samples again, without generating, and compare, as `paint grade` does.

    Args:
        targets: evaluations, parts of them, or runs.
        grading: as the section grading of a recipe; its ``grader`` may be a function.
        output_dir: folder of the summary; by default the first target's.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    from paint.core.display import Display
    from paint.evaluation.grade import summarise_folders

    folders = [Path(_text(target)) for target in targets]
    if not folders:
        raise ConfigError("nothing to grade; pass an evaluation or a run")
    out = Path(output_dir) if output_dir is not None else folders[0]
    named = {key: _named(value) for key, value in (grading or {}).items()}
    section = from_table({"grading": named}, source="grade").grading
    summarise_folders(folders, out, Display(), section)
    return Evaluation(out)


def compare(
    recipes: Sequence[str | Path],
    *,
    base: str | Path = "",
    model: str | Path = "",
    data: str | Path = "",
    stored: str | Path = "",
    controls: Sequence[str] = (),
    output_dir: str | Path = "runs/compare",
    seeds: Sequence[int] = range(3),
    **settings: Any,
) -> "pd.DataFrame":
    """Train and evaluate recipes on the same model, problems and seeds, as `paint compare` does.

    Args:
        recipes, base, model, data, stored, controls: as the command's.
        output_dir: folder of runs, results, tables and plots; an interrupted call goes on there.
        seeds: seed of each training, and of its evaluation.
        settings: benchmark, problems, samples, thinking, max_new_tokens, every_checkpoint and
            against_last, as the command's.

    Returns:
        One row per recipe, seed and evaluated checkpoint, as in results.jsonl, with avg_at_k.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    from paint.experiments import compare as comparison

    read = read_recipes(
        list(map(str, recipes)),
        base=str(base),
        model=str(model),
        data=str(data),
        stored=str(stored),
        controls=controls,
    )
    return _results(comparison.compare(read, Path(output_dir), seeds=seeds, **settings))


def ablate(
    table: str,
    recipe: str | Path | Config = "paint",
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    data: str | Path | Mapping[str, Any] | Rows = None,
    output_dir: str | Path | None = None,
    seeds: Sequence[int] = range(3),
    benchmark: str | Path | None = None,
    problems: int | None = None,
    samples: int = 12,
    every_checkpoint: bool = False,
    **sections: Mapping[str, Any],
) -> "pd.DataFrame":
    """Train and evaluate the rows of an ablation table, as `paint ablate` does.

    Args:
        table: mask-ratio, mask-placement, interpolation, controls, or another of the command's.
        recipe, model, data, sections: as in ``train``; the table replaces what it varies.
        output_dir: folder of runs and results, by default runs/ablate-RECIPE; an interrupted call
            goes on there.
        seeds: seed of each training, and of its evaluation.
        benchmark, problems, samples, every_checkpoint: as the command's.

    Returns:
        One row per setting, seed and evaluated checkpoint, as in results.jsonl, with avg_at_k.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    path, config = _recipe(recipe)
    folder = Path(output_dir) if output_dir is not None else Path("runs") / f"ablate-{path.stem}"
    config = _configured(config, folder, model, data, sections)

    from paint.experiments import ablations

    results = ablations.ablate(
        table,
        config,
        folder,
        seeds=seeds,
        benchmark=str(benchmark) if benchmark is not None else None,
        problems=problems,
        samples=samples,
        every_checkpoint=every_checkpoint,
    )
    return _results(results)


def show(
    *targets: Run | Evaluation | Advice | Bake | str | Path,
    steps: Sequence[int] = (),
    row: int | None = None,
    contexts: Sequence[str] = (),
    rescore: bool = False,
    out: str | Path | None = None,
) -> Page:
    """Write the page of a run, several runs, evaluations, advice, a comparison or a bake.

    Args:
        targets: runs; or evaluations; or folders of ``advise``, ``compare`` and ``bake``.
        steps: of one run: the steps whose rollouts are shown; none named, as many as fit.
        row: of one run: one row of each step, from 0.
        contexts: of one run: score its rollouts under these contexts, too; needs ``rescore``.
        rescore: of one run: load its model and score its rollouts again.
        out: file to write; None is show.html in the first target.

    Raises:
        PaintError: a target cannot be read; the message has the cause and a hint.
    """
    from paint.core.display import Display
    from paint.viewer.run import EVERYTHING, PageSpec
    from paint.viewer.show import show_targets

    paths = [Path(_text(target)) for target in targets]
    if not paths:
        raise ConfigError("nothing to show; pass a run or an evaluation")
    is_run = len(paths) == 1 and (paths[0] / "run.json").exists()
    page = PageSpec(steps, row, contexts, rescore) if is_run else EVERYTHING
    path = show_targets(paths, Display(enabled=False), page, out=Path(out) if out else None)
    return Page(path)


def export(
    target: Run | str | Path,
    folder: str | Path,
    *,
    merged: bool = False,
    dtype: Dtype | None = None,
    evaluations: Sequence[Evaluation | str | Path] = (),
    license: str = "",
    push: str = "",
) -> Path:
    """Write a checkpoint as a folder that transformers, peft and vLLM load, with a model card.

    Args:
        target: a checkpoint, or a run: its last one.
        folder: folder to write; it must be new or empty.
        merged: write one model instead of an adapter.
        dtype: number format of what is written; None is float32 for an adapter, as it was trained,
            and that of the run's base for a model.
        evaluations: evaluations whose figures the card takes; they must have this checkpoint.
        license: licence as the hub names it; "" is that of the base's card.
        push: repository of the hub to upload to, owner/name; "" uploads nothing. Without a token,
            what would be uploaded is listed.

    Raises:
        PaintError: the message has the cause and a hint.
    """
    from paint.publish import export as publish

    return publish.export(
        Path(_text(target)),
        Path(folder),
        merged=merged,
        dtype=dtype,
        evaluations=[Path(_text(evaluation)) for evaluation in evaluations],
        license=license,
        repository=push,
    )


def run_training(
    config: Config,
    folder: Path,
    request: Request,
    recipe: Path | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
) -> int:
    """Train here, or on the GPUs of a request, and return the exit status.

    Args:
        recipe: the file that the run starts from; None resumes the run in the folder.
    """

    def train_here(config: Config) -> None:
        from paint.training import trainer
        from paint.viewer.run import log_page

        trainer.train(
            config,
            folder,
            resume=recipe is None or (bool(request.gpus) and (folder / "run.json").exists()),
            callbacks=callbacks,
            display=display,
            at_end=log_page,
        )

    check_training(config)
    if request.gpus:
        return train_on(request, config, folder, recipe, train_here)
    train_here(config)
    return 0


def _run(
    config: Config,
    folder: Path,
    request: Request,
    recipe: Path | None,
    callbacks: Sequence[Callback],
    display: Display | None,
) -> None:
    """``run_training``, with an error for a status, and the callbacks' last call."""
    if callbacks and request.gpus > 1:
        raise ConfigError("callbacks are called in one process; leave gpus out, or pass none")
    status = run_training(config, folder, request, recipe, callbacks=callbacks, display=display)
    if status:
        raise PaintError(f"training in {folder} ended with status {status}; what it said is above")
    for callback in callbacks:
        callback.on_end(Run(folder))


def _recipe(recipe: str | Path | Config) -> tuple[Path, Config]:
    """The file and the settings of a recipe; a Config can be started from the recipe paint."""
    path = find_recipe("paint" if isinstance(recipe, Config) else str(recipe))
    return path, recipe if isinstance(recipe, Config) else read_recipe(path)


def _configured(
    config: Config,
    folder: Path,
    model: str | Path | Mapping[str, Any] | None,
    data: str | Path | Mapping[str, Any] | Rows,
    sections: Mapping[str, Mapping[str, Any]],
) -> Config:
    """The config with the arguments of a call; rows are stored in the folder."""
    given: dict[str, Any] = dict(sections)
    rows = None
    if model is not None:
        given["model"] = dict(model) if isinstance(model, Mapping) else {"path": str(model)}
    if data is not None:
        given["data"] = dict(data) if isinstance(data, Mapping) else {"path": data}
        if not isinstance(given["data"].get("path", ""), str | Path):
            rows, given["data"]["path"] = given["data"]["path"], folder / ROWS
    config = _override(config, given)
    check_config(config)
    if rows is not None:  # not before the settings are found to be right
        _write_rows(rows, folder, ROWS)
    return config


def _override(config: Config, sections: Mapping[str, Any]) -> Config:
    """The config with some settings replaced and checked, as those of a recipe are."""
    table = {
        name: {key: _named(value) for key, value in settings.items()}
        if isinstance(settings, Mapping)
        else settings
        for name, settings in sections.items()
    }
    return from_table(table, source="settings", base=config)


def _named(value: Any) -> Any:
    """A setting as a recipe holds it: objects by their names, paths as text."""
    if isinstance(value, Divergence):
        return divergence_name(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_named(one) for one in value]
    return spec_of(value) if callable(value) else value


def _text(target: Run | Evaluation | Advice | Bake | str | Path) -> str:
    return str(target if isinstance(target, str | Path) else target.path)


def _write_rows(rows: Rows, folder: Path, name: str = "") -> str:
    """Write rows as JSONL and return the path; without a name, the file is named by its content.

    Raises:
        DataError: a row is no dict, or holds a value that JSON has not.
    """
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a pandas.DataFrame
        rows = rows.to_dict("records")
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise DataError(
            f"rows must be a list of dicts, a Dataset or a DataFrame, got {format_value(rows)}"
        )
    lines = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"row {number} is {format_value(row)}; each row must be a dict")
        if len({str(key) for key in row}) < len(row):
            raise DataError(f"row {number} has two fields of one name; rename one of them")
        lines.append({str(key): _plain(value, key, number) for key, value in row.items()})
    if not lines:
        raise DataError("there are no rows; pass at least one dict")

    name = name or f"rows-{digest(*(json.dumps(line, sort_keys=True) for line in lines))[:8]}.jsonl"
    with wrap_errors(folder / name, RunError, "choose another output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / name, lines)
    return str(folder / name)


def _plain(value: Any, field_name: str, row: int) -> Any:
    """A value as JSON takes it; missing numbers of pandas become null."""
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy
        value = value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair
    except (TypeError, ValueError):
        raise DataError(
            f'row {row}: field "{field_name}" is {format_value(value)}; convert it to text, '
            f"numbers, lists or dicts"
        ) from None
    return value


def _results(results: Sequence["Result"]) -> "pd.DataFrame":
    """The results of an experiment as rows, each with its accuracy."""
    from paint.experiments.report import shares

    return _frame([asdict(result) | {"avg_at_k": shares([result]).mean()} for result in results])


def _frame(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))
