"""``paint grade``."""

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import OptionalPlace, Place
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
    grading: GradingConfig = field(default_factory=GradingConfig)
    """How the samples are graded."""

    def run(self) -> int:
        if not self.folders:
            raise ConfigError("nothing to grade; name a folder that `paint eval` made, or a run")
        from paint.core.display import Display
        from paint.evaluation.grade import summarise_folders

        out = self.out or self.folders[0]
        summarise_folders(self.folders, out, Display(), self.grading)
        return 0
