"""``paint show``."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import Count, OptionalPlace, Place, bounded
from paint.config.schema import MAX_COUNT, ConfigError


@dataclass(frozen=True)
class Show:
    """Write one HTML file that opens anywhere, without a server and without a network.

    It shows a run with its rollouts token by token, several runs over each other, evaluations with
    every answer and its verdict, or the charts and tables of `paint advise`, `compare`, `ablate`
    and `bake` (docs/how-to/inspect-rollouts.md).

    Example: paint show runs/first --no-rescore --no-open
    """

    targets: Annotated[Positional[tuple[Place, ...]], arg(metavar="TARGET")]
    """A run, several runs to compare, or what `paint eval`, `advise`, `compare`, `ablate` or `bake`
    made."""
    step: tuple[Count, ...] = ()
    """Of a run: steps whose rollouts are shown, all rows of each. None named: as many steps as fit,
    with the rows of log.token_rows."""
    row: Annotated[int | None, bounded(int, 0, MAX_COUNT, optional=True)] = None
    """Of a run: one row of each step, from 0."""
    contexts: tuple[str, ...] = ()
    """Of a run: score the completions under these contexts, too; other is another problem's
    solution."""
    rescore: bool = True
    """Of a run: load its model and score the rollouts again; otherwise only what was kept while
    training is shown."""
    out: OptionalPlace = None
    """File to write; None: show.html in the first target."""
    open: bool = True
    """Open the page in a browser, where there is a screen."""

    def run(self) -> int:
        if not self.targets:
            raise ConfigError("nothing to show; name a run, or a folder that `paint eval` made")
        from paint.core.display import Display
        from paint.viewer.run import PageSpec
        from paint.viewer.show import show_targets

        page = PageSpec(self.step, self.row, self.contexts, self.rescore)
        show_targets(self.targets, Display(), page, out=self.out, opens=self.open)
        return 0
