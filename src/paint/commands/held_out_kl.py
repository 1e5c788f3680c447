from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paint.commands.api import arguments
from paint.commands.api.configure import configure
from paint.commands.api.results import load_run
from paint.config.recipe import executables_of, to_table
from paint.core.errors import ConfigError
from paint.core.trust import require_trusted, trust_records


def held_out_kl(
    run: arguments.RunPath,
    data: Any,
    *,
    problems: arguments.OptionalCount = 128,
    samples: arguments.Count = 2,
    output_dir: arguments.OutputDir = None,
    trust: arguments.Trust = False,
) -> float:
    """Return KL(teacher ‖ student) in nats a token on the student's rollouts of held-out problems.

    It judges learning rates without evaluating answers (docs/how-to/compare.md). The student is the
    run's last checkpoint, and samples as in training. The teacher reads the run's context; its
    weights are those of the start, or the student's with teacher.weights "live". There is no clip.

    Example: paint held-out-kl runs/first demo --problems 8

    Args:
        run: A run, or its folder.
        data: Problems that were not trained on: a file, a hub data set, "demo", or rows; in Python
            also the settings of the section data.
        problems: The first so many; None is all.
        samples: Rollouts of each.
        output_dir: Folder of the rollouts; None: held-out-kl in the run's folder.
    """
    if trust:
        trust_records()
    run = load_run(run)
    require_trusted(executables_of(to_table(run.config)))
    checkpoint = run.adapter.parent
    folder = Path(output_dir or run.path / "held-out-kl" / checkpoint.name)
    given: dict[str, Any] = dict(data) if isinstance(data, Mapping) else {"path": data}
    _, resolved = configure(run.config, folder, {"data": {"limit": problems, **given}})
    if not resolved.algorithm.needs_context:
        raise ConfigError(f"{resolved.method} has no teacher to compare with")

    from paint.core.display import Display
    from paint.data.problems import read_problems
    from paint.lab.context_scores import kl_by_problem, sample_student

    rows = read_problems(resolved.config.data, needs=resolved.needed_fields).problems
    display = Display()
    student = sample_student(resolved, rows, samples, folder, display, checkpoint)
    return float(kl_by_problem(student, display).mean())


def report(kl: float) -> str:
    return f"{kl:.4f} nats a token"
