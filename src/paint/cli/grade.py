"""``paint grade``."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import OptionalPlace, Place, Seconds
from paint.config.schema import ConfigError, GradingConfig


@dataclass(frozen=True)
class Grade:
    """Grade stored samples again, without generating, and compare the policies.

    The first policy is the base.

    Example: paint grade evals/demo
    """

    folders: Annotated[Positional[tuple[Place, ...]], arg(metavar="FOLDER")]
    """Evaluation folders of `paint eval`, parts of them, or runs."""
    out: OptionalPlace = None
    """Folder of summary.json and summary.md; None: the first of the folders."""
    grader: str = "math"
    """Grader: math, exact, choice, or module:name for your own function."""
    deadline: Seconds = 5.0
    """CPU seconds for a comparison of two answers, or a call of your function, in
    [0.01, 86400]."""

    def run(self) -> int:
        if not self.folders:
            raise ConfigError("nothing to grade; name a folder that `paint eval` made, or a run")
        from paint.core.display import Display
        from paint.evaluation.grade import summarise_folders

        out = self.out or self.folders[0]
        summarise_folders(self.folders, out, Display(), GradingConfig(self.grader, self.deadline))
        return 0
