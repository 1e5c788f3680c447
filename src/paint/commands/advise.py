from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe
from paint.commands.api.results import Result
from paint.config.recipe import shipped_recipes
from paint.config.schema import ConfigError
from paint.core.settings import within
from paint.core.trust import vouch_for
from paint.data.contexts import with_source
from paint.data.sources import check_sources
from paint.resolve.check import Resolved, check_config, require_paths
from paint.training.launcher import on_gpus

CONTINUES = True


def advise(
    recipe: arguments.AnyRecipe,
    *,
    output_dir: arguments.OutputDir = None,
    problems: arguments.Count = 100,
    samples: Annotated[int, *within("[2, 10000000]")] = 4,
    contexts: Sequence[str] = (),
    ratios: tuple[float, ...] = (0.0, 0.3, 0.5),
    answers: bool = False,
    rates: bool | Sequence[float] | None = None,
    gpus: arguments.Gpus = 0,
    **sections: arguments.Sections,
) -> Result:
    """Measure, before any training, whether there is anything to learn, and from which context.

    The student answers each problem several times, and the teacher as often, which reads the
    recipe's context or a control in its place. The student's rollouts are then scored under every
    context. A context teaches what separates right rollouts from wrong ones. The same command
    continues where it was interrupted. --rollout.engine stored uses rollouts that exist.

    With --rates it compares learning rates instead: it trains a few steps with each from the same
    rows, and measures on others how near the student comes to its teacher
    (docs/how-to/learning-rate.md).

    Example: paint advise demo-paint --problems 4 --samples 2 --ratios 0.4 --contexts solution other

    Args:
        output_dir: Folder of rollouts and tables; None: advice/RECIPE.
        problems: Training problems, in the order in which training takes them.
        samples: Rollouts of each problem, at least 2: right ones are compared with wrong ones.
        contexts: Further sources, as of context.source. Empty: solution, other, placebo, none and
            answer, if all rows have them; of a text or a file other_text, placebo_text and none.
        ratios: Mask ratios of the contexts that can be masked, each in [0, 1); 0 shows all.
        answers: Let the teacher answer under each of these contexts, too, not under the recipe's
            and its controls alone.
        rates: Train train.steps, at most 20, with each of these learning rates, and say which to
            take. True, or the flag alone: 5e-6 to 2e-3 and the recipe's own. The problems are then
            those that are held out, and the samples the rollouts of each.
    """
    vouch_for(contexts)
    start = open_recipe(recipe)
    folder = Path(output_dir or Path("advice") / start.path.stem)
    _, run = configure(start.config, folder, sections)
    needs = _checked_needs(run, contexts, ratios, rates, answers=answers)
    if rates is None or rates is False:
        with on_gpus(gpus, run, ranks=0) as placed:
            from paint.lab.advise import advise

            advise(placed, folder, needs, problems, samples, contexts, ratios, answers=answers)
        return Result(folder)
    with on_gpus(gpus, run, ranks=1) as placed:
        from paint.lab.learning_rates import advise_rates

        name = start.path.stem if start.path.stem in shipped_recipes() else str(start.path)
        advise_rates(placed, folder / "rates", name, rates, problems, samples)
    return Result(folder / "rates")


def _checked_needs(
    run: Resolved,
    contexts: Sequence[str],
    ratios: Sequence[float],
    rates: bool | Sequence[float] | None,
    *,
    answers: bool,
) -> dict[str, str]:
    """Return the fields that the problems, which must be there, need under all contexts."""
    require_paths(run.config)
    if not run.algorithm.needs_context:
        raise ConfigError(f"{run.method} has no teacher; pass --train.method distillation")
    if answers and (run.engine.is_stored or run.config.conversation.is_on):
        raise ConfigError(
            'the teacher\'s answers are sampled, in single turns: rollout.engine "stored", '
            "conversation.tools and conversation.environment have none; leave out --answers"
        )
    is_of_rates = rates is not None and rates is not False
    if is_of_rates and (contexts or answers or run.engine.is_stored):
        raise ConfigError(
            "rates are compared by training with the recipe's own context; leave out --contexts, "
            "--answers and stored rollouts"
        )
    for ratio in ratios:  # refused here, before anything is sampled
        run.changed("context", mask_ratio_wrong=ratio, mask_ratio_correct=ratio)
    needs = dict(run.needed_fields)
    for source in contexts:
        shown = replace(run.config, context=with_source(run.config.context, source))
        needs |= check_config(shown).needed_fields
    check_sources(run.config, needs)
    return needs
