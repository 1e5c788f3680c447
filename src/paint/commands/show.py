from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from paint.commands.api import arguments
from paint.commands.api.results import Page, paths_of, write_page_of
from paint.core.settings import NOT_NEGATIVE


def show(
    *targets: arguments.Targets,
    steps: Sequence[int] = (),
    row: Annotated[int | None, *NOT_NEGATIVE] = None,
    contexts: Sequence[str] = (),
    rescore: bool = True,
    out: str | Path | None = None,
    open: bool = True,
    watch: bool = False,
    trust: arguments.Trust = False,
) -> Page:
    """Write one HTML file that opens anywhere, without a server and without a network.

    It shows a run with its rollouts token by token, several runs in the same charts, evaluations
    with every answer and its verdict, or the charts and tables of `paint advise`, `compare`
    and `bake` (docs/how-to/inspect-rollouts.md).

    Example: paint show runs/first --no-rescore --no-open

    Args:
        targets: A run; several runs, or folders that hold runs; or one or several of what
            `paint eval`, `advise`, `compare` or `bake` made.
        steps: Of a run: steps whose rollouts are shown, all rows of each. None named: as many steps
            as fit, with the rows of log.token_rows.
        row: Of a run: one row of each step, from 0.
        contexts: Of a run: score the completions under these contexts, too; other is another
            problem's solution.
        rescore: Of a run: load its model and score the rollouts again; otherwise only what was kept
            while training is shown.
        out: File to write; None: show.html in the first target.
        open: Open the page in a browser, where there are a terminal and a screen.
        watch: Of runs: serve the page on 127.0.0.1 until Ctrl-C, and append their steps as they
            come.
    """
    return write_page_of(
        paths_of(targets),
        steps=steps,
        row=row,
        contexts=contexts,
        rescore=rescore,
        out=out,
        open=open,
        watch=watch,
        trust=trust,
    )
