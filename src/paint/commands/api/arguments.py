"""Types of the arguments of commands: how the command line bounds and explains them.

A command is a Python function (paint.commands). An annotation with a help text means the same in
every command that has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from paint.commands.api.configure import Recipe
from paint.commands.api.results import Evaluation, Result, Run
from paint.config.context_sources import CONTROLS
from paint.config.schema import Config, EvaluationConfig, GradingConfig
from paint.core.settings import NOT_NEGATIVE, POSITIVE, or_none


@dataclass(frozen=True)
class SettingsOf:
    """Marks ``**settings`` of a command: the command line has the fields of ``kind`` as flags."""

    kind: type[Any]


@dataclass(frozen=True)
class ByName:
    """Marks a dict of lists of values: the command line has a flag for each name."""


@dataclass(frozen=True)
class TakesRun:
    """Marks a recipe in whose place a run may stand."""


Count = Annotated[int, *POSITIVE]
OptionalCount = Annotated[int | None, *or_none(POSITIVE)]
Seed = Annotated[int, *NOT_NEGATIVE]

RunPath = Run | str | Path
Target = Run | Evaluation | Result | str | Path
Targets = Target | Sequence[Target]
OutputDir = str | Path | None
ResultsDir = Annotated[
    OutputDir, arg(help="Folder of results, runs and samples; existing results are reused.")
]

if TYPE_CHECKING:
    Control = str
else:
    Control = Literal[CONTROLS]  # which type checkers do not take

AnyRecipe = Annotated[
    str | Path | Config | Recipe,
    arg(
        help="TOML file, or the name of a recipe that comes with paint; in Python also a "
        "paint.Config. On the command line it stands before the flags.",
    ),
]

RecipeOrRun = Annotated[
    str | Path | Run | Config | Recipe,
    TakesRun(),
    arg(
        help="TOML file, the name of a recipe that comes with paint, or the folder of a run; in "
        "Python also a paint.Config or a paint.Run. On the command line it stands before the flags."
    ),
]

Recipes = Annotated[
    str | Path | Config | Mapping[str, Any] | Sequence[str | Path | Config | Mapping[str, Any]],
    arg(
        help="Recipes to compare, one or several: shipped ones, TOML files, or folders, which "
        "stand for their TOML files in the order of names; in Python also a paint.Config, or a "
        "dict of sections. On the command line they stand before the flags."
    ),
]

Base = Annotated[
    str | Path,
    arg(help="Recipe whose settings the others have where they name none; empty: the paper's."),
]

Stored = Annotated[
    str | Path,
    arg(help="Completions to train on, as rollout.stored, where the method allows it."),
]

Controls = Annotated[
    Sequence[Control],
    arg(
        help="Repeat the last recipe with these context.source, by which a gain is told from that "
        "of reading anything (docs/concepts/teacher-and-controls.md)."
    ),
]

AgainstLast = Annotated[
    bool,
    arg(
        help="Compare each recipe with the last one alone: fewer pairs, and a smaller correction "
        "of p. Decide it beforehand."
    ),
]

Model = Annotated[
    str | Path | Mapping[str, Any] | None,
    arg(help='A folder, a hub name or "demo"; or the settings of the section model.'),
]

Data = Annotated[
    Any,
    arg(
        help='A file, a hub data set, "demo", or a list of several; or rows (a list of dicts, a '
        "Dataset or a DataFrame), which are stored in the output folder; or the settings of the "
        "section data."
    ),
]

Sections = Annotated[
    Mapping[str, Any],
    SettingsOf(Config),
    arg(help='Settings of the recipe by section, such as `train={"steps": 4}`.'),
]
"""Of ``**sections``."""

Sweep = Annotated[
    Any,
    ByName(),
    arg(
        metavar="SETTING VALUE [VALUE ...]",
        help="A setting and its values: each recipe is repeated with each value, and with several "
        "--sweep with every combination (docs/how-to/sweeps.md). In Python, values by the "
        'setting\'s name: `sweep={"train.learning_rate": [2e-4, 6e-4]}`.',
    ),
]

Grading = Annotated[
    GradingConfig | Mapping[str, Any] | None,
    SettingsOf(GradingConfig),
    arg(help="How the samples are graded: the settings of the section grading."),
]

EvaluationSetting = Annotated[
    Any,
    SettingsOf(EvaluationConfig),
    arg(
        help="Settings of an evaluation, such as `samples=4`; `rollout` and `grading` are sections."
    ),
]
"""Of ``**settings``."""

Callbacks = Annotated[
    Sequence[Any],
    arg(
        help="Callbacks (docs/how-to/watch-a-run.md), as module:name; in Python also objects. They "
        "are called in one process, so not with --gpus of two or more."
    ),
]

Gpus = Annotated[
    int,
    *NOT_NEGATIVE,
    arg(
        help="GPUs of this machine, divided into ranks that train and vLLM servers by "
        "rollout.server_gpus, or as `paint plan` divides them (docs/how-to/several-gpus.md); "
        "without any GPU here, so many processes without one. 0: this process alone."
    ),
]

Confirm = Annotated[
    bool,
    arg(
        name="yes",
        help="Start what may take more than an hour, by an estimate. Otherwise a terminal asks.",
    ),
]

Trust = Annotated[
    bool,
    arg(
        help="Run the modules and command lines that the record of a run names, after a line that "
        "lists them, though you did not write it on this machine (SECURITY.md)."
    ),
]

Seeds = Annotated[Count, arg(help="Trainings of each row, each with its own seed, at least 1.")]

FirstSeed = Annotated[
    Seed,
    arg(help="The first seed, at least 0; each is that of data order, rollouts and evaluation."),
]

Samples = Annotated[
    Count,
    arg(help="Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."),
]

BenchmarkName = Annotated[
    str | Path | None,
    arg(
        help="Problem set, named as in `paint eval`; None: aime_2024 (paper), and for the embedded "
        "model its held-out problems."
    ),
]

EvaluatedProblems = Annotated[
    OptionalCount,
    arg(help="Number of these problems to evaluate on, from the first; None is all."),
]

Thinking = Annotated[
    bool | None,
    arg(
        help="Thinking mode of the evaluation; None: as trained, on published benchmarks on "
        "(paper), and for the embedded model off."
    ),
]

LongestAnswer = Annotated[
    OptionalCount,
    arg(
        help="Longest answer in tokens; None: as trained, on published benchmarks 38,912 (paper), "
        "and for the embedded model 96."
    ),
]

EveryCheckpoint = Annotated[
    bool,
    arg(
        help="Evaluate every checkpoint (train.checkpoint-every), and add tables by step; the "
        "reported results remain those of the last one."
    ),
]
