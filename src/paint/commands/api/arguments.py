"""Types of the arguments of commands: how the command line bounds and explains them.

A command is a Python function (paint.commands). A text in an annotation is the help of every
parameter that has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paint.commands.api.results import Evaluation, Result, Run
from paint.config.context_sources import CONTROLS
from paint.config.schema import Config
from paint.core.settings import NOT_NEGATIVE, POSITIVE


@dataclass(frozen=True)
class SettingsOf:
    """Marks ``**settings`` of a command: the command line has the fields of ``kind`` as flags."""

    kind: type[Any]


@dataclass(frozen=True)
class ByName:
    """Marks a dict of lists of values: the command line has a flag for each name."""


@dataclass(frozen=True)
class Spelled:
    """Gives the flag of a parameter another name."""

    name: str


Count = Annotated[int, *POSITIVE]
OptionalCount = Annotated[int | None, *POSITIVE]
Seed = Annotated[int, *NOT_NEGATIVE]

RunPath = Run | str | Path
Target = Run | Evaluation | Result | str | Path
Targets = Target | Sequence[Target]
OutputDir = str | Path | None
ResultsDir = Annotated[
    OutputDir, "Folder of results, runs and samples; existing results are reused."
]

if TYPE_CHECKING:
    Control = str
else:
    Control = Literal[CONTROLS]  # which type checkers do not take

AnyRecipe = Annotated[
    str | Path | Config,
    "TOML file, or the name of a recipe that comes with paint; in Python also a "
    "paint.Config. On the command line it stands before the flags.",
]

Recipes = Annotated[
    str | Path | Config | Mapping[str, Any] | Sequence[str | Path | Config | Mapping[str, Any]],
    "Recipes to compare, one or several: shipped ones, TOML files, or folders, which "
    "stand for their TOML files in the order of names; in Python also a paint.Config, or a "
    "dict of sections. On the command line they stand before the flags.",
]

Sections = Annotated[
    Any,
    SettingsOf(Config),
    'Settings of the recipe by section, such as `train={"steps": 4}`. `model` may also be a '
    'folder, a hub name or "demo", and `data` a file, a hub data set, "demo", or a list of '
    "several; or rows (a list of dicts, a Dataset or a DataFrame), which are stored in the output "
    "folder.",
]
"""Of ``**sections``."""

Callbacks = Annotated[
    Sequence[Any],
    "Callbacks (docs/how-to/watch-a-run.md), as module:name; in Python also objects. They "
    "are called in one process, so not with --gpus of two or more.",
]

Gpus = Annotated[
    int,
    *NOT_NEGATIVE,
    "GPUs of this machine, divided into ranks that train and vLLM servers by "
    "rollout.server_gpus, or as `paint plan` divides them (docs/how-to/several-gpus.md); "
    "without any GPU here, so many processes without one. 0: this process alone.",
]

Trust = Annotated[
    bool,
    "Run the modules and command lines that the record of a run names, after a line that "
    "lists them, though you did not write it on this machine (SECURITY.md).",
]

Seeds = Annotated[Count, "Trainings of each row, each with its own seed, at least 1."]

Samples = Annotated[Count, "Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."]

EveryCheckpoint = Annotated[
    bool,
    "Evaluate every checkpoint (train.checkpoint-every), and add tables by step; the "
    "reported results remain those of the last one.",
]
