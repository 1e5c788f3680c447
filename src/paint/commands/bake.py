from pathlib import Path
from typing import Any

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe
from paint.commands.api.results import Result
from paint.core.errors import ConfigError
from paint.data.sources import check_sources
from paint.resolve.check import require_paths

CONTINUES = True


def bake(
    rules: str | Path,
    questions: Any,
    recipe: arguments.AnyRecipe = "bake",
    *,
    output_dir: arguments.OutputDir = None,
    held_out: arguments.Count = 50,
    samples: arguments.Count = 4,
    temperature: float | None = None,
    patience: arguments.OptionalCount = None,
    force: bool = False,
    **sections: arguments.Sections,
) -> Result:
    """Train an adapter that answers as if a text were its system prompt.

    It measures first whether the text changes the answers to held-out questions, and refuses to
    train where it does not. It trains train.steps steps and measures the answers again
    (docs/how-to/bake-a-prompt.md). The same command continues where it was interrupted.

    Example: paint bake RULES.md questions.jsonl --model.path MODEL --grading.grader my_rules:grade

    Args:
        rules: Text file of the system prompt.
        questions: Questions, as of data.path: rows with a problem, and no answer.
        output_dir: Folder of run, questions and tables; None: bakes/RULES.
        held_out: Questions that are measured and not trained on, at most half of all.
        samples: Answers to each question that is measured.
        temperature: Temperature of these answers, that of the use; None: rollout.temperature.
        patience: End the training when the mean KL of the last so many steps is not below that of
            as many steps before; None: after train.steps.
        force: Train even where the text changes nothing that is measured.
    """
    folder = Path(output_dir or Path("bakes") / Path(rules).stem)
    given = {**sections, "data": questions}
    given["context"] = {**given.get("context", {}), "file": str(rules)}
    _, run = configure(open_recipe(recipe).config, folder, given)
    if run.config.conversation.is_on:
        raise ConfigError(
            "a prompt is baked by single turns, which conversation.tools and "
            "conversation.environment are not for; train with context.source file, as in "
            "docs/how-to/own-context.md"
        )
    require_paths(run.config)
    check_sources(run.config, run.needed_fields)

    from paint.lab import bake

    bake.bake(run, folder, held_out, samples, temperature, patience, force=force)
    return Result(folder)
