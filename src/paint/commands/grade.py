from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from paint.commands.api import arguments
from paint.commands.api.configure import configure
from paint.commands.api.results import Evaluation, path_of
from paint.config.schema import Config, ConfigError, GradingConfig


def grade(
    *targets: arguments.Target,
    grading: Annotated[
        GradingConfig | Mapping[str, Any] | None, arguments.SettingsOf(GradingConfig)
    ] = None,
    output_dir: arguments.OutputDir = None,
) -> Evaluation:
    """Grade stored samples again, without generating, and compare the policies.

    The first policy is the base.

    Example: paint grade evals/demo

    Args:
        targets: Evaluations (folders of `paint eval`), parts of them, or runs.
        grading: How the samples are graded: the settings of the section grading.
        output_dir: Folder of summary.json and summary.md; None: the first of the folders.
    """
    if not targets:
        raise ConfigError("nothing to grade; name a folder that `paint eval` made, or a run")
    from paint.core.display import Display
    from paint.evaluation.grade import summarise

    folders = [path_of(target) for target in targets]
    folder = folders[0] if output_dir is None else Path(output_dir)
    if not isinstance(grading, GradingConfig):
        grading = configure(Config(), folder, {"grading": grading or {}})[0].grading
    summarise(folders, folder, Display(), grading)
    return Evaluation(folder)
