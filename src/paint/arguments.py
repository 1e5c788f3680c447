"""Types of the arguments of commands: how the command line reads, bounds and explains them.

A command is a Python function (paint.commands). Where an annotation here has a help text, the
argument means the same in every command that has it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from paint.config.schema import MAX_COUNT, Config, EvaluationConfig, GradingConfig
from paint.configure import Recipe
from paint.core.errors import PaintError, format_short, path_error
from paint.results import Evaluation, Result, Run


@dataclass(frozen=True)
class SettingsOf:
    """Marks ``**settings`` of a command: the command line has the fields of ``kind`` as flags."""

    kind: type[Any]


def _read_by(
    parse: Callable[[str], Any], metavar: str, *, optional: bool = False, many: bool = False
) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads an argument. Its own parsers of unions list every type in their errors."""

    def instance(words: list[str]) -> Any:
        if many:
            return tuple(parse(word) for word in words)
        if optional and words == ["None"]:
            return None
        return parse(words[0])

    def words_of(value: Any) -> list[str]:
        if isinstance(value, tuple):
            return [str(one) for one in value]
        return [str(value)]

    return PrimitiveConstructorSpec(
        nargs="*" if many else 1,
        metavar=f"[{metavar} ...]" if many else metavar,
        instance_from_str=instance,
        is_instance=lambda _: True,
        str_from_instance=words_of,
    )


def bounded(
    kind: type, low: float, high: float, *, optional: bool = False, many: bool = False
) -> Any:
    """A number in [low, high], or None where it is optional; or several."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"must be in [{low}, {high}], got {format_short(text)[1:-1]}")
        return value

    return _read_by(parse, kind.__name__.upper(), optional=optional, many=many)


def _path(text: str) -> Path:
    if not text.strip():  # of a ValueError in a list of paths, tyro would not give the reason
        raise PaintError("a path is empty; name a file or a folder")
    wrong = path_error(text)
    if wrong:
        raise ValueError(f"{format_short(text)} {wrong}; name a file or a folder")
    return Path(text)


Count = Annotated[int, bounded(int, 1, MAX_COUNT)]
OptionalCount = Annotated[int | None, bounded(int, 1, MAX_COUNT, optional=True)]
Counts = Annotated[Sequence[int], bounded(int, 1, MAX_COUNT, many=True)]
Seed = Annotated[int, bounded(int, 0, 2**63 - 1)]
Seconds = Annotated[float, bounded(float, 0.01, 86_400)]
Share = Annotated[float, bounded(float, 0, 1)]
TextArgument = Annotated[str | Path, _read_by(str, "STR")]
Texts = Annotated[Sequence[str], _read_by(str, "STR", many=True)]

FilePath = Annotated[str | Path, _read_by(_path, "PATH")]
OptionalPath = Annotated[str | Path | None, _read_by(_path, "PATH", optional=True)]
RunPath = Annotated[Run | str | Path, _read_by(_path, "PATH")]
TargetPaths = Annotated[Run | Evaluation | Result | str | Path, _read_by(_path, "PATH", many=True)]
"""Of ``*targets``."""
EvaluationPaths = Annotated[Sequence[Evaluation | str | Path], _read_by(_path, "PATH", many=True)]
Target = Annotated[Run | str | Path, _read_by(str, "STR")]
Targets = Annotated[Run | str | Path | Sequence[Run | str | Path], _read_by(str, "STR", many=True)]

RowsArgument = Annotated[Any, _read_by(str, "FILE")]
"""A file, a hub data set or "demo"; in Python also a list of dicts, a Dataset or a DataFrame."""

OutputDir = Annotated[str | Path | None, _read_by(_path, "PATH", optional=True)]

AnyRecipe = Annotated[
    str | Path | Config | Recipe,
    arg(
        metavar="RECIPE",
        help="TOML file, or the name of a recipe that comes with paint; in Python also a "
        "paint.Config. On the command line it stands before the flags.",
    ),
]

Recipes = Annotated[Sequence[str | Path], _read_by(str, "STR", many=True), arg(metavar="RECIPE")]

Model = Annotated[
    str | Path | Mapping[str, Any] | None,
    arg(help='A folder, a hub name or "demo"; or the settings of the section model.'),
]

Data = Annotated[
    Any,
    arg(
        help='A file, a hub data set, "demo", or rows (a list of dicts, a Dataset or a DataFrame), '
        "which are stored in the output folder; or the settings of the section data."
    ),
]

SectionArgument = Annotated[
    Mapping[str, Any],
    SettingsOf(Config),
    arg(help='Settings of the recipe by section, such as `train={"steps": 4}`.'),
]
"""Of ``**sections``."""

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
    Any,
    _read_by(str, "MODULE:NAME", many=True),
    arg(
        help="Callbacks (docs/how-to/watch-a-run.md), as module:name; in Python also objects. They "
        "are called in one process, so not with --gpus of two or more."
    ),
]

Gpus = Annotated[
    int,
    arg(
        help="GPUs of this machine, in [0, 9999], divided into ranks that train and vLLM servers "
        "(docs/how-to/several-gpus.md); without any GPU here, so many processes without one. 0: "
        "this process alone."
    ),
]

SplitArgument = Annotated[
    str | None,
    arg(
        help="With --gpus: how many train and how many serve, such as 4+4, or shared, by which all "
        "do both in turns. None: as `paint plan` divides them."
    ),
]

DryRun = Annotated[bool, arg(help="With --gpus: print every command, and start nothing.")]

Seeds = Annotated[
    Count,
    arg(help="Trainings of each row, each with its own seed, at least 1."),
]

FirstSeed = Annotated[
    Seed,
    arg(help="The first seed, at least 0; each is that of data order, rollouts and evaluation."),
]

Samples = Annotated[
    Count,
    arg(help="Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."),
]

BenchmarkArgument = Annotated[
    str | Path | None,
    _read_by(str, "STR", optional=True),
    arg(
        help="Problem set, named as in `paint eval`; None: aime_2024 (paper), and for the embedded "
        "model its held-out problems."
    ),
]

EvaluatedProblems = Annotated[
    OptionalCount,
    arg(help="Number of these problems to evaluate on, from the first; None is all."),
]

EveryCheckpoint = Annotated[
    bool,
    arg(
        help="Evaluate every checkpoint (train.checkpoint-every), and add tables by step; the "
        "reported results remain those of the last one."
    ),
]


def agrees() -> bool:
    """Ask on a terminal whether to go on; true where nobody can answer."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
