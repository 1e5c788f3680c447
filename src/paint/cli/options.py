"""Option types and groups that several verbs share."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from paint.config.schema import MAX_COUNT, Config
from paint.core.errors import PaintError, format_short, path_error
from paint.training.launcher import Request


def _parsed(
    parse: Callable[[str], Any], metavar: str, *, optional: bool = False
) -> PrimitiveConstructorSpec[Any]:
    # tyro's own parser of a union with None lists the repr of every type in its errors.
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: None if optional and words == ["None"] else parse(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [str(value)],
    )


def bounded(kind: type, low: float, high: float, *, optional: bool = False) -> Any:
    """A number in [low, high], or None where it is optional."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"must be in [{low}, {high}], got {format_short(text)[1:-1]}")
        return value

    return _parsed(parse, kind.__name__.upper(), optional=optional)


def _path(text: str) -> Path:
    if not text.strip():  # of a ValueError in a list of paths, tyro would not give the reason
        raise PaintError("a path is empty; name a file or a folder")
    if wrong := path_error(text):
        raise ValueError(f"{format_short(text)} {wrong}; name a file or a folder")
    return Path(text)


Count = Annotated[int, bounded(int, 1, MAX_COUNT)]
OptionalCount = Annotated[int | None, bounded(int, 1, MAX_COUNT, optional=True)]
Seed = Annotated[int, bounded(int, 0, 2**63 - 1)]
Seconds = Annotated[float, bounded(float, 0.01, 86_400)]
Place = Annotated[Path, _parsed(_path, "PATH")]
OptionalPlace = Annotated[Path | None, _parsed(_path, "PATH", optional=True)]

Recipe = Annotated[Positional[str], arg(metavar="RECIPE")]
Settings = Annotated[Config, arg(name="")]
"""Every setting of the recipe as a flag, such as --train.steps."""

GpuOptions = Annotated[Request, arg(name="")]
ONE_PROCESS = Request()


@dataclass(frozen=True)
class Trainings:
    """Number of trainings of an experiment, and how each is evaluated."""

    seeds: Count = 1
    """Trainings of each row, each with its own seed, at least 1."""
    seed: Seed = 0
    """The first seed, at least 0; each is that of data order, rollouts and evaluation."""
    samples: Count = 12
    """Samples per problem: the k of Avg@k (paper: Experimental Details, 12)."""
    every_checkpoint: bool = False
    """Evaluate every checkpoint (train.checkpoint-every), and add tables by step; the reported
    results remain those of the last one."""

    @property
    def all_seeds(self) -> range:
        """The seeds in order."""
        return range(self.seed, self.seed + self.seeds)


THREE_SEEDS = Trainings(seeds=3)


def agrees() -> bool:
    """Ask on a terminal whether to go on; true where nobody can answer."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
